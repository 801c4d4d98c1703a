//! The errors of the public API: busy, timeout, lost, store, shutdown and bad input are told apart.

mod message;
mod run;

use std::error::Error;
use std::fmt;
use std::time::Duration;

#[doc(hidden)]
pub use self::message::rounded;
use uuid::Uuid;

use self::message::{about, after, held_by, lock, timed_out};
pub use self::run::RunError;
use crate::key::{InvalidKey, Key};
use crate::store::{Holder, StoreError, one_line};

/// The reason why an acquire, a body under a lock, or a call on a guard failed.
///
/// A variant that is about a lock names its key and, where it matters, how long the caller waited or held it.
/// Use the `is_…` predicates where only the class matters.
///
/// ```
/// # use dblock_core as dblock;
/// use dblock::LockError;
///
/// fn status(error: &LockError) -> u16 {
///     match error {
///         error if error.is_busy() => 409,
///         error if error.is_store() && error.is_retryable() => 503,
///         LockError::Shutdown { .. } => 503,
///         // Lost, and variants that later versions add.
///         _ => 500,
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum LockError {
    /// The caller did not want to wait, and another owner holds the lock, or an open transaction keeps its
    /// row locked.
    #[non_exhaustive]
    Busy {
        /// The key that was asked for.
        key: Key,
        /// The holder, where known.
        holder: Option<Holder>,
        /// How long the answer took.
        waited: Duration,
    },
    /// The caller's `wait` ran out before it acquired the lock.
    #[non_exhaustive]
    Timeout {
        /// The key that was asked for.
        key: Key,
        /// The last holder that was seen, where known.
        holder: Option<Holder>,
        /// How long the caller waited.
        waited: Duration,
        /// The reason, as far as the caller knows it.
        cause: TimeoutCause,
        /// A key that the call chain holds and that the holder waited for: probably each waits for the other, and trying
        /// again helps only if the other gives up. Not so if the holder does several things at once, and will release
        /// this key all the same. Calls that run under another lock look for it after 1, 2, 4, … seconds. `None` does not
        /// say that there is no deadlock: one of more than two call chains is not seen here, nor that of locks which
        /// transactions keep.
        deadlock: Option<Box<Key>>,
    },
    /// The lease ended before the body did.
    #[non_exhaustive]
    Lost {
        /// The key of the lost lease.
        key: Key,
        /// How the lease ended.
        reason: LostReason,
        /// The token of the lost lease. A resource that saw a larger one refuses this one.
        fence_token: i64,
        /// Time from the grant to the loss.
        held: Duration,
    },
    /// The store could not be asked or refused to answer. This says nothing about who holds the lock.
    ///
    /// The message includes the store's message. So [`source`](std::error::Error::source) returns the cause
    /// behind the store's error.
    #[non_exhaustive]
    Store {
        /// The key, where one was involved.
        key: Option<Key>,
        /// How long the caller waited for the store.
        waited: Duration,
        /// The store's error.
        source: StoreError,
    },
    /// The store did not confirm a call on a lock that was held: its release,
    /// `extend` or `pin`. What was done under the lock
    /// stands, so this error is no reason to do it again: it is neither
    /// [retryable](Self::is_retryable) nor a conflict, and not
    /// [`is_store`](Self::is_store), which a web service answers with "try again". The manager goes on
    /// releasing the lock until its lease has expired.
    #[non_exhaustive]
    Unconfirmed {
        /// The key of the lock.
        key: Key,
        /// How long the caller waited for the store.
        waited: Duration,
        /// The store's error.
        source: StoreError,
    },
    /// The manager was shut down and takes no new locks.
    #[non_exhaustive]
    Shutdown {
        /// The key that was asked for, where one was involved.
        key: Option<Key>,
    },
    /// A call of `run_once` has neither a result of its body nor an earlier one.
    #[non_exhaustive]
    Run {
        /// The key of the run.
        key: Key,
        /// Why, and what to do.
        reason: RunError,
    },
    /// An attribute without `manager = …` ran where no manager is set.
    NoManager,
    /// The call cannot work as it was made. A bad key, option, name or URL is refused before anything is
    /// sent. A lock or a transaction that is used where it must not be may be refused later.
    #[non_exhaustive]
    Invalid {
        /// The mistake, and what to do instead.
        message: String,
    },
}

/// How a lease ended before its body did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// It was not renewed before the local deadline: the store did not answer in time, or `renew` is off.
    Expired,
    /// The store says that the lease is gone: taken over after its expiry, or freed by force.
    Gone,
    /// An operator revoked it, and it ran out without renewal.
    Revoked,
    /// It was held for longer than `max_hold`.
    MaxHold,
    /// It was released while something still used it.
    Released,
    /// The manager was shut down and its grace was over.
    Shutdown,
    /// The lease of a ticket was over when it was to be adopted. The error's `fence_token` and `held` are 0.
    Ticket,
}

/// The reason why a caller's `wait` ran out, as far as the caller knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TimeoutCause {
    /// Somebody held the lock.
    Held,
    /// A transaction that is still open kept the key's row locked, such as one that called `verify_in`.
    RowLocked,
    /// The database had not answered yet.
    NoAnswer,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { key, holder, .. } => write!(f, "lock {key:?} is busy{}", held_by(holder.as_ref())),
            Self::Timeout {
                key,
                holder,
                waited,
                cause,
                deadlock,
            } => {
                f.write_str(&timed_out(key, *waited, *cause, holder.as_ref()))?;
                let Some(held) = deadlock else { return Ok(()) };
                write!(
                    f,
                    "; its holder waited for {held:?}, which this call chain holds: they may wait for each other. Take \
                     the locks in one order everywhere, or all at once with `keys`"
                )
            }
            Self::Lost {
                key,
                reason: reason @ LostReason::Ticket,
                ..
            } => write!(f, "the ticket for lock {key:?} is refused: {reason}"),
            Self::Lost {
                key, reason, held, ..
            } => write!(f, "lock {key:?} was lost after {:?}: {reason}", rounded(*held)),
            Self::Store { key, waited, source } => {
                write!(f, "the lock store failed{}: {source}", about(key.as_ref(), *waited))
            }
            Self::Unconfirmed { key, waited, source } => write!(
                f,
                "what was done under lock {key:?} stands, but the store did not confirm the call{}: {source}",
                after(*waited)
            ),
            Self::Shutdown { key } => write!(f, "{}the lock manager is shut down", lock(key.as_ref())),
            Self::Run { key, reason } => write!(f, "the run {key:?} {reason}"),
            Self::NoManager => f.write_str(
                "no lock manager: give the attribute `manager = …`, run the call inside `LockManager::scope`, or call \
                 `dblock::install` when the program starts",
            ),
            Self::Invalid { message } => f.write_str(message),
        }
    }
}

impl Error for LockError {
    /// The first cause whose text is not in this error's message already. The field `source` of a variant is
    /// the store's error itself.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let mut cause: &(dyn Error + 'static) = match self {
            Self::Store { source, .. }
            | Self::Unconfirmed { source, .. }
            | Self::Run {
                reason: RunError::Unrecorded { source },
                ..
            } => source,
            _ => return None,
        };
        let message = self.to_string();
        while message.contains(&one_line(cause.to_string())) {
            cause = cause.source()?;
        }
        Some(cause)
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => {
                "its lease ran out before it was renewed, because the store or this process was too slow, or `renew` is \
                 off; give a longer `ttl`, or see `LockManager::health`"
            }
            Self::Gone => {
                "the store no longer knows this lease: it was freed by force, or taken over after its expiry, or its row \
                 was purged or restored from a backup; check what was done under it, because another owner may have \
                 worked beside it"
            }
            Self::Revoked => "an operator revoked it",
            Self::MaxHold => {
                "it was held for longer than `max_hold`; shorten the work, or give a longer `max_hold`"
            }
            Self::Released => {
                "it was released while something still used it; keep the guard until the work is done"
            }
            Self::Ticket => {
                "it was adopted before, was not adopted in time, or its lock was freed or revoked by an operator; if the work \
                 must still be done, take the lock anew"
            }
            Self::Shutdown => {
                "the lock manager was shut down before the work was done; give `LockManager::shutdown` a longer grace"
            }
        })
    }
}

impl LockError {
    /// A short name for traces.
    #[doc(hidden)]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Busy { .. } => "busy",
            Self::Timeout { .. } => "timeout",
            Self::Lost { .. } => "lost",
            Self::Store { .. } => "store",
            Self::Unconfirmed { .. } => "unconfirmed",
            Self::Run { .. } => "run",
            Self::Shutdown { .. } => "shutdown",
            Self::NoManager => "no_manager",
            Self::Invalid { .. } => "invalid",
        }
    }

    /// [`Busy`](Self::Busy), for dblock itself. `key` must be without its namespace, here and in the
    /// constructors below.
    #[doc(hidden)]
    pub fn busy(key: Key, holder: Option<Holder>, waited: Duration) -> Self {
        Self::Busy { key, holder, waited }
    }

    /// [`Timeout`](Self::Timeout), for dblock itself.
    #[doc(hidden)]
    pub fn timeout(key: Key, holder: Option<Holder>, waited: Duration, cause: TimeoutCause) -> Self {
        Self::Timeout {
            key,
            holder,
            waited,
            cause,
            deadlock: None,
        }
    }

    /// The same timeout of a call chain that holds a key which this owner waited for, if that is the holder.
    #[doc(hidden)]
    #[must_use]
    pub fn with_deadlock(mut self, seen: Option<(Uuid, Key)>) -> Self {
        if let Self::Timeout {
            deadlock,
            holder: Some(holder),
            ..
        } = &mut self
            && let Some((_, held)) = seen.filter(|(owner, _)| *owner == holder.owner)
        {
            *deadlock = Some(Box::new(held));
        }
        self
    }

    /// [`Lost`](Self::Lost), for dblock itself.
    #[doc(hidden)]
    pub fn lost(key: Key, reason: LostReason, fence_token: i64, held: Duration) -> Self {
        Self::Lost {
            key,
            reason,
            fence_token,
            held,
        }
    }

    /// [`Store`](Self::Store) of a call that waited for so long, for dblock itself.
    #[doc(hidden)]
    pub fn store_after(key: Key, waited: Duration, source: StoreError) -> Self {
        Self::Store {
            key: Some(key),
            waited,
            source,
        }
    }

    /// [`Unconfirmed`](Self::Unconfirmed), for dblock itself.
    #[doc(hidden)]
    pub fn unconfirmed(key: Key, waited: Duration, source: StoreError) -> Self {
        Self::Unconfirmed { key, waited, source }
    }

    /// [`Shutdown`](Self::Shutdown), for dblock itself.
    #[doc(hidden)]
    pub fn shutdown(key: Option<Key>) -> Self {
        Self::Shutdown { key }
    }

    /// [`Run`](Self::Run), for dblock itself.
    #[doc(hidden)]
    pub fn run(key: Key, reason: RunError) -> Self {
        Self::Run { key, reason }
    }

    /// For stores of your own: settings or a URL that cannot work. The message says the mistake and what to
    /// do instead. It must repeat no password.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    /// The same error of a caller that has waited for so long in all.
    #[doc(hidden)]
    #[must_use]
    pub fn after(mut self, total: Duration) -> Self {
        if let Self::Busy { waited, .. } | Self::Timeout { waited, .. } | Self::Store { waited, .. } =
            &mut self
        {
            *waited = total;
        }
        self
    }

    /// A store error that concerns no key.
    #[doc(hidden)]
    pub fn store(source: StoreError) -> Self {
        Self::store_for(None, source)
    }

    /// A store error that concerns a key, and not an acquire of it.
    #[doc(hidden)]
    pub fn store_of(key: &Key, source: StoreError) -> Self {
        Self::store_for(Some(key), source)
    }

    /// A store error of a call for this key, or for none.
    #[doc(hidden)]
    pub fn store_for(key: Option<&Key>, source: StoreError) -> Self {
        Self::Store {
            key: key.map(Key::to_typed),
            waited: Duration::ZERO,
            source,
        }
    }

    /// Somebody else holds the lock, or an open transaction keeps its row locked: [`Busy`](Self::Busy), or a
    /// [`Timeout`](Self::Timeout) for that reason. A web service answers 409 or 423.
    ///
    /// It is false when the database did not answer before `wait` was over: that is
    /// [`is_store`](Self::is_store).
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Timeout { .. }) && !self.is_store()
    }

    /// The lease ended before the body did.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The store could not be asked, or did not answer before `wait` was over ([`TimeoutCause::NoAnswer`]).
    /// Never a synonym of busy. A web service answers 503. False for a call after which the work stands
    /// ([`Unconfirmed`](Self::Unconfirmed)).
    pub fn is_store(&self) -> bool {
        matches!(
            self,
            Self::Store { .. }
                | Self::Timeout {
                    cause: TimeoutCause::NoAnswer,
                    ..
                }
        )
    }

    /// The manager takes no new locks.
    pub fn is_shutdown(&self) -> bool {
        matches!(self, Self::Shutdown { .. })
    }

    /// The same call may succeed later without a change to the program or the database. False for every error
    /// after which work may stand, so a function that ends with such an error may be called again.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Timeout { .. } => true,
            Self::Store { source, .. } => source.is_retryable(),
            Self::Run { reason, .. } => matches!(reason, RunError::NotYet { .. }),
            _ => false,
        }
    }

    /// The same error of a call whose body has not begun: nothing was done under the lock. So a missing
    /// answer is only a failure of the store.
    #[doc(hidden)]
    #[must_use]
    pub fn before_the_work(self) -> Self {
        match self {
            Self::Unconfirmed { key, waited, source } => Self::Store {
                key: Some(key),
                waited,
                source,
            },
            error => error,
        }
    }

    /// The key that the error is about, where there is one.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Busy { key, .. }
            | Self::Timeout { key, .. }
            | Self::Lost { key, .. }
            | Self::Unconfirmed { key, .. }
            | Self::Run { key, .. } => Some(key),
            Self::Store { key, .. } | Self::Shutdown { key } => key.as_ref(),
            Self::NoManager | Self::Invalid { .. } => None,
        }
    }
}

impl From<InvalidKey> for LockError {
    fn from(error: InvalidKey) -> Self {
        Self::invalid(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::StoreErrorKind;

    fn holder(remaining: Duration) -> Holder {
        Holder::new(Uuid::nil(), "host/7", 1, Some(remaining))
    }

    #[test]
    fn a_key_that_is_refused_is_an_invalid_call() {
        let refused = Key::new(None, "").unwrap_err();
        let message = refused.to_string();
        let error = LockError::from(refused);
        assert!(matches!(&error, LockError::Invalid { .. }), "{error:?}");
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_program_can_tell_the_errors_apart() {
        let key = || Key::new(None, "a").unwrap();
        let timeout = |cause| LockError::timeout(key(), None, Duration::ZERO, cause);
        let store = |kind, key| LockError::Store {
            key,
            waited: Duration::ZERO,
            source: StoreError::new(kind, "no"),
        };
        let run = |reason| LockError::Run { key: key(), reason };
        let not_yet = RunError::NotYet {
            retry_after: Duration::ZERO,
        };
        let lost = LockError::Lost {
            key: key(),
            reason: LostReason::Gone,
            fence_token: 1,
            held: Duration::ZERO,
        };
        let unconfirmed = LockError::Unconfirmed {
            key: key(),
            waited: Duration::ZERO,
            source: StoreError::new(StoreErrorKind::Interrupted, "no"),
        };
        // The name, what it is, whether to try again, whether it has a key.
        for (error, name, is, again, has_key) in [
            (
                LockError::busy(key(), None, Duration::ZERO),
                "busy",
                "busy",
                true,
                true,
            ),
            (timeout(TimeoutCause::Held), "timeout", "busy", true, true),
            (timeout(TimeoutCause::RowLocked), "timeout", "busy", true, true),
            (timeout(TimeoutCause::NoAnswer), "timeout", "store", true, true),
            (lost, "lost", "lost", false, true),
            (
                store(StoreErrorKind::Conflict, Some(key())),
                "store",
                "store",
                true,
                true,
            ),
            (
                store(StoreErrorKind::Schema, None),
                "store",
                "store",
                false,
                false,
            ),
            (unconfirmed, "unconfirmed", "", false, true),
            (run(not_yet), "run", "", true, true),
            (
                run(RunError::tick_too_old(Duration::ZERO)),
                "run",
                "",
                false,
                true,
            ),
            (
                LockError::shutdown(Some(key())),
                "shutdown",
                "shutdown",
                false,
                true,
            ),
            (LockError::NoManager, "no_manager", "", false, false),
            (LockError::invalid("no"), "invalid", "", false, false),
        ] {
            assert_eq!(error.name(), name);
            let shown = [
                (error.is_busy(), "busy"),
                (error.is_store(), "store"),
                (error.is_lost(), "lost"),
                (error.is_shutdown(), "shutdown"),
            ];
            for (found, word) in shown {
                assert_eq!(found, is == word, "{word}: {error}");
            }
            assert_eq!(
                (error.is_retryable(), error.key().is_some()),
                (again, has_key),
                "{error}"
            );
        }
    }

    #[test]
    fn messages_say_no_more_than_is_known() {
        let key = Key::new(None, "a").unwrap();
        let waited = Duration::from_nanos(2_001_789_864);
        let busy = |holder| LockError::Busy {
            key: key.clone(),
            holder,
            waited,
        };
        let errors = [
            (
                busy(Some(holder(Duration::from_micros(1_899_600)))),
                "lock \"a\" is busy, held by host/7: its lease runs 1.9s more and may be renewed",
            ),
            (
                busy(Some(holder(Duration::ZERO))),
                "lock \"a\" is busy, held by host/7",
            ),
            (busy(None), "lock \"a\" is busy"),
            (
                LockError::Timeout {
                    key: key.clone(),
                    holder: None,
                    waited,
                    cause: TimeoutCause::Held,
                    deadlock: None,
                },
                "lock \"a\" was still busy after 2.002s",
            ),
            (
                {
                    let by = holder(Duration::ZERO);
                    let seen = Some((by.owner, Key::new(None, "b").unwrap()));
                    LockError::timeout(key.clone(), Some(by), waited, TimeoutCause::Held).with_deadlock(seen)
                },
                "lock \"a\" was still busy after 2.002s, held by host/7; its holder waited for \"b\", which this call chain \
                 holds: they may wait for each other. Take the locks in one order everywhere, or all at once with `keys`",
            ),
            (
                LockError::timeout(
                    key.clone(),
                    Some(holder(Duration::ZERO)),
                    waited,
                    TimeoutCause::Held,
                )
                .with_deadlock(Some((Uuid::max(), Key::new(None, "b").unwrap()))),
                "lock \"a\" was still busy after 2.002s, held by host/7",
            ),
            (
                LockError::Lost {
                    key: key.clone(),
                    reason: LostReason::MaxHold,
                    fence_token: 1,
                    held: Duration::from_nanos(952_400_001),
                },
                "lock \"a\" was lost after 952ms: it was held for longer than `max_hold`; shorten the work, or give a longer \
                 `max_hold`",
            ),
            (
                LockError::Store {
                    key: Some(key.clone()),
                    waited,
                    source: StoreError::new(StoreErrorKind::Other, "why"),
                },
                "the lock store failed for \"a\" after 2.002s: why",
            ),
            (
                LockError::Unconfirmed {
                    key: key.clone(),
                    waited,
                    source: StoreError::new(StoreErrorKind::Interrupted, "why"),
                },
                "what was done under lock \"a\" stands, but the store did not confirm the call after 2.002s: why",
            ),
            (
                LockError::Shutdown {
                    key: Some(key.clone()),
                },
                "lock \"a\" is refused: the lock manager is shut down",
            ),
            (LockError::Shutdown { key: None }, "the lock manager is shut down"),
        ];
        for (error, message) in errors {
            assert_eq!(error.to_string(), message);
        }
    }

    /// Nobody may take it for an error before the work, whatever the store said.
    #[test]
    fn an_error_after_the_work_is_no_reason_to_do_it_again() {
        use StoreErrorKind::{Conflict, Interrupted, Other, Refused, Schema, Unreachable, Unsupported};

        for kind in [
            Conflict,
            Interrupted,
            Other,
            Refused,
            Schema,
            Unreachable,
            Unsupported,
        ] {
            let error = LockError::Unconfirmed {
                key: Key::new(None, "a").unwrap(),
                waited: Duration::ZERO,
                source: StoreError::new(kind, "why"),
            };
            let again = error.is_retryable() || error.is_store() || error.is_busy();
            assert!(!again, "{kind:?}");
        }
    }

    /// As a reporter of the whole chain shows it.
    #[test]
    fn what_the_store_said_is_in_the_message_and_is_told_once() {
        let said = |store| {
            let error = LockError::store(store);
            let causes = std::iter::successors(Some(&error as &dyn Error), |cause| (*cause).source());
            causes.map(ToString::to_string).collect::<Vec<_>>()
        };
        let plain = StoreError::new(StoreErrorKind::Other, "why");
        assert_eq!(said(plain.clone()), ["the lock store failed: why"]);
        assert_eq!(
            said(plain.clone().with_source("why")),
            ["the lock store failed: why"]
        );
        let lines = StoreError::new(StoreErrorKind::Other, "why\nand how").with_source("why\nand how");
        assert_eq!(said(lines), ["the lock store failed: why; and how"]);
        let deeper = plain.with_source("what is behind it");
        assert_eq!(said(deeper), ["the lock store failed: why", "what is behind it"]);
    }
}
