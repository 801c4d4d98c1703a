//! Runs that are remembered, on every store. The lock's row is read on a connection of the test's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::large_futures, reason = "bodies are nested on purpose")]

mod begun;
mod complete;
mod crashes;
mod cut;
mod in_time;
mod kills;
mod mortal;
mod outcomes;
mod records;
mod ticks;
mod turns;
mod under;
mod waiting;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::store::{Record, RecordState};
use dblock::{LockError, LockManager, LockOptions, OnCrash, Once, RunError, RunOptions};

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// The shortest ttl.
const SHORT: Duration = Duration::from_secs(1);

const KEY: &str = "pay:42";

/// The error of the bodies of these tests, besides the lock's errors.
#[derive(Debug)]
enum PayError {
    Lock(LockError),
    Declined,
}

impl std::fmt::Display for PayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Declined => f.write_str("the card was declined"),
        }
    }
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// Remembered for as long as the test runs, under a lock that does not run out.
fn run(on_crash: OnCrash) -> RunOptions {
    RunOptions::new(Duration::from_hours(1), on_crash).lock(LockOptions::new().ttl(LONG))
}

/// Counts how often a body has run.
#[derive(Debug, Default)]
struct Effects(AtomicU32);

impl Effects {
    fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

/// Runs a body that counts and returns the count.
async fn pay(locks: &LockManager, options: RunOptions, effects: &Effects) -> Result<Once<u32>, PayError> {
    locks.run_once(KEY, options, async |_| Ok(effects.add())).await
}

/// Runs a body that fails.
async fn decline(locks: &LockManager, options: RunOptions) -> PayError {
    let declined = locks.run_once(KEY, options, async |_| Err::<(), _>(PayError::Declined));
    declined.await.unwrap_err()
}

/// Why nothing ran.
#[track_caller]
fn reason<T: std::fmt::Debug>(answer: Result<T, PayError>) -> RunError {
    match answer {
        Err(PayError::Lock(LockError::Run { key, reason, .. })) => {
            assert_eq!(key.as_str(), KEY);
            reason
        }
        other => panic!("{other:?}"),
    }
}

async fn record(locks: &LockManager) -> Record {
    let found = locks.admin().record::<serde_json::Value>(KEY).await.unwrap();
    found.expect("there is a record").record
}

async fn state(locks: &LockManager) -> (RecordState, u32) {
    let record = record(locks).await;
    (record.state, record.attempts)
}
