//! Jobs on a schedule, on one node of many. Every node has the same runner; each time of the schedule is a
//! *slot*, and each slot runs once: another node takes over when the first one dies, and a node whose clock
//! is late finds the slot done.
//!
//! `cargo run --example jobs` shows it with several processes: start it twice.

use std::time::{Duration, SystemTime};

use dblock::{LockError, LockManager, LockOptions, OnCrash, Once, RunOptions};

/// How long a slot is remembered: longer than any node's clock is wrong, and longer than a node may be
/// paused.
const REMEMBER: Duration = Duration::from_hours(7 * 24);

/// Why a slot was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// The lock or its records failed, or other attempts have used up the slot.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The job itself failed.
    #[error("the job failed: {0}")]
    Job(String),
}

/// A job that runs at every multiple of a period.
#[derive(Debug, Clone)]
pub struct Schedule {
    locks: LockManager,
    name: &'static str,
    every: Duration,
}

impl Schedule {
    /// The job `name`, every `every`: all nodes must agree on both.
    pub fn new(locks: LockManager, name: &'static str, every: Duration) -> Self {
        Self { locks, name, every }
    }

    /// Runs the job at its times until the manager shuts down.
    ///
    /// A failure ends nothing: it is told to the log, and the next slot comes.
    pub async fn run(&self, job: impl AsyncFn(u64) -> Result<(), JobError>) {
        loop {
            let slot = self.next_slot().await;
            match self.slot(slot, &job).await {
                Ok(Once::Ran(())) => tracing::info!(job = self.name, slot, "done"),
                Ok(Once::Replayed(())) => tracing::info!(job = self.name, slot, "another node has done it"),
                Err(JobError::Lock(error)) if error.is_shutdown() => return,
                Err(error) => tracing::error!(job = self.name, slot, %error, "failed"),
            }
        }
    }

    /// Runs one slot, here or elsewhere, and returns when it is done. A crash or a failure is tried again by
    /// whoever waits, three times in all.
    ///
    /// # Errors
    /// Those of the job, and those of [`LockManager::run_once`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the job, and another node runs the slot again.
    pub async fn slot(
        &self,
        slot: u64,
        job: impl AsyncFn(u64) -> Result<(), JobError>,
    ) -> Result<Once<()>, JobError> {
        let options = RunOptions::new(REMEMBER, OnCrash::Retry)
            .max_attempts(3)
            .lock(LockOptions::new().ttl(Duration::from_secs(10)).wait(self.every));
        let key = format!("job:{}:{slot}", self.name);
        self.locks
            .run_once(key, options, async |_run| job(slot).await)
            .await
    }

    /// Waits for the next slot: the number of periods since 1970.
    async fn next_slot(&self) -> u64 {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let next = since_1970.as_nanos() / self.every.as_nanos() + 1;
        let slot = u64::try_from(next).unwrap_or(u64::MAX);
        let at = self.every.as_nanos() * next - since_1970.as_nanos();
        tokio::time::sleep(Duration::from_nanos(u64::try_from(at).unwrap_or(u64::MAX))).await;
        slot
    }
}
