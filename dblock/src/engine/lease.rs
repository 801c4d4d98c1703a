//! One grant, shared between the engine and those who hold it.
//!
//! A [`Lease`] counts its holds and knows its local deadline. Both are decided here and nowhere else: a
//! lease that ended stays ended, and a deadline moves only later and only on a reply of the store.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use uuid::Uuid;

use super::EngineHandle;
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::options::{self, OnLost};
use crate::store::Occupant;

/// What stays the same for the life of a lease.
#[derive(Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) key: Key,
    pub(crate) owner: Uuid,
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
    pub(crate) holder: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) on_lost: OnLost,
    /// When the request that was granted was sent.
    pub(crate) since: Instant,
    /// The lease ends here whatever is renewed.
    pub(crate) max_hold_until: Option<Instant>,
    /// The row stays busy until here even when the body ended.
    pub(crate) hold_min_until: Option<Instant>,
}

#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) terms: LeaseTerms,
    state: Mutex<State>,
    ended: CancellationToken,
    revoked: CancellationToken,
}

#[derive(Debug)]
struct State {
    holds: u32,
    /// When the store's lease ends at the earliest, on our clock.
    store_end: Instant,
    reason: Option<LostReason>,
    /// The store has confirmed the release.
    released: bool,
}

impl Lease {
    /// A lease with one hold. `remaining` is what the store had left of it when it answered the request
    /// sent at `terms.since`.
    pub(crate) fn new(terms: LeaseTerms, remaining: Duration) -> Arc<Self> {
        let store_end = terms.since + remaining;
        Arc::new(Self {
            terms,
            state: Mutex::new(State {
                holds: 1,
                store_end,
                reason: None,
                released: false,
            }),
            ended: CancellationToken::new(),
            revoked: CancellationToken::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a hold.
    fn enter(&self) -> Result<(), LockError> {
        self.check()?;
        let mut state = self.state();
        if state.holds == 0 {
            drop(state);
            return Err(self.lost(LostReason::Released));
        }
        state.holds += 1;
        Ok(())
    }

    /// Takes a hold away.
    fn leave(&self) {
        let mut state = self.state();
        state.holds = state.holds.saturating_sub(1);
    }

    /// The number of holds. Once it is 0 it stays 0.
    pub(crate) fn holds(&self) -> u32 {
        self.state().holds
    }

    /// The store confirmed a request sent at `sent`: `remaining` was left then. A lease that has ended stays
    /// ended, but its row is busy for that long.
    pub(crate) fn confirm(&self, sent: Instant, remaining: Duration) {
        // Whether it has ended is decided before the deadline moves.
        self.lost_reason();
        let mut state = self.state();
        state.store_end = state.store_end.max(sent + remaining);
    }

    /// The local deadline: the margin before the store's, or the end of `max_hold`.
    pub(crate) fn deadline(&self) -> Instant {
        let lease = self.renewable_until();
        self.terms.max_hold_until.map_or(lease, |end| end.min(lease))
    }

    fn renewable_until(&self) -> Instant {
        let end = self.store_end();
        end.checked_sub(options::margin(self.terms.ttl)).unwrap_or(end)
    }

    /// The store has confirmed the release.
    pub(super) fn mark_released(&self) {
        self.state().released = true;
    }

    pub(super) fn is_released(&self) -> bool {
        self.state().released
    }

    /// When the store's lease ends at the earliest, on our clock.
    pub(crate) fn store_end(&self) -> Instant {
        self.state().store_end
    }

    /// Why the lease has ended, if it has. The first reason stays.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        if let Some(reason) = self.state().reason {
            return Some(reason);
        }
        let now = Instant::now();
        if self.terms.max_hold_until.is_some_and(|end| now >= end) {
            self.end(LostReason::MaxHold);
        } else if now >= self.renewable_until() {
            self.end(if self.revoked.is_cancelled() {
                LostReason::Revoked
            } else {
                LostReason::Expired
            });
        }
        self.state().reason
    }

    /// Ends the lease, unless it has ended already.
    pub(crate) fn end(&self, reason: LostReason) {
        let mut state = self.state();
        if state.reason.is_some() {
            return;
        }
        state.reason = Some(reason);
        let holds = state.holds;
        drop(state);
        if holds > 0 {
            let terms = &self.terms;
            tracing::error!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                held = ?self.held(), %reason, "lock lost");
        }
        self.ended.cancel();
    }

    pub(crate) fn mark_revoked(&self) {
        self.revoked.cancel();
    }

    /// Completes when an operator has revoked the lease.
    pub(crate) async fn revoked(&self) {
        self.revoked.cancelled().await;
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled()
    }

    /// Completes when the lease has ended before its holds did.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// What is left until the local deadline; zero when the lease has ended.
    pub(crate) fn remaining(&self) -> Duration {
        if self.lost_reason().is_some() {
            return Duration::ZERO;
        }
        self.deadline().saturating_duration_since(Instant::now())
    }

    /// As [`ended`](Self::ended), without borrowing the lease.
    pub(crate) fn ended_owned(&self) -> WaitForCancellationFutureOwned {
        self.ended.clone().cancelled_owned()
    }

    pub(crate) fn held(&self) -> Duration {
        self.terms.since.elapsed()
    }

    /// Fails when the lease has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.lost_reason().map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    pub(crate) fn lost(&self, reason: LostReason) -> LockError {
        LockError::Lost {
            key: self.terms.key.clone(),
            reason,
            fence_token: self.terms.fence_token,
            held: self.held(),
        }
    }

    pub(crate) fn occupant(&self) -> Occupant {
        Occupant {
            owner: self.terms.owner,
            holder: self.terms.holder.to_string(),
            fence_token: self.terms.fence_token,
            remaining: self.store_end().saturating_duration_since(Instant::now()),
        }
    }
}

/// One entry by an owner. Dropping it ends the entry; the engine writes that to the row without the caller.
#[derive(Debug)]
pub(crate) struct Hold {
    lease: Arc<Lease>,
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
    pub(super) fn granted(lease: Arc<Lease>, engine: EngineHandle) -> Self {
        Self {
            lease,
            engine,
            left: false,
        }
    }

    /// One more hold of a lease that is held, in memory only. Fails when it has ended.
    pub(crate) fn enter(lease: &Arc<Lease>, engine: &EngineHandle) -> Result<Self, LockError> {
        lease.enter()?;
        Ok(Self {
            lease: Arc::clone(lease),
            engine: engine.clone(),
            left: false,
        })
    }

    pub(crate) fn lease(&self) -> &Arc<Lease> {
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
    /// is first polled, whether or not it is polled again.
    pub(crate) async fn leave(mut self, limit: Duration) -> Left {
        self.left = true;
        self.lease.leave();
        self.engine
            .confirm_left(&self.lease, Instant::now() + limit)
            .await
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.left {
            self.lease.leave();
            self.engine.note_holds(&self.lease);
        }
    }
}
