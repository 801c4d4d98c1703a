//! One grant of the store, shared between the engine and those who hold it.
//!
//! A [`Grant`] counts the holds of the owner inside, knows the local deadline, and hands the lock to the next
//! in line. All of it is decided under one mutex and nowhere else: a grant that ended stays ended, a deadline
//! moves only later and only on a reply of the store, and nobody is let in while another is inside or after
//! the end.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::EngineHandle;
use super::lease::{Hold, Lease};
use super::line::Line;
use super::terms::LeaseTerms;
use super::waiter::Waiter;
use crate::error::{LockError, LostReason};
use crate::options;
use crate::store::Occupant;

/// How far a grant may be handed on inside the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandOver {
    /// Tokens kept free above the grant's own.
    pub(super) spare_tokens: u32,
    /// Nobody is let in after this without the store.
    pub(super) until: Instant,
}

#[derive(Debug)]
pub(crate) struct Grant {
    state: Mutex<State>,
    line: Arc<Line>,
    ended: CancellationToken,
    revoked: CancellationToken,
}

#[derive(Debug)]
struct State {
    /// Of the owner inside, or the last one.
    terms: Arc<LeaseTerms>,
    holds: u32,
    /// When the store's lease ends at the earliest, on our clock.
    store_end: Instant,
    reason: Option<LostReason>,
    /// The store has confirmed the release.
    released: bool,
    /// Nobody is inside: the engine may let the next one in.
    is_left: bool,
    /// `None` after an owner has asked for a fence check or left in disorder: the lock goes on through the store.
    hand_over: Option<HandOver>,
    /// The engine knows that the row is behind.
    behind_told: bool,
}

impl State {
    fn renewable_until(&self) -> Instant {
        let margin = options::margin(self.terms.ttl);
        self.store_end.checked_sub(margin).unwrap_or(self.store_end)
    }

    /// The local deadline: the margin before the store's, or the end of `max_hold`.
    fn deadline(&self) -> Instant {
        let lease = self.renewable_until();
        self.terms.max_hold_until.map_or(lease, |end| end.min(lease))
    }

    /// The caller that comes in next without the store, if the grant may be handed on to it.
    fn successor(&mut self, line: &Line, now: Instant) -> Option<Waiter> {
        let hand_over = self.hand_over.as_mut()?;
        if hand_over.spare_tokens == 0 || now >= hand_over.until || self.terms.hold_min_until.is_some() {
            return None;
        }
        let confirmed = self.store_end.saturating_duration_since(now);
        let next = line.pop_if(now, |call| {
            call.options.renew && confirmed >= call.options.ttl.mul_f64(2.0 / 3.0)
        })?;
        hand_over.spare_tokens -= 1;
        Some(next)
    }
}

/// A grant at one instant, for the engine.
#[derive(Debug, Clone)]
pub(super) struct Snapshot {
    /// Of the owner inside, or the last one.
    pub(super) terms: Arc<LeaseTerms>,
    /// At 0 only the engine lets somebody in.
    pub(super) holds: u32,
    /// When the store's lease ends at the earliest, on our clock.
    pub(super) store_end: Instant,
    /// The local deadline.
    pub(super) deadline: Instant,
    /// Why the grant has ended, if it has.
    pub(super) reason: Option<LostReason>,
}

impl Snapshot {
    pub(super) fn has_ended(&self) -> bool {
        self.reason.is_some()
    }

    pub(super) fn occupant(&self, now: Instant) -> Occupant {
        Occupant {
            owner: self.terms.owner,
            holder: self.terms.holder.to_string(),
            fence_token: self.terms.fence_token,
            remaining: self.store_end.saturating_duration_since(now),
        }
    }
}

/// What the end of a hold leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// The row must be told: the owner has other holds, or nobody came in its place.
    Open,
    /// The next in line has the lock.
    HandedOver,
}

impl Grant {
    /// A grant with one hold. `remaining` is what the store had left of it when it answered the request
    /// sent at `terms.since`.
    pub(super) fn new(
        terms: Arc<LeaseTerms>,
        remaining: Duration,
        line: Arc<Line>,
        hand_over: HandOver,
    ) -> Arc<Self> {
        let store_end = terms.since + remaining;
        Self::with(terms, store_end, line, hand_over)
    }

    fn with(terms: Arc<LeaseTerms>, store_end: Instant, line: Arc<Line>, hand_over: HandOver) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                terms,
                holds: 1,
                store_end,
                reason: None,
                released: false,
                is_left: false,
                hand_over: Some(hand_over),
                behind_told: false,
            }),
            line,
            ended: CancellationToken::new(),
            revoked: CancellationToken::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the owner of these terms is inside, or was the last one.
    pub(super) fn is_of(&self, terms: &Arc<LeaseTerms>) -> bool {
        Arc::ptr_eq(&self.state().terms, terms)
    }

    /// What it is like now. The first look after its time ends it.
    pub(super) fn look(&self, now: Instant) -> Snapshot {
        self.end_in_time(now);
        let state = self.state();
        Snapshot {
            terms: Arc::clone(&state.terms),
            holds: state.holds,
            store_end: state.store_end,
            deadline: state.deadline(),
            reason: state.reason,
        }
    }

    /// Adds a hold of the owner with these terms.
    pub(super) fn enter(&self, terms: &Arc<LeaseTerms>) -> Result<(), LockError> {
        self.end_in_time(Instant::now());
        let mut state = self.state();
        if !Arc::ptr_eq(&state.terms, terms) || state.holds == 0 {
            return Err(terms.lost(LostReason::Released));
        }
        if let Some(reason) = state.reason {
            return Err(terms.lost(reason));
        }
        state.holds += 1;
        Ok(())
    }

    /// Takes a hold away. With the last one, an owner that leaves in good order lets the next in line in.
    pub(super) fn leave(self: &Arc<Self>, in_order: bool, engine: &EngineHandle) -> Left {
        let now = Instant::now();
        self.end_in_time(now);
        let mut state = self.state();
        state.holds = state.holds.saturating_sub(1);
        if !in_order {
            state.hand_over = None;
        }
        state.is_left = state.holds == 0;
        if state.is_left {
            state.terms.end(now);
        }
        self.hand_over(state, engine, now)
    }

    /// For the engine, before it releases a grant that everyone has left: lets in who has come since.
    pub(super) fn let_next_in(self: &Arc<Self>, engine: &EngineHandle, now: Instant) -> Left {
        self.end_in_time(now);
        self.hand_over(self.state(), engine, now)
    }

    fn hand_over(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        engine: &EngineHandle,
        now: Instant,
    ) -> Left {
        let over = state.reason.is_some() || self.revoked.is_cancelled() || now >= state.deadline();
        if !state.is_left || over {
            return Left::Open;
        }
        let Some(next) = state.successor(&self.line, now) else {
            return Left::Open;
        };
        let former = &state.terms;
        let token = former.fence_token + 1;
        let mut terms = LeaseTerms::new(&next.call, former.lease_id, token, now, now);
        terms.handed_over = true;
        let terms = Arc::new(terms);
        state.terms = Arc::clone(&terms);
        state.holds = 1;
        state.is_left = false;
        // The engine must also know of a time that ends before the row's.
        let tell = !mem::replace(&mut state.behind_told, true) || terms.max_hold_until.is_some();
        drop(state);
        let lease = Lease::new(terms, Arc::clone(self));
        if tell {
            engine.note_holds(&lease);
        }
        next.grant(Hold::granted(lease, engine.clone()));
        Left::HandedOver
    }

    /// Nobody is let in after `until` without the store.
    pub(super) fn hand_over_until(&self, until: Instant) {
        if let Some(hand_over) = &mut self.state().hand_over {
            hand_over.until = until;
        }
    }

    /// The engine is about to bring the row up to date.
    pub(super) fn row_follows(&self) {
        self.state().behind_told = false;
    }

    /// The owner with these terms wants its row checked: after it the lock goes on through the store.
    #[cfg(feature = "sql")]
    pub(super) fn pin(&self, terms: &Arc<LeaseTerms>) -> Result<(), LockError> {
        let mut state = self.state();
        if !Arc::ptr_eq(&state.terms, terms) || state.holds == 0 {
            return Err(terms.lost(LostReason::Released));
        }
        state.hand_over = None;
        Ok(())
    }

    /// The store confirmed a request sent at `sent`: `remaining` was left then. A grant that has ended stays
    /// ended, but its row is busy for that long.
    pub(super) fn confirm(&self, sent: Instant, remaining: Duration) {
        // Whether it has ended is decided before the deadline moves.
        self.end_in_time(Instant::now());
        let mut state = self.state();
        state.store_end = state.store_end.max(sent + remaining);
    }

    /// The store has confirmed the release.
    pub(super) fn mark_released(&self) {
        self.state().released = true;
    }

    pub(super) fn is_released(&self) -> bool {
        self.state().released
    }

    /// When the store's lease ends at the earliest, on our clock.
    pub(super) fn store_end(&self) -> Instant {
        self.state().store_end
    }

    /// Why the grant has ended, if it has. The first reason stays.
    pub(super) fn lost_reason(&self) -> Option<LostReason> {
        self.end_in_time(Instant::now());
        self.state().reason
    }

    /// Ends the grant if its time is over.
    fn end_in_time(&self, now: Instant) {
        self.end_for(|state| match state.terms.max_hold_until {
            Some(end) if now >= end => Some(LostReason::MaxHold),
            _ if now < state.renewable_until() => None,
            _ if self.revoked.is_cancelled() => Some(LostReason::Revoked),
            _ => Some(LostReason::Expired),
        });
    }

    /// Ends the grant, unless it has ended already.
    pub(super) fn end(&self, reason: LostReason) {
        self.end_for(|_| Some(reason));
    }

    fn end_for(&self, reason: impl FnOnce(&State) -> Option<LostReason>) {
        let mut state = self.state();
        if state.reason.is_some() {
            return;
        }
        let Some(reason) = reason(&state) else { return };
        state.reason = Some(reason);
        // Nobody may have looked just then.
        state.terms.end(state.deadline().min(Instant::now()));
        let (terms, holds) = (Arc::clone(&state.terms), state.holds);
        drop(state);
        if holds > 0 {
            tracing::error!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                held = ?terms.held(), %reason, "lock lost");
        }
        self.ended.cancel();
    }

    pub(super) fn mark_revoked(&self) {
        self.revoked.cancel();
    }

    pub(super) fn is_revoked(&self) -> bool {
        self.revoked.is_cancelled()
    }

    pub(super) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    pub(super) fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    /// What is left until the local deadline; zero when the grant has ended.
    pub(super) fn remaining(&self) -> Duration {
        let now = Instant::now();
        self.end_in_time(now);
        let state = self.state();
        if state.reason.is_some() {
            return Duration::ZERO;
        }
        state.deadline().saturating_duration_since(now)
    }
}
