//! Calls of `run_once`. All processes call the same few runs, and each run for some seconds only.

use std::collections::BTreeMap;
use std::future::pending;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::RecordFilter;
use dblock::{LockError, LockManager, Run, RunError};
use fastrand::Rng;
use futures_util::FutureExt as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::Worker;
use super::call::Origin;
use super::mix::Plan;
use super::section::Planned;
use crate::bank::Bank;
use crate::history::{Event, Form, Journal, MS, now};
use crate::once::{Answer, Around, Child, End, Kind, PREFIX, Record, Steps, Work, run_of};
use crate::payment::Failure;

/// The time from one new run to the next.
const EVERY: i64 = 150 * MS;

/// How many runs are called at a time: so many that each is called for longer than the lease of a crashed
/// caller. Half of the calls are for the newest, which have not succeeded yet.
const CALLED: u64 = 40;
const NEWEST: u64 = 4;

/// A call that takes longer is dropped.
const TIMEOUT: Duration = Duration::from_secs(12);

/// Makes a call, and returns its answer.
async fn call(
    locks: &LockManager,
    work: &Work,
    body: impl AsyncFnOnce(Run) -> Result<u32, Failure>,
) -> Answer {
    match locks.run_once(work.key(), work.options(), body).await {
        Ok(once) => Answer::Succeeded(once.into_inner()),
        Err(Failure::Database | Failure::Planned) => Answer::Failed,
        Err(Failure::Lock(LockError::Run { reason, .. })) => match reason {
            RunError::InDoubt { .. } | RunError::GaveUp { .. } => Answer::Refused,
            RunError::NotYet { .. } => Answer::NotYet,
            RunError::Unrecorded { .. } => Answer::Unknown,
            other => Answer::Other(other.to_string()),
        },
        Err(Failure::Lock(LockError::Invalid { message, .. })) => Answer::Other(message),
        Err(Failure::Lock(_)) => Answer::Unknown,
    }
}

fn ask(journal: &Journal, work: &Work) {
    journal.write(Event::OnceAsk {
        call: work.call,
        run: work.run,
        ttl_ms: u32::try_from(work.ttl.as_millis()).unwrap_or(u32::MAX),
        wait_ms: u32::try_from(work.wait.as_millis() * if work.around.is_some() { 2 } else { 1 }).ok(),
        renews: work
            .around
            .is_none_or(|around| around.renew && around.max_hold.is_none()),
    });
}

/// Calls every run once more, now that nothing is wrong, and returns how each ended.
pub(crate) async fn finish_runs(
    locks: &LockManager,
    bank: &Bank,
    journal: &Journal,
) -> anyhow::Result<Vec<End>> {
    let last = Mutex::default();
    let steps = Steps { journal, last: &last };
    let filter = RecordFilter::new().prefix(PREFIX).limit(1_000_000);
    for record in locks.admin().records(filter.clone()).await? {
        let run = run_of(&record.key)?;
        let work = Work::plain(run);
        ask(journal, &work);
        let answer = call(locks, &work, async |run| {
            bank.work_once(&work, &run, &steps).await
        })
        .await;
        let call = work.call;
        journal.write(Event::OnceAnswer { call, run, answer });
    }
    let mut done: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
    for (run, attempt) in bank.done_once().await? {
        done.entry(u64::try_from(run)?)
            .or_default()
            .push(u32::try_from(attempt)?);
    }
    let mut ends = Vec::new();
    for record in locks.admin().records(filter).await? {
        let run = run_of(&record.key)?;
        let found = locks.admin().record(Work::plain(run).key()).await?;
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
        loop {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            let work = draw(&mut rng, bank, call);
            let length = match rng.u8(..16) {
                // Before its body, mostly.
                0 | 1 => Duration::from_micros(rng.u64(..6_000)),
                2 => Duration::from_millis(rng.u64(..400)),
                _ => TIMEOUT,
            };
            ask(&self.journal, &work);
            let answer = AssertUnwindSafe(Box::pin(self.call_run(bank, &work))).catch_unwind();
            let answer = match timeout(length, answer).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(panic)) if !panic.is::<Planned>() => resume_unwind(panic),
                Ok(Err(_)) | Err(_) => Answer::Cut,
            };
            let run = work.run;
            self.journal.write(Event::OnceAnswer { call, run, answer });
            tokio::time::sleep(Duration::from_millis(rng.u64(..150))).await;
        }
    }

    /// Makes a call, if planned under another lock of its key.
    async fn call_run(self: &Arc<Self>, bank: &Bank, work: &Work) -> Answer {
        let Some(around) = work.around else {
            return Box::pin(self.call_run_at(bank, work, Origin::Outermost)).await;
        };
        let mut answer = Answer::Unknown;
        let plan = Plan::around(work, around);
        self.call_with(&plan, async |number| {
            let returns = around.ends.map(|ends| Instant::now() + ends);
            let work = Work {
                returns,
                ..work.clone()
            };
            answer = Box::pin(self.call_run_at(bank, &work, Origin::Within(number))).await;
        })
        .await;
        answer
    }

    async fn call_run_at(self: &Arc<Self>, bank: &Bank, work: &Work, origin: Origin) -> Answer {
        let steps = Steps {
            journal: &self.journal,
            last: &self.last_step,
        };
        let plan = Plan::of_run(work);
        let began = Instant::now();
        let with_child = async |run: &Run, origin| {
            let child = async {
                if let Some(child) = work.child {
                    sleep_until(began + child.after).await;
                    self.inherit(&Plan::of_child(work, child), origin);
                }
                pending::<()>().await;
            };
            tokio::select! {
                biased;
                done = bank.work_once(work, run, &steps) => done,
                () = child => unreachable!("it never ends"),
            }
        };
        let body = async |run: Run| {
            if Kind::of(work.run) == Kind::CompleteIn {
                // No section: the body's commit frees the key before the body ends.
                return with_child(&run, origin).await;
            }
            let body = async |number| with_child(&run, Origin::Within(number)).await;
            self.body_of_run(&plan, origin, body).await
        };
        call(&self.locks, work, body).await
    }
}

impl Plan {
    /// The lock around a call of a run.
    fn around(work: &Work, around: Around) -> Self {
        Self {
            wait: work.wait,
            renew: around.renew,
            max_hold: around.max_hold,
            ..Self::bare(work.key(), Form::Run, work.ttl)
        }
    }

    /// The body of a run.
    fn of_run(work: &Work) -> Self {
        Self::bare(work.key(), Form::Once, work.ttl)
    }

    /// A task that shares the lock of a run.
    fn of_child(work: &Work, child: Child) -> Self {
        let mut plan = Self::bare(work.key(), Form::Inherit, work.ttl);
        plan.section.blocks = child.blocks;
        plan.section.length = child.length;
        plan
    }
}

fn draw(rng: &mut Rng, bank: &Bank, call: u64) -> Work {
    let newest = u64::try_from(now() / EVERY).expect("the clock is ahead of zero");
    let millis = |rng: &mut Rng, range: Range<u64>| Duration::from_millis(rng.u64(range));
    let mut ttl = millis(rng, 1_000..3_000);
    let around = (rng.u8(..4) == 0).then(|| match rng.u8(..3) {
        0 => Around {
            renew: true,
            max_hold: None,
            ends: None,
        },
        // The lease runs out: for its process a margin earlier than in the store.
        1 => Around {
            renew: false,
            max_hold: None,
            ends: Some(ttl.saturating_sub((ttl / 20).max(Duration::from_millis(50))) + millis(rng, 0..40)),
        },
        _ => {
            ttl = Duration::from_secs(3);
            let max_hold = millis(rng, 400..1_000);
            Around {
                renew: true,
                max_hold: Some(max_hold),
                ends: Some(max_hold + millis(rng, 0..40)),
            }
        }
    });
    let ends = around.and_then(|around| around.ends);
    let child = (rng.u8(..if ends.is_some() { 2 } else { 5 }) == 0).then(|| match ends {
        Some(ends) => Child {
            after: ends.saturating_sub(millis(rng, 20..150)),
            blocks: Some(millis(rng, 100..800)),
            length: Duration::ZERO,
        },
        None => Child {
            after: millis(rng, 0..300),
            blocks: None,
            length: millis(rng, 0..1_000),
        },
    });
    let mut delays = [Duration::ZERO; 4];
    for (step, delay) in delays.iter_mut().enumerate() {
        // On SQLite the work locks the file until its commit.
        let short = bank.has_one_writer() && (1..=2).contains(&step) && rng.u8(..10) != 0;
        *delay = millis(rng, 0..if short || ends.is_some() { 10 } else { 200 });
    }
    let called = if rng.bool() { NEWEST } else { CALLED };
    Work {
        call,
        run: newest - rng.u64(..called),
        ticks: rng.u8(..3) == 0,
        backoff: if rng.bool() {
            millis(rng, 0..300)
        } else {
            Duration::ZERO
        },
        around,
        child,
        returns: None,
        ttl,
        wait: millis(rng, 0..3_000),
        fails: rng.u8(..8) == 0,
        delays,
    }
}
