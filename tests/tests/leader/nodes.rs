//! Processes of which one leads, and what they said. Their program is `bin/node.rs`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dblock_tests::Backend;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use crate::{KEY, LONG};

/// A node says that it leads.
#[derive(Debug, Clone, Copy)]
struct Beat {
    node: usize,
    token: i64,
    /// In ns on the clock that all processes share.
    at: i64,
}

/// The time in which a node led without a break, as far as it has said so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) node: usize,
    pub(crate) token: i64,
    from: i64,
    to: i64,
}

/// The processes of a test. Dropping them kills those that are left.
pub(crate) struct Nodes {
    backend: Backend,
    ttl: Duration,
    children: Vec<Child>,
    send: mpsc::UnboundedSender<Beat>,
    told: mpsc::UnboundedReceiver<Beat>,
    /// By token.
    terms: BTreeMap<i64, Term>,
}

impl Nodes {
    pub(crate) fn new(backend: &Backend, ttl: Duration) -> Self {
        let (send, told) = mpsc::unbounded_channel();
        Self {
            backend: backend.clone(),
            ttl,
            children: Vec::new(),
            send,
            told,
            terms: BTreeMap::new(),
        }
    }

    /// Starts one more.
    pub(crate) fn start(&mut self) {
        let node = self.children.len();
        let url = self.backend.url().expect("memory belongs to one process");
        let ttl = self.ttl.as_millis().to_string();
        let mut child = Command::new(env!("CARGO_BIN_EXE_node"))
            .args([&url, &self.backend.table, KEY, &ttl])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let send = self.send.clone();
        std::thread::spawn(move || {
            // The last line of a process that was killed may be a part of one.
            for line in output.lines().map_while(Result::ok) {
                let Some((token, at)) = line.split_once(' ') else {
                    break;
                };
                let (Ok(token), Ok(at)) = (token.parse(), at.parse()) else {
                    break;
                };
                let _ = send.send(Beat { node, token, at });
            }
        });
        self.children.push(child);
    }

    /// The last leader, as far as it was told.
    pub(crate) fn leader(&mut self) -> Term {
        while let Ok(beat) = self.told.try_recv() {
            self.note(beat);
        }
        *self.terms.values().next_back().expect("somebody has led")
    }

    /// Waits until a node leads with a token that was not seen before.
    pub(crate) async fn next_leader(&mut self) -> Term {
        let last = self.terms.keys().next_back().copied();
        self.until(|term| Some(term.token) > last).await
    }

    /// Waits until somebody says that it leads, and is as wished.
    pub(crate) async fn until(&mut self, wish: impl Fn(&Term) -> bool) -> Term {
        let told = async {
            loop {
                let beat = self.told.recv().await.expect("this test can send, too");
                let term = self.note(beat);
                if wish(&term) {
                    return term;
                }
            }
        };
        timeout(LONG, told).await.expect("somebody leads")
    }

    fn note(&mut self, beat: Beat) -> Term {
        let Beat { node, token, at } = beat;
        let term = self.terms.entry(token).or_insert(Term {
            node,
            token,
            from: at,
            to: at,
        });
        assert_eq!(term.node, node, "the token {token} belongs to one node");
        term.to = at;
        *term
    }

    /// The nodes whose processes have not ended.
    pub(crate) fn running(&mut self) -> Vec<usize> {
        let children = self.children.iter_mut().enumerate();
        let running =
            children.filter_map(|(node, child)| child.try_wait().unwrap().is_none().then_some(node));
        running.collect()
    }

    pub(crate) fn pid(&self, node: usize) -> u32 {
        self.children[node].id()
    }

    pub(crate) fn order(&mut self, node: usize, order: &str) {
        let input = self.children[node].stdin.as_mut().unwrap();
        writeln!(input, "{order}").unwrap();
    }

    pub(crate) fn signal(&self, node: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.children[node]), signal).unwrap();
    }

    /// Waits until the process of a node has ended in order.
    pub(crate) async fn ended(&mut self, node: usize) {
        let since = Instant::now();
        while self.children[node].try_wait().unwrap().is_none() {
            assert!(since.elapsed() < LONG, "node {node} does not end");
            sleep(Duration::from_millis(3)).await;
        }
        let status = self.children[node].wait().unwrap();
        assert!(status.success(), "node {node}: {status}");
    }

    /// The terms in the order in which they began, when all nodes have ended. Nobody leads at the same time
    /// as another, later leaders have larger tokens, and somebody leads again after `longest` at the latest.
    pub(crate) fn judge(&mut self, longest: Duration) -> Vec<Term> {
        self.leader();
        let mut terms: Vec<_> = self.terms.values().copied().collect();
        terms.sort_by_key(|term| term.from);
        for pair in terms.windows(2) {
            let (former, next) = (&pair[0], &pair[1]);
            assert!(former.to < next.from, "two leaders: {former:?}, {next:?}");
            assert!(former.token < next.token, "{former:?}, {next:?}");
            assert!(next.after(former) <= longest, "no leader: {former:?}, {next:?}");
        }
        terms
    }
}

impl Term {
    /// How long nobody led before.
    pub(crate) fn after(&self, former: &Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.from - former.to).unwrap_or(0))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
