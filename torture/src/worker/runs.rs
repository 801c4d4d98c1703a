//! Calls of `run_once`: all processes call the same few runs at a time, and each for some seconds only.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::RecordFilter;
use dblock::{LockError, LockManager, RunError};
use fastrand::Rng;
use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::Worker;
use super::section::Planned;
use crate::bank::Bank;
use crate::history::{Event, Journal, MS, now};
use crate::once::{Answer, End, Failure, PREFIX, Record, Steps, Work, run_of};

/// How often a new run can be called.
const EVERY: i64 = 150 * MS;

/// How many runs are called at a time: each for longer than the leases of those who crash in it. Half of the
/// calls are for the newest, which have not succeeded yet.
const CALLED: u64 = 40;
const NEWEST: u64 = 4;

/// How long a call may take in all. Then it is dropped.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Makes a call, and says how it was answered.
async fn call(locks: &LockManager, bank: &Bank, steps: &Steps<'_>, work: &Work) -> Answer {
    let body = async |run| bank.work_once(work, &run, steps).await;
    match locks.run_once(work.key(), work.options(), body).await {
        Ok(once) => Answer::Succeeded(once.into_inner()),
        Err(Failure::NotDone) => Answer::Failed,
        Err(Failure::Lock(LockError::Run { reason, .. })) => match reason {
            RunError::InDoubt { .. } | RunError::GaveUp { .. } => Answer::Refused,
            RunError::Unrecorded { .. } => Answer::Unknown,
            other => Answer::Other(other.to_string()),
        },
        Err(Failure::Lock(LockError::Invalid { message, .. })) => Answer::Other(message),
        Err(Failure::Lock(_)) => Answer::Unknown,
    }
}

/// Calls every run once more, now that nothing is wrong, and says what is left of it.
pub(crate) async fn finish_runs(
    locks: &LockManager,
    bank: &Bank,
    journal: &Journal,
) -> anyhow::Result<Vec<End>> {
    let last = Mutex::default();
    let steps = Steps { journal, last: &last };
    let filter = RecordFilter::new().prefix(PREFIX).limit(1_000_000);
    for record in locks.records(filter.clone()).await? {
        let run = run_of(&record.key)?;
        let answer = call(locks, bank, &steps, &Work::plain(run)).await;
        journal.write(Event::OnceAnswer { run, answer });
    }
    let mut done: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (run, attempt) in bank.done_once().await? {
        done.entry(u64::try_from(run)?)
            .or_default()
            .push(u32::try_from(attempt)?);
    }
    let mut ends = Vec::new();
    for record in locks.records(filter).await? {
        let run = run_of(&record.key)?;
        let found = locks.record(Work::plain(run).key()).await?;
        ends.push(End {
            run,
            record: Some(Record {
                state: record.state.as_str().to_owned(),
                attempts: record.attempts,
                result: found.and_then(|found| found.result),
            }),
            done_by: done.remove(&run).unwrap_or_default(),
        });
    }
    let unrecorded = done.into_iter().map(|(run, done_by)| End {
        run,
        record: None,
        done_by,
    });
    ends.extend(unrecorded);
    Ok(ends)
}

impl Worker {
    /// Calls runs until it is dropped.
    pub(crate) async fn go_on_with_runs(self: Arc<Self>, mut rng: Rng) {
        let Some(bank) = &self.bank else { return };
        let steps = Steps {
            journal: &self.journal,
            last: &self.last_step,
        };
        loop {
            let work = draw(&mut rng, bank);
            let length = if rng.u8(..8) == 0 {
                Duration::from_millis(rng.u64(..400))
            } else {
                TIMEOUT
            };
            let call = AssertUnwindSafe(call(&self.locks, bank, &steps, &work)).catch_unwind();
            let answer = match timeout(length, call).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(panic)) if !panic.is::<Planned>() => resume_unwind(panic),
                Ok(Err(_)) | Err(_) => Answer::Cut,
            };
            let run = work.run;
            self.journal.write(Event::OnceAnswer { run, answer });
            tokio::time::sleep(Duration::from_millis(rng.u64(..150))).await;
        }
    }
}

fn draw(rng: &mut Rng, bank: &Bank) -> Work {
    let newest = u64::try_from(now() / EVERY).expect("the clock is ahead of zero");
    let mut stays = [Duration::ZERO; 4];
    for (step, stay) in stays.iter_mut().enumerate() {
        // On SQLite the work keeps everybody else out of the file until its commit.
        let short = bank.has_one_writer() && (1..=2).contains(&step) && rng.u8(..10) != 0;
        *stay = Duration::from_millis(rng.u64(..if short { 10 } else { 200 }));
    }
    let called = if rng.bool() { NEWEST } else { CALLED };
    Work {
        run: newest - rng.u64(..called),
        ttl: Duration::from_millis(rng.u64(1_000..3_000)),
        wait: Duration::from_millis(rng.u64(..3_000)),
        fails: rng.u8(..8) == 0,
        stays,
    }
}
