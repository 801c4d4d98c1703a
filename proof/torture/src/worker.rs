//! A process of the run: its tasks take locks in every form, work under them, and leave or are stopped in
//! every way.
//!
//! - [`keys`] names the keys; [`mix`] draws the plan of a call; [`call`] makes the call and writes its
//!   beginning and its end.
//! - [`section`] is the work under the lock; [`transaction`] that of a lock that ends with a transaction.
//! - [`tickets`] makes tickets and adopts them.
//! - [`runs`] makes calls of `run_once`; [`trouble`] delays and loses the writes of their records.

mod call;
mod keys;
mod mix;
mod process;
mod runs;
mod section;
mod tickets;
mod transaction;
mod trouble;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{Key, LockManager};
use fastrand::Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bank::Bank;
use crate::history::{Event, Journal};
use crate::once::Step;
use crate::process_id::ProcessId;
use crate::resource::ResourceClient;

use call::Origin;
pub(crate) use keys::{TICKET, key_names};
pub(crate) use mix::{LONGEST_TTL, Plan};
#[cfg(test)]
pub(crate) use process::watch_for_stalls;
pub(crate) use process::{Arguments, main};
pub(crate) use runs::finish_runs;
pub(crate) use section::Planned;
pub(crate) use transaction::InTransaction;
pub(crate) use trouble::LATEST_WRITE;

/// How many tasks of a process call `run_once`.
const RUNS: u64 = 2;

/// One process; in the checker's own tests, one manager.
#[derive(Debug)]
pub(crate) struct Worker {
    process: ProcessId,
    locks: LockManager,
    journal: Journal,
    folder: PathBuf,
    resource: ResourceClient,
    /// `None` for a store without a database.
    bank: Option<Bank>,
    /// How many keys there are besides the accounts'.
    keys: usize,
    calls: AtomicU64,
    /// The step of a run at which this process is to be killed.
    last_step: Mutex<Option<Step>>,
    /// The next transaction with which a lock ends waits for the kill of this process.
    stalls_in_transaction: AtomicBool,
}

impl Worker {
    pub(crate) fn new(
        process: ProcessId,
        locks: LockManager,
        folder: &Path,
        resource: ResourceClient,
        bank: Option<Bank>,
        keys: usize,
    ) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            process,
            locks,
            journal: Journal::create(&folder.join(process.file()))?,
            folder: folder.to_owned(),
            resource,
            bank,
            keys,
            calls: AtomicU64::new(1),
            last_step: Mutex::default(),
            stalls_in_transaction: AtomicBool::new(false),
        }))
    }

    /// Works with so many tasks until `stop`. Then drops every task where it is: its locks must be released
    /// all the same.
    pub(crate) async fn work(self: &Arc<Self>, seed: u64, tasks: u64, stop: CancellationToken) {
        let mut running = JoinSet::new();
        let rng = |number| Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(number));
        let until = || (Arc::clone(self), stop.clone());
        for task in 0..tasks {
            let ((worker, stop), rng) = (until(), rng(task));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on(rng)).await });
        }
        let mut specials = vec![(997, Special::Long), (998, Special::Job)];
        if self.locks.capabilities().shares {
            specials.extend((0..SHARING).map(|number| (800 + number, Special::Sharing)));
            specials.extend((0..SHARING).map(|number| (850 + number, Special::Limited)));
        }
        for (number, special) in specials {
            let ((worker, stop), rng) = (until(), rng(number));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on_with(special, rng)).await });
        }
        for (number, gives) in [(700, true), (701, true), (750, false), (751, false)] {
            let ((worker, stop), rng) = (until(), rng(number));
            running.spawn(async move {
                stop.run_until_cancelled(worker.go_on_with_tickets(rng, gives))
                    .await
            });
        }
        for number in 900..900 + RUNS {
            let ((worker, stop), rng) = (until(), rng(number));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on_with_runs(rng)).await });
        }
        let ((worker, stop), rng) = (until(), rng(999));
        // A thread of its own, so that a section that blocks it stops no other task.
        let blocking = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime for one task");
            runtime.block_on(stop.run_until_cancelled(worker.go_on_with(Special::Blocking, rng)));
        });
        while let Some(ended) = running.join_next().await {
            ended.expect("a task catches what panics in it");
        }
        blocking.await.expect("a task catches what panics in it");
    }

    fn troubled(&self, key: &Key, begins: bool) {
        let key = key.as_str().to_owned();
        self.journal.write(Event::Troubled { key, begins });
    }

    async fn go_on(self: &Arc<Self>, mut rng: Rng) {
        loop {
            let bank = self.bank.as_ref();
            // A transaction that writes would keep every lock of SQLite waiting.
            let transactions = bank.is_some_and(|bank| !bank.has_one_writer());
            let plan = mix::plan(&mut rng, self.keys, bank.is_some(), transactions);
            let plan = plan.no_shorter_than(self.locks.capabilities().shortest_ttl);
            self.attempt(&plan, Origin::Outermost).await;
            // Sometimes none, so that the key is asked for again before others have noticed the release.
            let pause = if rng.u8(..3) == 0 { 0 } else { rng.u64(..60) };
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    async fn go_on_with(self: &Arc<Self>, special: Special, mut rng: Rng) {
        loop {
            let (pause, plan) = match special {
                Special::Blocking => (rng.u64(1_000..8_000), mix::blocking(&mut rng, self.keys)),
                Special::Long => (rng.u64(..500), mix::long(&mut rng)),
                Special::Job => (rng.u64(200..1_000), mix::job(&mut rng)),
                Special::Sharing => (rng.u64(..30), mix::sharing(&mut rng)),
                Special::Limited => (rng.u64(..30), mix::limited(&mut rng)),
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let plan = plan.no_shorter_than(self.locks.capabilities().shortest_ttl);
            self.attempt(&plan, Origin::Outermost).await;
        }
    }
}

/// How many tasks of each process share a key, and how many share one with a limit.
const SHARING: u64 = 3;

/// The work for which each process has tasks of their own.
#[derive(Debug, Clone, Copy)]
enum Special {
    Blocking,
    Long,
    Job,
    Sharing,
    Limited,
}
