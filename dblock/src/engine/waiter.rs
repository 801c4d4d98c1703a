//! Callers that wait for an answer of the engine.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use uuid::Uuid;

use super::lease::{Hold, Lease, LeaseTerms, Left};
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::options::{LockOptions, Wait};
use crate::store::{Occupant, StoreError, StoreErrorKind};

/// How long the store may take for a caller that does not wait for the lock.
pub(crate) const STORE_PATIENCE: Duration = Duration::from_secs(5);

/// What a caller asks for.
#[derive(Debug)]
pub(crate) struct AcquireCall {
    pub(crate) key: Key,
    pub(crate) owner: Uuid,
    pub(crate) holder: Arc<str>,
    pub(crate) options: LockOptions,
    /// The call chain holds another lock: it is let in even while the manager shuts down.
    pub(crate) nested: bool,
    pub(crate) since: Instant,
}

/// A caller in the queue for a key.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) id: u64,
    pub(super) call: AcquireCall,
    /// When the caller must have its answer; `None` for a caller that waits for good.
    pub(super) deadline: Option<Instant>,
    reply: oneshot::Sender<Result<Hold, LockError>>,
}

impl Waiter {
    pub(super) fn new(id: u64, call: AcquireCall, reply: oneshot::Sender<Result<Hold, LockError>>) -> Self {
        let deadline = match call.options.wait {
            Wait::No => Some(call.since + STORE_PATIENCE),
            Wait::For(wait) => Some(call.since + wait),
            Wait::Forever => None,
        };
        Self {
            id,
            call,
            deadline,
            reply,
        }
    }

    /// Busy is an answer for this caller.
    pub(super) fn is_impatient(&self) -> bool {
        self.call.options.wait == Wait::No
    }

    /// The caller has gone away.
    pub(super) fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }

    /// Hands the lock over. A caller that has gone away drops the hold, which releases it.
    pub(super) fn grant(self, hold: Hold) {
        let lease = hold.lease();
        tracing::debug!(key = %self.call.key, owner = %self.call.owner, fence_token = lease.terms.fence_token,
            waited = ?self.call.since.elapsed(), "lock acquired");
        let _ = self.reply.send(Ok(hold));
    }

    /// Somebody else holds the lock and the caller's time is over.
    pub(super) fn refuse_busy(self, occupant: Option<Occupant>) {
        let (key, waited) = (self.call.key.clone(), self.call.since.elapsed());
        tracing::debug!(%key, owner = %self.call.owner, ?waited,
            holder = occupant.as_ref().map(|o| o.holder.as_str()), "lock busy");
        let error = if self.is_impatient() {
            LockError::Busy {
                key,
                occupant,
                waited,
            }
        } else {
            LockError::Timeout {
                key,
                occupant,
                waited,
            }
        };
        let _ = self.reply.send(Err(error));
    }

    /// The store could not be asked.
    pub(super) fn refuse_store(self, source: Option<StoreError>) {
        let waited = self.call.since.elapsed();
        let source = source.unwrap_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unreachable,
                "the database has not answered in the time given",
            )
        });
        tracing::warn!(key = %self.call.key, owner = %self.call.owner, ?waited, error = %source, "lock store failed");
        let _ = self.reply.send(Err(LockError::Store {
            key: Some(self.call.key),
            waited,
            source,
        }));
    }

    pub(super) fn refuse_shutdown(self) {
        let _ = self.reply.send(Err(LockError::Shutdown {
            key: Some(self.call.key),
        }));
    }
}

/// A caller that waits until the row says what it did.
#[derive(Debug)]
pub(super) enum Syncer {
    /// A re-entry: goes in when the store says that the lease still holds.
    Entering {
        since: Instant,
        deadline: Instant,
        reply: oneshot::Sender<Result<(), LockError>>,
    },
    /// A fence check: goes on when the row names the owner.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    Naming {
        since: Instant,
        deadline: Instant,
        reply: oneshot::Sender<Result<(), LockError>>,
    },
    /// The end of a hold.
    Leaving {
        deadline: Instant,
        reply: oneshot::Sender<Left>,
    },
}

impl Syncer {
    pub(super) fn deadline(&self) -> Instant {
        match self {
            Self::Entering { deadline, .. }
            | Self::Naming { deadline, .. }
            | Self::Leaving { deadline, .. } => *deadline,
        }
    }

    /// Memory is enough for this caller: it need not wait until a row that somebody has locked is written.
    pub(super) fn trusts_memory(&self) -> bool {
        !matches!(self, Self::Naming { .. })
    }

    /// The row has the count, and the owner.
    pub(super) fn done(self) {
        match self {
            Self::Entering { reply, .. } | Self::Naming { reply, .. } => drop(reply.send(Ok(()))),
            Self::Leaving { reply, .. } => drop(reply.send(Left::Confirmed)),
        }
    }

    /// The lease was over for the caller when the engine heard of it. The engine looks at a key whenever there is
    /// reason to, so it may see that the last hold has ended, and release or hand over, before the caller's own
    /// word arrives.
    pub(super) fn late(self, lease: &Lease) {
        match self {
            Self::Leaving { reply, .. } if lease.grant().is_released() || !lease.is_current() => {
                drop(reply.send(Left::Confirmed));
            }
            _ => self.lost(&lease.terms, lease.lost_reason()),
        }
    }

    /// The lease has ended.
    pub(super) fn lost(self, terms: &LeaseTerms, reason: Option<LostReason>) {
        let reason = reason.unwrap_or(LostReason::Gone);
        match self {
            Self::Entering { reply, .. } | Self::Naming { reply, .. } => {
                drop(reply.send(Err(terms.lost(reason))));
            }
            Self::Leaving { reply, .. } => drop(reply.send(Left::Lost(reason))),
        }
    }

    /// The caller's time is over and the store has not answered.
    pub(super) fn give_up(self, key: &Key, trouble: Option<StoreError>) {
        match self {
            Self::Entering { since, reply, .. } | Self::Naming { since, reply, .. } => {
                let source = trouble.unwrap_or_else(|| {
                    StoreError::new(
                        StoreErrorKind::Unreachable,
                        "the database has not answered in the time given",
                    )
                });
                let error = LockError::Store {
                    key: Some(key.clone()),
                    waited: since.elapsed(),
                    source,
                };
                drop(reply.send(Err(error)));
            }
            Self::Leaving { reply, .. } => drop(reply.send(Left::Unconfirmed(trouble))),
        }
    }
}
