//! Work that is to be done once: a row in a table, written under `run_once`. If the first caller fails or dies,
//! another one writes it. The table itself allows duplicates.

use std::panic::panic_any;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use dblock::fence::FenceConnection;
use dblock::{Key, LockError, LockOptions, OnCrash, Run, RunOptions, begin};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Database, Executor, IntoArguments, Pool, Transaction};

use crate::history::{Event, Journal};
use crate::payment::Failure;
use crate::worker::Planned;

/// The keys of runs begin with this.
pub(crate) const PREFIX: &str = "once";

/// The run of a full key.
pub(crate) fn run_of(key: &Key) -> anyhow::Result<u64> {
    let number = key.as_str().rsplit(PREFIX).next();
    let number = number.and_then(|number| number.parse().ok());
    number.with_context(|| format!("{key} is not the key of a run"))
}

/// How many attempts `on_crash = "retry"` allows.
pub(crate) const MOST_ATTEMPTS: u32 = 6;

/// How long a body that returns at a given moment blocks its thread before.
const AT_ONCE: Duration = Duration::from_millis(30);

/// Longer than any run of the torture.
const REMEMBERED: Duration = Duration::from_hours(24 * 30);

/// The order of the work and its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The record is written with the work.
    CompleteIn,
    /// The record is written after the work. After a crash the next caller begins anew.
    Retry,
    /// The record is written after the work. After a crash nobody begins anew.
    Stop,
}

impl Kind {
    /// The kind of a run, the same for all processes.
    pub(crate) fn of(run: u64) -> Self {
        match run % 3 {
            0 => Self::CompleteIn,
            1 => Self::Retry,
            _ => Self::Stop,
        }
    }
}

/// The line that a process prints when it waits to be killed.
pub(crate) const STALLED: &str = "stalled";

/// What an attempt does at each step.
#[derive(Debug)]
pub(crate) struct Steps<'a> {
    pub(crate) journal: &'a Journal,
    /// The step at which this process is to be killed.
    pub(crate) last: &'a Mutex<Option<Step>>,
}

/// A point in an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    BeforeTheWork,
    AfterTheWork,
    BeforeTheCommit,
    AfterTheCommit,
}

impl Step {
    pub(crate) const ALL: [Self; 4] = [
        Self::BeforeTheWork,
        Self::AfterTheWork,
        Self::BeforeTheCommit,
        Self::AfterTheCommit,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeTheWork => "before the work",
            Self::AfterTheWork => "after the work",
            Self::BeforeTheCommit => "before the commit",
            Self::AfterTheCommit => "after the commit",
        }
    }
}

/// A lock of the same key around a call of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around {
    pub(crate) renew: bool,
    pub(crate) max_hold: Option<Duration>,
    /// If the body is to return when the lease ends for its process: how long after the entry that is.
    pub(crate) ends: Option<Duration>,
}

/// A task that shares the lock of a run, and may outlast it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child {
    /// How long after the entry into the outermost lock the child is spawned.
    pub(crate) after: Duration,
    /// How long the child blocks its thread.
    pub(crate) blocks: Option<Duration>,
    pub(crate) length: Duration,
}

/// A call of a run.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Its number in its process.
    pub(crate) call: u64,
    pub(crate) run: u64,
    /// The call has a scheduled time.
    pub(crate) ticks: bool,
    pub(crate) backoff: Duration,
    pub(crate) around: Option<Around>,
    pub(crate) child: Option<Child>,
    /// The body returns at this moment, and blocks its thread shortly before.
    pub(crate) returns: Option<tokio::time::Instant>,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    /// The body fails before it has done anything.
    pub(crate) fails: bool,
    /// How long the body waits at each step.
    pub(crate) delays: [Duration; 4],
}

impl Work {
    /// A call without any trouble. Its number is that of the run.
    pub(crate) fn plain(run: u64) -> Self {
        Self {
            call: run,
            run,
            ticks: false,
            backoff: Duration::ZERO,
            around: None,
            child: None,
            returns: None,
            ttl: Duration::from_secs(5),
            wait: Duration::from_secs(10),
            fails: false,
            delays: [Duration::ZERO; 4],
        }
    }

    pub(crate) fn key(&self) -> String {
        format!("{PREFIX}{}", self.run)
    }

    pub(crate) fn options(&self) -> RunOptions {
        let on_crash = match Kind::of(self.run) {
            Kind::CompleteIn => OnCrash::CompleteIn,
            Kind::Retry => OnCrash::Retry,
            Kind::Stop => OnCrash::Stop,
        };
        let lock = LockOptions::new().ttl(self.ttl).wait(self.wait);
        let mut options = RunOptions::new(REMEMBERED, on_crash)
            .lock(lock)
            .backoff(self.backoff);
        if self.ticks {
            options = options.tick(SystemTime::now());
        }
        if Kind::of(self.run) == Kind::Retry {
            options.max_attempts(MOST_ATTEMPTS)
        } else {
            options
        }
    }

    /// Writes that an attempt has reached a step, and waits there as long as planned.
    async fn reach(&self, step: Step, run: &Run, steps: &Steps<'_>) {
        steps.journal.write(Event::OnceStep {
            call: self.call,
            run: self.run,
            attempt: run.attempt(),
            step,
        });
        let ends_here = *steps.last.lock().expect("nobody panics with it") == Some(step);
        if ends_here {
            println!("{STALLED}");
            std::future::pending::<()>().await;
        }
        let delay = self.delays[step as usize];
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// The body. Its result is the number of the attempt.
    pub(crate) async fn attempt<DB>(
        &self,
        pool: &Pool<DB>,
        run: &Run,
        steps: &Steps<'_>,
    ) -> Result<u32, Failure>
    where
        DB: Database,
        Transaction<'static, DB>: FenceConnection,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        DB::Arguments: IntoArguments<DB>,
    {
        let kind = Kind::of(self.run);
        self.reach(Step::BeforeTheWork, run, steps).await;
        if self.fails {
            return Err(Failure::Planned);
        }
        let attempt = run.attempt();
        let mut tx = begin(pool).await?;
        let insert = format!("INSERT INTO torture_once VALUES ({}, {attempt})", self.run);
        sqlx::query(AssertSqlSafe(insert)).execute(&mut *tx).await?;
        self.reach(Step::AfterTheWork, run, steps).await;
        if kind == Kind::CompleteIn {
            match run.complete_in(&mut tx, &attempt).await {
                // Refused, because it would free the key beside the child.
                Err(LockError::Invalid { .. }) if self.child.is_some() => return Err(Failure::Planned),
                completed => completed?,
            }
        }
        self.reach(Step::BeforeTheCommit, run, steps).await;
        match tx.commit().await {
            // The work may have been committed. An error of the body would deny that; a panic leaves it open.
            Err(_) if kind == Kind::Stop => panic_any(Planned),
            committed => committed?,
        }
        self.reach(Step::AfterTheCommit, run, steps).await;
        if let Some(returns) = self.returns {
            tokio::time::sleep_until(returns - AT_ONCE).await;
            std::thread::sleep(returns.saturating_duration_since(tokio::time::Instant::now()));
        }
        Ok(attempt)
    }
}

/// The answer to a call of `run_once`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The result of this attempt, made by this call or by another.
    Succeeded(u32),
    /// The body failed.
    Failed,
    /// Nobody may begin: a run is in doubt, or its attempts are used up.
    Refused,
    /// The backoff after a failure is not over.
    NotYet,
    /// Busy, lost, or a store error; the outcome may be unknown.
    Unknown,
    /// Dropped, or its body panicked.
    Cut,
    /// An error that nothing explains.
    Other(String),
}

/// A run at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) run: u64,
    /// The content of its record; `None` where there is none.
    pub(crate) record: Option<Record>,
    /// The attempt of every row of work.
    pub(crate) done_by: Vec<u32>,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// As in the table.
    pub(crate) state: String,
    pub(crate) attempts: u32,
    pub(crate) result: Option<u32>,
}
