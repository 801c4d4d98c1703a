//! The reasons why a run was not carried out, or why its outcome is not known.

use std::time::Duration;

use super::rounded;
use crate::store::StoreError;

/// The reason why a call of `run_once` has no result of its body, nor an earlier one. In
/// [`LockError::Run`](crate::LockError::Run).
///
/// No message repeats a result or an error of a body: they may contain secrets.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The key was used for other work before. Nothing ran.
    #[error(
        "was called with another fingerprint: this key belongs to other work until `remember` is over; give this work \
         another key"
    )]
    KeyReused,
    /// An attempt crashed, and `on_crash` is "stop". Nothing ran.
    #[error(
        "is in doubt: attempt {attempt} by {holder} began {:?} ago and ended without an outcome; find out what it did, then \
         call `Admin::resolve`",
        rounded(*since)
    )]
    #[non_exhaustive]
    InDoubt {
        /// The number of the attempt that crashed, from 1.
        attempt: u32,
        /// Its host, process and function.
        holder: String,
        /// How long ago it began, by the store's clock.
        since: Duration,
    },
    /// `max_attempts` attempts failed or crashed. Nothing ran.
    #[error(
        "has begun {attempts} times without success, and `max_attempts` allows no more; `Admin::record` has the last \
         error, and `Admin::resolve` lets it run again"
    )]
    #[non_exhaustive]
    GaveUp {
        /// How many attempts began.
        attempts: u32,
    },
    /// It failed a short time ago, and `backoff` is not over. Nothing ran. Worth trying again.
    #[error("has failed and may run again in {:?}", rounded(*retry_after))]
    #[non_exhaustive]
    NotYet {
        /// After how long it may run again.
        retry_after: Duration,
    },
    /// Its `tick` is older than `remember` by the store's clock, so nobody remembers whether it has run.
    /// Nothing ran.
    #[error(
        "is for a tick {:?} ago, longer than `remember`, so whether it has run is not known; find out, and run it under another \
         key if it has not",
        rounded(*age)
    )]
    #[non_exhaustive]
    TickTooOld {
        /// How old the tick is, by the store's clock.
        age: Duration,
    },
    /// It succeeded, and its stored result is not of this type. Nothing ran: the work is done.
    #[error(
        "succeeded, but its stored result does not decode ({what}): read it with the type that it has, or give the \
         run another result by `Resolution::corrected`. After `Admin::forget` the next call would do the work again"
    )]
    #[non_exhaustive]
    Undecodable {
        /// The place where reading failed, and the type that was wanted.
        what: String,
    },
    /// It succeeded, and its result could not be kept at that time. Nothing ran: the work is done.
    #[error(
        "succeeded, but its result was not stored: {why}; `Admin::record` shows the run. After `Admin::forget` \
         the next call would do the work again"
    )]
    #[non_exhaustive]
    NotStored {
        /// The reason why the result could not be kept.
        why: String,
    },
    /// The value for `complete_in` cannot be kept. Nothing was written: roll the transaction back, or
    /// complete it with another value.
    #[error(
        "cannot be completed with this result: {why}; complete it with another value, or roll the transaction back"
    )]
    #[non_exhaustive]
    NotStorable {
        /// The reason why it cannot be kept.
        why: String,
    },
    /// The body called `complete_in` and returned `Ok`, but its transaction was not committed. The next call
    /// runs again.
    #[error(
        "called `complete_in` without committing that transaction, so nothing of it stands; commit it in the body"
    )]
    NotCommitted,
    /// The body returned `Ok` without a call of `complete_in`, although `on_crash` says `complete_in`. Its
    /// success is recorded, so later calls return the result. But after a crash between the work and the
    /// record the work would be done twice.
    #[error(
        "is done and recorded, but its body did not call `complete_in`, as `on_crash = \"complete_in\"` needs: after a crash \
         the work would have been done twice; complete the transaction of the work, or choose another `on_crash`"
    )]
    NotCompleted,
    /// The body is done, and the store did not confirm the record, which may be written or not. If it is not,
    /// the next call finds a crashed attempt.
    #[error(
        "is done, but it is not known whether its outcome is recorded: {source}; see `Admin::record` before you call \
         it again"
    )]
    #[non_exhaustive]
    Unrecorded {
        /// The store's error.
        source: StoreError,
    },
}

/// For dblock itself.
#[doc(hidden)]
impl RunError {
    pub fn tick_too_old(age: Duration) -> Self {
        Self::TickTooOld { age }
    }

    pub fn undecodable(what: String) -> Self {
        Self::Undecodable { what }
    }

    pub fn not_stored(why: String) -> Self {
        Self::NotStored { why }
    }

    pub fn not_storable(why: String) -> Self {
        Self::NotStorable { why }
    }

    pub fn unrecorded(source: StoreError) -> Self {
        Self::Unrecorded { source }
    }
}
