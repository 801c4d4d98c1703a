//! Ensembles: which of their faults explain an overlap, and a store on a real one that grants held keys.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::Store;
use dblock_servers::{Ensemble, Kind, Purpose, is_installed};
use tokio::time::sleep;

use super::broken::{ONE_AT_A_TIME, run_over};
use super::flaw::Flaw;
use super::sketch::{A, B, Sketch, overlap};
use crate::check::{Cause, Finding};
use crate::fault::Fault;
use crate::history::Event;

#[test]
fn of_an_ensemble_only_a_leader_that_was_stopped_explains_anything_and_only_where_it_may_revoke() {
    let sketch = |fault: Fault, woken_leader_revokes| {
        let done = Event::Done {
            fault: fault.clone(),
            injected: true,
        };
        let begin = Event::Begin {
            store: "etcd".to_owned(),
            seed: 1,
            end: 0,
            woken_leader_revokes,
        };
        Sketch::default()
            .runner(0, begin)
            .section(A, 1, 10, 0, 3_000)
            .section(B, 1, 20, 1_500, 9_000)
            .runner(1_000, Event::Fault { fault })
            .runner(2_000, done)
    };
    let stopped = |ms| Fault::StopLeader { ms };
    assert_eq!(overlap(sketch(stopped(500), true)), Cause::FailOver);
    assert_eq!(overlap(sketch(stopped(500), false)), Cause::Unexplained);
    // The second owner entered before the leader was woken.
    assert_eq!(overlap(sketch(stopped(501), true)), Cause::Unexplained);
    for fault in [Fault::KillLeader { ms: 500 }, Fault::LoseQuorum { ms: 500 }] {
        assert_eq!(overlap(sketch(fault, true)), Cause::Unexplained);
    }
}

/// As in the tests in memory: on a busy machine a run may do too little for its flaw to show.
const RUNS: usize = 3;

async fn finds_a_grant_of_a_held_key(kind: Kind, open: fn(&str) -> Arc<dyn Store>) {
    if !is_installed(kind) {
        dblock_tests::left_out("an ensemble of its own", "install zookeeper and etcd-server");
        return;
    }
    let _alone = ONE_AT_A_TIME.lock().await;
    let mut ensemble = Ensemble::fresh(kind, Purpose::Tests).await.unwrap();
    let mut found = Vec::new();
    for _ in 0..RUNS {
        let url = ensemble.url().to_owned();
        let leader = ensemble.leader().await.expect("somebody leads");
        let kill = async {
            sleep(Duration::from_secs(3)).await;
            ensemble.servers[leader].kill();
            ensemble.restart_killed().await.unwrap();
        };
        let (verdict, ()) = tokio::join!(run_over(Flaw::GrantsWhileHeld, || open(&url)), kill);
        let overlap = |finding: &Finding| matches!(finding, Finding::Overlap { .. });
        if verdict.findings.iter().any(overlap) {
            return;
        }
        found = verdict.findings;
    }
    panic!("no overlap among {found:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_zookeeper_that_grants_what_is_held_is_found_out() {
    let open = |url: &str| Arc::new(dblock_zookeeper::ZookeeperStore::new(url).unwrap()) as Arc<dyn Store>;
    finds_a_grant_of_a_held_key(Kind::ZooKeeper, open).await;
}

#[cfg(feature = "etcd")]
#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_grants_what_is_held_is_found_out() {
    let open = |url: &str| Arc::new(dblock_etcd::EtcdStore::new(url.split(',')).unwrap()) as Arc<dyn Store>;
    finds_a_grant_of_a_held_key(Kind::Etcd, open).await;
}
