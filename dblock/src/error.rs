//! What can go wrong, told apart: busy, timeout, lost, store, shutdown and bad input are never mixed up.

use std::fmt::Write;
use std::time::Duration;

use crate::key::Key;
use crate::store::{Occupant, StoreError};

/// Why an acquire, a body under a lock, or a call on a guard failed.
///
/// Every variant names the key and, where it matters, how long was waited or held. Use the `is_…`
/// predicates where only the class matters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Someone else holds the lock, and the caller did not want to wait.
    #[error("lock {key:?} is busy{}", held_by(occupant.as_ref()))]
    #[non_exhaustive]
    Busy {
        /// The key that was asked for.
        key: Key,
        /// Who holds it, where known.
        occupant: Option<Occupant>,
        /// How long the answer took.
        waited: Duration,
    },
    /// Someone else held the lock until the caller's wait was over.
    #[error("lock {key:?} was still busy after {waited:?}{}", held_by(occupant.as_ref()))]
    #[non_exhaustive]
    Timeout {
        /// The key that was asked for.
        key: Key,
        /// Who held it when last seen, where known.
        occupant: Option<Occupant>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The lease ended before the body did.
    #[error("lock {key:?} was lost after {held:?}: {reason}")]
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
    #[error("the lock store failed{}: {source}", about(key.as_ref(), *waited))]
    #[non_exhaustive]
    Store {
        /// The key, where one was involved.
        key: Option<Key>,
        /// How long the caller waited for the store.
        waited: Duration,
        /// What the store said.
        source: StoreError,
    },
    /// The manager was shut down and takes no new locks.
    #[error("the lock manager is shut down{}", about(key.as_ref(), Duration::ZERO))]
    #[non_exhaustive]
    Shutdown {
        /// The key that was asked for, where one was involved.
        key: Option<Key>,
    },
    /// An attribute without `manager = …` ran where no manager is set.
    #[error(
        "no lock manager: give the attribute `manager = …`, run the call inside `LockManager::scope`, \
         or call `dblock::install` when the program starts"
    )]
    NoManager,
    /// A key, option, name or URL that is refused before anything is sent.
    #[error("{message}")]
    #[non_exhaustive]
    Invalid {
        /// What is wrong and what to do instead.
        message: String,
    },
}

/// How a lease ended before its body did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// It could not be renewed before the local deadline.
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
}

impl std::fmt::Display for LostReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expired => "it could not be renewed in time",
            Self::Gone => "the store no longer knows this lease",
            Self::Revoked => "it was revoked",
            Self::MaxHold => "it was held longer than max_hold",
            Self::Released => "it was released already",
            Self::Shutdown => "the lock manager was shut down",
        })
    }
}

impl LockError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    /// A store error that no key is involved in.
    pub(crate) fn store(source: StoreError) -> Self {
        Self::Store {
            key: None,
            waited: Duration::ZERO,
            source,
        }
    }

    /// Someone else holds the lock: [`Busy`](Self::Busy) or [`Timeout`](Self::Timeout). A web service
    /// answers 409 or 423 to it.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::Timeout { .. })
    }

    /// The lease ended before the body did.
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// The store could not be asked. Never a synonym of busy.
    pub fn is_store(&self) -> bool {
        matches!(self, Self::Store { .. })
    }

    /// The manager takes no new locks.
    pub fn is_shutdown(&self) -> bool {
        matches!(self, Self::Shutdown { .. })
    }

    /// The same call may succeed later without a change to the program or the database.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Timeout { .. } => true,
            Self::Store { source, .. } => source.is_retryable(),
            _ => false,
        }
    }

    /// The key that the error is about, where there is one.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Busy { key, .. } | Self::Timeout { key, .. } | Self::Lost { key, .. } => Some(key),
            Self::Store { key, .. } | Self::Shutdown { key } => key.as_ref(),
            Self::NoManager | Self::Invalid { .. } => None,
        }
    }
}

fn held_by(occupant: Option<&Occupant>) -> String {
    occupant
        .map(|o| format!(", held by {} for at most {:?} more", o.holder, o.remaining))
        .unwrap_or_default()
}

fn about(key: Option<&Key>, waited: Duration) -> String {
    let mut text = key.map(|key| format!(" for {key:?}")).unwrap_or_default();
    if !waited.is_zero() {
        let _ = write!(text, " after {waited:?}");
    }
    text
}
