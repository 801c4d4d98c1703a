//! A lease as its owner sees it, and the entries that the owner has.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::EngineHandle;
use super::grant::{self, Grant};
pub(crate) use super::terms::LeaseTerms;
use crate::error::{LockError, LostReason};

/// One owner's part of a grant. Cloning is cheap, and keeps nothing locked.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) terms: Arc<LeaseTerms>,
    grant: Arc<Grant>,
}

impl Lease {
    pub(super) fn new(terms: Arc<LeaseTerms>, grant: Arc<Grant>) -> Self {
        Self { terms, grant }
    }

    pub(super) fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    /// Why the lease has ended for this owner, if it has. The first reason stays.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let reason = self.grant.lost_reason();
        if self.is_current() {
            reason
        } else {
            Some(LostReason::Released)
        }
    }

    /// The owner is inside, or was the last one.
    pub(super) fn is_current(&self) -> bool {
        self.grant.is_of(&self.terms)
    }

    /// Fails when the lease has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.lost_reason().map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    pub(crate) fn lost(&self, reason: LostReason) -> LockError {
        self.terms.lost(reason)
    }

    /// What is left until the local deadline; zero when the lease has ended.
    pub(crate) fn remaining(&self) -> Duration {
        if self.is_current() {
            self.grant.remaining()
        } else {
            Duration::ZERO
        }
    }

    /// When the store's lease ends at the earliest, on our clock.
    pub(crate) fn store_end(&self) -> Instant {
        self.grant.store_end()
    }

    pub(crate) fn held(&self) -> Duration {
        self.terms.held()
    }

    /// The owner wants its row checked: after it the lock goes on through the store.
    #[cfg(feature = "sql")]
    pub(crate) fn pin(&self) -> Result<(), LockError> {
        self.grant.pin(&self.terms)
    }

    /// A fence check has shown that the lease is gone.
    #[cfg(feature = "sql")]
    pub(crate) fn end_as_gone(&self) {
        self.grant.end(if self.grant.is_revoked() {
            LostReason::Revoked
        } else {
            LostReason::Gone
        });
    }

    /// Completes when an operator has revoked the lease.
    pub(crate) async fn revoked(&self) {
        self.grant.revoked().cancelled().await;
    }

    /// Completes when the lease has ended before its holds did.
    pub(crate) async fn ended(&self) {
        self.grant.ended().cancelled().await;
    }

    /// As [`ended`](Self::ended), without borrowing the lease.
    pub(crate) fn ended_owned(&self) -> WaitForCancellationFutureOwned {
        self.grant.ended().clone().cancelled_owned()
    }
}

/// One entry by an owner. Dropping it ends the entry; the engine writes that to the row without the caller.
#[derive(Debug)]
pub(crate) struct Hold {
    lease: Lease,
    engine: EngineHandle,
    left: bool,
}

/// How the end of a hold went.
#[derive(Debug)]
pub(crate) enum Left {
    /// The row says so.
    Confirmed,
    /// The lease had ended before.
    Lost(LostReason),
    /// The store did not answer in time. The engine goes on trying.
    Unconfirmed(Option<crate::store::StoreError>),
}

impl Hold {
    /// The hold that a grant comes with.
    pub(super) fn granted(lease: Lease, engine: EngineHandle) -> Self {
        Self {
            lease,
            engine,
            left: false,
        }
    }

    /// One more hold of a lease that is held, in memory only. Fails when it has ended.
    pub(crate) fn enter(lease: &Lease, engine: &EngineHandle) -> Result<Self, LockError> {
        lease.grant.enter(&lease.terms)?;
        Ok(Self {
            lease: lease.clone(),
            engine: engine.clone(),
            left: false,
        })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Writes the number of holds to the row without waiting for it.
    pub(crate) fn announce(&self) {
        self.engine.note_holds(&self.lease);
    }

    /// Ends the hold and waits, at most `limit`, until the row says so. The hold has ended when the future
    /// is first polled, whether or not it is polled again. `in_order`: the body returned; the lock may go on
    /// to the next in line without the row.
    pub(crate) async fn leave(mut self, limit: Duration, in_order: bool) -> Left {
        self.left = true;
        match self.end(in_order) {
            grant::Left::HandedOver => Left::Confirmed,
            grant::Left::Open => {
                self.engine
                    .confirm_left(&self.lease, Instant::now() + limit)
                    .await
            }
        }
    }

    fn end(&self, in_order: bool) -> grant::Left {
        self.lease.grant.leave(in_order, &self.engine)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.left && matches!(self.end(false), grant::Left::Open) {
            self.engine.note_holds(&self.lease);
        }
    }
}
