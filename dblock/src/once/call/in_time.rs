//! How long a call may take before its body runs: what is left of its `wait`, and under the lock no longer
//! than the lease.

use std::pin::{Pin, pin};
use std::time::Duration;

use super::OnceCall;
use super::beginning::Entered;
use crate::engine::{Lease, STORE_TIMEOUT};
use crate::runs::{Decision, decide};
use crate::store::Record;
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason, TimeoutCause};
use dblock_core::Wait;

/// How long a call waits for the lock before it first reads the record. An uncontended lock takes less.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// The longest pause between two such reads.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A call that does not wait pauses for no longer than this: a renewal locks the row for less.
const LONGEST_WITHOUT_WAIT: Duration = Duration::from_millis(100);

/// With less than this left of `wait`, a call does not read again.
const TOO_LATE: Duration = Duration::from_millis(10);

impl OnceCall<'_> {
    /// Reads the record without the lock.
    pub(super) async fn record_in_time(&self) -> Result<Option<Record>, LockError> {
        self.within_wait(pin!(self.locks.engine().record(&self.key)))
            .await
    }

    /// The work under the lock before the body runs.
    pub(super) async fn under<T>(
        &self,
        lease: &Lease,
        work: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let while_it_lives = async {
            tokio::select! {
                biased;
                done = work => done,
                () = lease.ended() => Err(lease.lost(lease.lost_reason().unwrap_or(LostReason::Gone))),
            }
        };
        self.within_wait(pin!(while_it_lives)).await
    }

    /// Takes a pinned future, because each future around it would store it once more.
    async fn within_wait<T>(
        &self,
        work: Pin<&mut impl Future<Output = Result<T, LockError>>>,
    ) -> Result<T, LockError> {
        let done = self.locks.engine().within(self.left(), work).await;
        done.unwrap_or_else(|| Err(self.unanswered()))
    }

    /// What is left of `wait`; `None` for a call that waits for ever.
    pub(super) fn left(&self) -> Option<Duration> {
        self.began.left(self.locks.engine())
    }

    /// Pauses because a transaction keeps a row locked that this call needs. Fails when it may not wait for as
    /// long as that.
    pub(super) async fn pause_for_row(&self, pause: &mut Duration) -> Result<(), LockError> {
        let (key, waited) = (self.key.to_typed(), self.began.waited(self.locks.engine()));
        if self.options.lock.wait == Wait::No && *pause > LONGEST_WITHOUT_WAIT {
            return Err(LockError::busy(key, None, waited));
        }
        if self.left().is_some_and(|left| left <= *pause) {
            return Err(LockError::timeout(key, None, waited, TimeoutCause::RowLocked));
        }
        self.locks.engine().pause(*pause).await;
        *pause = (*pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn unanswered(&self) -> LockError {
        let (key, waited) = (self.key.to_typed(), self.began.waited(self.locks.engine()));
        if self.options.lock.wait == Wait::No {
            let message = format!("the database has not answered within {STORE_TIMEOUT:?}");
            return LockError::store_after(
                key,
                waited,
                StoreError::new(StoreErrorKind::Interrupted, message),
            );
        }
        LockError::timeout(key, None, waited, TimeoutCause::NoAnswer)
    }

    /// Completes when the record has the answer for a call that waits for the lock: a replay must not wait
    /// for a lock that somebody keeps for something else.
    pub(super) async fn known_meanwhile(&self) -> Result<Entered, LockError> {
        let mut pause = FIRST_LOOK;
        loop {
            let left = self.left().unwrap_or(Duration::MAX);
            if left / 2 < TOO_LATE {
                // The lock's own timeout ends the call.
                std::future::pending::<()>().await;
            }
            self.locks.engine().pause(pause.min(left / 2)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.record_in_time().await {
                Ok(found) => match decide(found, &self.options.policy, self.fingerprint) {
                    Decision::Replay(record) => return Ok(Entered::Replay(record)),
                    Decision::Refuse(reason) => return Err(self.refused(reason)),
                    Decision::Processing(_) | Decision::Run { .. } => {}
                },
                // Under the lock it is read again, and then the error counts.
                Err(error) => tracing::debug!(key = %self.key.typed(), %error, "the record cannot be read"),
            }
        }
    }
}
