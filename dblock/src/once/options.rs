//! The options of a run. This module alone says which values are allowed.

use std::time::{Duration, SystemTime};

use dblock_core::duration;
use uuid::Uuid;

use super::codec::Fingerprint;
use crate::LockError;
use crate::LockOptions;
use crate::runs::{OnCrash, Policy};

/// How a run is remembered and retried, and under which lock it runs.
///
/// ```
/// use std::time::Duration;
/// use dblock::{LockOptions, OnCrash, RunOptions};
///
/// let options = RunOptions::new(Duration::from_secs(24 * 3600), OnCrash::Stop)
///     .lock(LockOptions::new().wait(Duration::from_secs(5)))
///     .max_attempts(3)
///     .backoff(Duration::from_secs(10));
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct RunOptions {
    pub(super) lock: LockOptions,
    pub(super) remember: Duration,
    pub(super) policy: Policy,
    pub(super) fingerprint: Option<Result<Uuid, String>>,
    pub(super) max_result: usize,
    pub(super) tick: Option<SystemTime>,
}

impl RunOptions {
    /// The longest time that an outcome is remembered: ten years.
    pub const MAX_REMEMBER: Duration = duration::MAX_REMEMBER;

    /// The largest result that can be allowed: 4 MiB of JSON. A server refuses statements that are much
    /// larger.
    pub const MAX_RESULT: usize = 4 << 20;

    /// The largest result where none is given: 256 KiB of JSON.
    pub const DEFAULT_RESULT: usize = 256 << 10;

    /// Options of a run whose outcome is remembered for `remember`, which is from a second to ten years. A
    /// success is final for that time; then the next call runs the body anew. There is no fingerprint, no
    /// limit of attempts and no pause after a failure.
    pub fn new(remember: Duration, on_crash: OnCrash) -> Self {
        Self {
            lock: LockOptions::new(),
            remember,
            policy: Policy::new(on_crash),
            fingerprint: None,
            max_result: Self::DEFAULT_RESULT,
            tick: None,
        }
    }

    /// The lock under which it runs. Its `wait` is also how long a call waits for another one's result.
    /// `hold_min` is refused. Default: [`LockOptions::new`], which does not wait.
    pub fn lock(mut self, lock: LockOptions) -> Self {
        self.lock = lock;
        self
    }

    /// A value that tells this work from other work with the same key, such as the request that a client
    /// sent. A hash of its JSON is remembered. A call with another hash fails with
    /// [`RunError::KeyReused`](crate::RunError::KeyReused). Maps are hashed in the order of their keys. A new
    /// field changes the hash. Default: none, which fits every record.
    pub fn fingerprint(mut self, value: &(impl Fingerprint + ?Sized)) -> Self {
        self.fingerprint = Some(value.fingerprint());
        self
    }

    /// How often the body may begin, crashed attempts included. After that calls fail with
    /// [`RunError::GaveUp`](crate::RunError::GaveUp). At least 1. Default: no limit.
    ///
    /// The attempts are counted in the record. When the record is gone, they count from 1 again: after
    /// [`Resolution::RunAgain`](crate::Resolution::RunAgain),
    /// [`Admin::forget`](crate::Admin::forget), or the end of `remember`.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.policy.max_attempts = Some(attempts);
        self
    }

    /// The pause after an attempt that failed. It is doubled for each attempt before that one, also for one
    /// that crashed, up to a day. Calls before its end fail with
    /// [`RunError::NotYet`](crate::RunError::NotYet). At most 30 days. Default: none.
    pub fn backoff(mut self, backoff: Duration) -> Self {
        self.policy.backoff = backoff;
        self
    }

    /// The largest result that is kept, in bytes of JSON, from 1 to [`MAX_RESULT`](Self::MAX_RESULT).
    /// Default: [`DEFAULT_RESULT`](Self::DEFAULT_RESULT).
    ///
    /// [`Run::complete_in`](crate::Run::complete_in) refuses a larger one, before the work is committed.
    /// Elsewhere the work is done already, so the success is recorded without its result: the caller gets it,
    /// and later calls fail with [`RunError::NotStored`](crate::RunError::NotStored) instead of running
    /// again.
    pub fn max_result(mut self, bytes: usize) -> Self {
        self.max_result = bytes;
        self
    }

    /// The scheduled time of the work, which must be in its key too. A tick that is older than `remember` by
    /// the store's clock is refused with [`RunError::TickTooOld`](crate::RunError::TickTooOld), because
    /// nobody remembers whether it has run. A tick that lies ahead of that clock is remembered for longer, by
    /// as much. So no tick runs twice, however wrong a node's clock is. A run that begins reads its record
    /// and its row once more. Default: none, and nothing is refused.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::{Duration, SystemTime};
    /// use dblock::{LockError, LockManager, OnCrash, RunError, RunOptions};
    ///
    /// async fn nightly(locks: &LockManager, tick: SystemTime) -> Result<(), LockError> {
    ///     let day = tick.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() / 86_400;
    ///     let week = Duration::from_secs(7 * 86_400);
    ///     let options = RunOptions::new(week, OnCrash::Retry).tick(tick);
    ///     locks.run_once(format!("nightly:{day}"), options, async |_| Ok::<_, LockError>(())).await?;
    ///     Ok(())
    /// }
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// nightly(&locks, SystemTime::now()).await?;
    /// let old = nightly(&locks, SystemTime::now() - Duration::from_secs(8 * 86_400)).await;
    /// assert!(matches!(old, Err(LockError::Run { reason: RunError::TickTooOld { .. }, .. })));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub fn tick(mut self, tick: impl Into<SystemTime>) -> Self {
        self.tick = Some(tick.into());
        self
    }

    /// The function that runs, as in [`LockOptions::function`].
    pub fn function(mut self, path: &'static str) -> Self {
        self.lock = self.lock.function(path);
        self
    }

    /// Refuses options that cannot work, before anything is sent. Returns the fingerprint.
    pub(super) fn check(&self) -> Result<Option<Uuid>, LockError> {
        check_remember(self.remember)?;
        let refused = if self.lock.hold_min.is_some() {
            Some("a run takes no `hold_min`, because its lock ends together with its record; leave it out")
        } else if self.lock.limit.is_some() {
            Some("a run takes no `shared` and no `limit`, because its body runs alone; leave them out")
        } else if self.policy.max_attempts == Some(0) {
            Some("max_attempts is zero; give it at least 1")
        } else if self.policy.backoff > LockOptions::MAX_DURATION {
            Some("backoff is longer than 30 days, the longest allowed")
        } else if self.max_result == 0 || self.max_result > Self::MAX_RESULT {
            Some("max_result must be from 1 byte to 4 MiB")
        } else {
            None
        };
        if let Some(message) = refused {
            return Err(LockError::invalid(message));
        }
        self.lock.check()?;
        let fingerprint = self.fingerprint.clone().transpose();
        fingerprint.map_err(|error| {
            LockError::invalid(format!("the fingerprint cannot be written as JSON: {error}"))
        })
    }
}

/// Refuses a length of time that must be a mistake.
pub(super) fn check_remember(remember: Duration) -> Result<(), LockError> {
    if remember < Duration::from_secs(1) {
        return Err(LockError::invalid(format!(
            "remember is {remember:?}; an outcome that is forgotten within a second protects nothing: give it at least \
             as long as a call may be repeated, such as a day"
        )));
    }
    if remember > RunOptions::MAX_REMEMBER {
        return Err(LockError::invalid(
            "remember is longer than ten years, the longest allowed",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn run() -> RunOptions {
        RunOptions::new(DAY, OnCrash::Stop)
    }

    #[test]
    fn bad_options_are_refused() {
        assert_eq!(run().check().unwrap(), None);
        let unnamed = std::collections::BTreeMap::from([((), 1)]);
        for (bad, word) in [
            (RunOptions::new(Duration::ZERO, OnCrash::Stop), "remember"),
            (RunOptions::new(DAY * 4_000, OnCrash::Stop), "ten years"),
            (RunOptions::new(Duration::MAX, OnCrash::Stop), "ten years"),
            (run().max_attempts(0), "max_attempts"),
            (run().backoff(DAY * 31), "backoff"),
            (run().max_result(0), "max_result"),
            (run().max_result(usize::MAX), "max_result"),
            (run().lock(LockOptions::new().hold_min(DAY)), "hold_min"),
            (run().lock(LockOptions::new().limit(3)), "limit"),
            (run().lock(LockOptions::new().ttl(Duration::ZERO)), "ttl"),
            (run().fingerprint(&unnamed), "fingerprint"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(
                matches!(error, LockError::Invalid { .. }) && error.to_string().contains(word),
                "{error}"
            );
        }
    }
}
