//! Four processes, one of which leads, while they step down, shut down, are killed and are stopped.

use std::time::Duration;

use dblock::LockRow;
use dblock_tests::{Backend, on_every_store};
use rustix::process::Signal;

use crate::KEY;
use crate::nodes::{Nodes, Term};

on_every_store!(databases: one_of_four_processes_leads);

const TTL: Duration = Duration::from_secs(3);

/// A leader that was killed is followed within the ttl and this.
const SLACK: Duration = Duration::from_secs(2);

async fn one_of_four_processes_leads(backend: Backend) {
    let mut nodes = Nodes::new(&backend, TTL);
    for _ in 0..4 {
        nodes.start();
    }
    let first = nodes.next_leader().await;
    let seen = observe(&backend, &nodes, first).await;

    // Those that left in order.
    let mut left = Vec::new();
    for order in ["step down", "shut down", "step down", "shut down", "step down"] {
        let leader = nodes.leader();
        left.push(leader.token);
        nodes.order(leader.node, order);
        nodes.next_leader().await;
        if order == "shut down" {
            nodes.ended(leader.node).await;
            nodes.start();
        }
    }

    let killed = nodes.leader();
    nodes.signal(killed.node, Signal::KILL);
    let next = nodes.next_leader().await;
    assert_ne!(next.node, killed.node);
    nodes.start();

    let stopped = nodes.leader();
    nodes.signal(stopped.node, Signal::STOP);
    let next = nodes.next_leader().await;
    assert_ne!(next.node, stopped.node);
    nodes.signal(stopped.node, Signal::CONT);
    let now = observe(&backend, &nodes, next).await;
    assert!(now.acquired_at > seen.now, "{now:?} leads since after {seen:?}");

    // The one that was stopped still takes part: it leads when the others are gone.
    for node in nodes.running() {
        if node != stopped.node {
            nodes.order(node, "shut down");
            nodes.ended(node).await;
        }
    }
    let again = |term: &Term| term.node == stopped.node && term.token > stopped.token;
    nodes.until(again).await;
    nodes.order(stopped.node, "shut down");
    nodes.ended(stopped.node).await;

    let terms = nodes.judge(TTL + SLACK);
    let pairs = terms.windows(2).filter(|pair| left.contains(&pair[0].token));
    let mut pauses: Vec<_> = pairs.map(|pair| pair[1].after(&pair[0])).collect();
    pauses.sort();
    println!("without a leader after one that left: {pauses:?}");
    // A stall of the machine is no fault: most of them are short.
    assert!(pauses[pauses.len() / 2] < Duration::from_secs(1), "{pauses:?}");
}

/// Another process sees who leads, and since when.
async fn observe(backend: &Backend, nodes: &Nodes, leader: Term) -> LockRow {
    let row = backend.manager().await.admin().get(KEY).await.unwrap().unwrap();
    assert!(row.is_held() && row.fence_token == leader.token, "{row:?}");
    let process = format!("/{}", nodes.pid(leader.node));
    assert!(row.holder.ends_with(&process), "{row:?}, not {process}");
    row
}
