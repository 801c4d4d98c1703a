//! The holds of an owner.

use std::mem;
use std::time::Duration;

use dblock_core::machine::env::Time;
use dblock_core::machine::key::NotClosed;
use dblock_core::machine::out::Unconfirmed;
use uuid::Uuid;

use super::cells::Confirm;
use super::lease::{Lease, confirm};
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason};

/// One hold by an owner. Dropping it ends the hold; the engine writes that to the row without the caller.
#[derive(Debug)]
pub(crate) struct Hold {
    lease: Lease,
    has_left: bool,
    /// The grant of this hold has begun a run.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs begin with the lock")
    )]
    begun: bool,
}

impl Hold {
    /// The first hold of a granted lease.
    pub(super) fn granted(lease: Lease) -> Self {
        Self {
            begun: lease.ownership.begun,
            lease,
            has_left: false,
        }
    }

    /// Adds a hold to a lease. Waits until the store confirms it: the lease is still held, and the row counts
    /// the hold.
    pub(crate) async fn enter(lease: &Lease, timeout: Duration) -> Result<Self, LockError> {
        let (confirm, answer) = confirm(lease.now() + timeout);
        let hold = Self::add(lease, Some(confirm))?;
        lease
            .confirmed(answer)
            .await
            .map_err(LockError::before_the_work)?;
        lease.check()?;
        Ok(hold)
    }

    /// Adds a hold in memory only. The row is written later.
    pub(crate) fn enter_now(lease: &Lease) -> Result<Self, LockError> {
        Self::add(lease, None)
    }

    fn add(lease: &Lease, confirm: Option<Confirm>) -> Result<Self, LockError> {
        let entered = lease.step(|machine, env| machine.enter(env, &lease.ownership, confirm));
        if !matches!(entered, Some(Ok(()))) {
            lease.check()?;
            return Err(if lease.hold_count() == 0 {
                lease.lost(LostReason::Released)
            } else {
                closed(lease)
            });
        }
        Ok(Self {
            lease: lease.clone(),
            has_left: false,
            begun: false,
        })
    }

    /// Whether the store has begun the caller's run together with the lock. That is taken back unless the
    /// body begins: [`Lease::begun`].
    #[cfg(feature = "run_once")]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Ends the hold, and puts the lease into a ticket with the lease `to`. Waits until the store confirms it.
    pub(crate) async fn transfer(mut self, to: Uuid, ttl: Duration) -> Result<(), LockError> {
        let lease = &self.lease;
        let (confirm, answer) = confirm(lease.now() + lease.remaining());
        lease.shared().transfer(&lease.cell, &lease.ownership, |machine, env| {
            machine.transfer(env, &lease.ownership, to, ttl, confirm)
        })
        .map_err(|refused| match refused {
            NotClosed::Over(reason) => lease.lost(reason),
            NotClosed::OtherHold | NotClosed::Before => LockError::invalid(
                "the lock has another hold, such as a nested call, or ends with a transaction: make a ticket of it \
                 when that is over",
            ),
        })?;
        self.has_left = true;
        let unheard = UnheardTicket {
            lease: &self.lease,
            to,
            ttl,
        };
        self.lease.confirmed(answer).await?;
        mem::forget(unheard);
        Ok(())
    }

    /// When the answer is dropped, the other holds on the key are lost, if a transaction keeps it: that frees the
    /// key beside them.
    #[cfg(feature = "sql")]
    pub(crate) fn ends_others(&self) -> EndsOthers {
        EndsOthers(self.lease.clone())
    }

    /// The transaction that kept the key is over, and the key is free.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn transaction_over(mut self) {
        self.has_left = true;
        let lease = &self.lease;
        lease.shared().transaction_over(&lease.cell, &lease.ownership);
    }

    /// Ends holds of one engine and waits, at most until `deadline`, until that is confirmed. Returns those that are
    /// not confirmed. The holds have ended when the future is first polled, whether or not it is polled
    /// again. `returned`: the body returned before the local deadline, so the locks may be handed over locally.
    pub(crate) async fn leave(holds: Vec<Self>, deadline: Time, returned: bool) -> Vec<(Lease, Unconfirmed)> {
        let mut leaving = Vec::new();
        let mut unscheduled = Vec::new();
        for mut hold in holds {
            hold.has_left = true;
            let lease = &hold.lease;
            if lease.ownership.call.shares_with_all()
                && lease.shared().leave_quietly(&lease.cell, &lease.ownership)
            {
                continue;
            }
            let (confirm, answer) = confirm(deadline);
            unscheduled.extend(
                lease
                    .shared()
                    .leave(&lease.cell, &lease.ownership, returned, Some(confirm)),
            );
            leaving.push((hold, answer));
        }
        if let Some((hold, _)) = leaving.first() {
            hold.lease.shared().put(unscheduled);
        }
        let mut unconfirmed = Vec::new();
        for (hold, answer) in leaving {
            let why = match answer.await {
                Ok((Ok(()), _)) => continue,
                Ok((Err(why), _)) => why,
                // No answer will come: the lease was forgotten, or the engine has ended.
                Err(_) => {
                    let reason = hold.lease.lost_reason();
                    reason.map_or(Unconfirmed::NoAnswer(None), Unconfirmed::Lost)
                }
            };
            unconfirmed.push((hold.lease.clone(), why));
        }
        unconfirmed
    }
}

/// A ticket whose caller has not heard that it was made. Dropping it gives the lock back.
struct UnheardTicket<'l> {
    lease: &'l Lease,
    to: Uuid,
    ttl: Duration,
}

impl Drop for UnheardTicket<'_> {
    fn drop(&mut self) {
        let lease = self.lease;
        lease.shared().give_up_ticket(lease.key(), self.to, self.ttl);
    }
}

/// From [`Hold::ends_others`].
#[cfg(feature = "sql")]
#[derive(Debug)]
pub(crate) struct EndsOthers(Lease);

#[cfg(feature = "sql")]
impl Drop for EndsOthers {
    fn drop(&mut self) {
        if self.0.is_kept_in_transaction() && self.0.hold_count() > 1 {
            self.0.end_as_gone();
        }
    }
}

/// The lease lives, and its last hold ends with something that is on its way.
fn closed(lease: &Lease) -> LockError {
    let message = "the lock ends with a transaction or with the outcome of a run that is being written: enter it before \
                   that begins, or when the lock is free";
    LockError::store_of(lease.key(), StoreError::new(StoreErrorKind::Conflict, message))
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.has_left {
            let lease = &self.lease;
            lease.shared().drop_hold(&lease.cell, &lease.ownership);
        }
    }
}
