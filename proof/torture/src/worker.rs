//! A process of the run: tasks that take locks in every way there is, stay, and leave or are
//! stopped in every way there is.
//!
//! - [`keys`] says what is fought for; [`mix`] decides what a call does; [`call`] makes it and writes down
//!   that it is made and how it ended.
//! - [`section`] is what happens under the lock.
//! - [`runs`] calls what is to be done once; [`trouble`] is what befalls its records.

mod call;
mod keys;
mod mix;
mod process;
mod runs;
mod section;
mod trouble;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{Key, LockManager};
use fastrand::Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::bank::Bank;
use crate::history::{Event, Journal};
use crate::once::Step;
use crate::resource::ResourceClient;
use crate::seat::Life;

use call::Place;
pub(crate) use keys::key_names;
pub(crate) use mix::LONGEST_TTL;
#[cfg(test)]
pub(crate) use process::watch_for_stalls;
pub(crate) use process::{Arguments, main};
pub(crate) use runs::finish_runs;
pub(crate) use section::Planned;
pub(crate) use trouble::LATEST_WRITE;

/// How many tasks of a process do work once.
const RUNS: u64 = 2;

/// One process, or in the checker's own tests what stands for one.
#[derive(Debug)]
pub(crate) struct Worker {
    life: Life,
    locks: LockManager,
    journal: Journal,
    resource: ResourceClient,
    /// `None` for a store without a database.
    bank: Option<Bank>,
    /// How many keys are fought for, besides the accounts'.
    keys: usize,
    calls: AtomicU64,
    /// The step of a run at which this process is to be killed.
    last_step: Mutex<Option<Step>>,
}

impl Worker {
    pub(crate) fn new(
        life: Life,
        locks: LockManager,
        folder: &Path,
        resource: ResourceClient,
        bank: Option<Bank>,
        keys: usize,
    ) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            life,
            locks,
            journal: Journal::create(&folder.join(life.file()))?,
            resource,
            bank,
            keys,
            calls: AtomicU64::new(1),
            last_step: Mutex::default(),
        }))
    }

    /// Works with so many tasks until `stop`. Then every task is dropped where it is: what it has must be
    /// released all the same.
    pub(crate) async fn work(self: &Arc<Self>, seed: u64, tasks: u64, stop: CancellationToken) {
        let mut running = JoinSet::new();
        for task in 0..tasks {
            let (worker, stop) = (Arc::clone(self), stop.clone());
            let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(task));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on(rng)).await });
        }
        for (number, special) in [(997, Special::Long), (998, Special::Job)] {
            let (worker, stop) = (Arc::clone(self), stop.clone());
            let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(number));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on_with(special, rng)).await });
        }
        for number in 0..RUNS {
            let (worker, stop) = (Arc::clone(self), stop.clone());
            let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(900 + number));
            running.spawn(async move { stop.run_until_cancelled(worker.go_on_with_runs(rng)).await });
        }
        let (worker, stop) = (Arc::clone(self), stop.clone());
        let rng = Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(999));
        // Sections that block their thread have one of their own, so that they stop nobody else.
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

    /// Writes down that an outcome, or what takes a run back, may not arrive.
    fn troubled(&self, key: &Key, begins: bool) {
        let key = key.as_str().to_owned();
        self.journal.write(Event::Troubled { key, begins });
    }

    async fn go_on(self: &Arc<Self>, mut rng: Rng) {
        loop {
            let plan = mix::plan(&mut rng, self.keys, self.bank.is_some());
            let plan = plan.no_shorter_than(self.locks.capabilities().shortest_ttl);
            self.attempt(&plan, Place::Outermost).await;
            // Sometimes at once, so that the key is asked for again before others have noticed.
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
            };
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let plan = plan.no_shorter_than(self.locks.capabilities().shortest_ttl);
            self.attempt(&plan, Place::Outermost).await;
        }
    }
}

/// The work for which each process has one task.
#[derive(Debug, Clone, Copy)]
enum Special {
    Blocking,
    Long,
    Job,
}
