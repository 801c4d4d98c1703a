//! The lease that this process has on a key, seen by the engine: what its row says, and what must be
//! written next.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lease::Lease;
use super::waiter::Syncer;
use crate::error::LostReason;
use crate::options;
use crate::store::{Action, Outcome, StoreError, StoreErrorKind};

/// Pause before a row that was locked by somebody is asked again; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(10);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Holding {
    pub(super) lease: Arc<Lease>,
    /// The number of holds that the row has.
    row_count: u32,
    /// When the lease is extended next; `None` when it is not to be.
    renew_at: Option<Instant>,
    /// Nothing is sent before this.
    retry_at: Option<Instant>,
    pause: Duration,
    trouble: Option<StoreError>,
    /// Callers whose change the next request will carry, and those whose change is on its way.
    waiting: Vec<Syncer>,
    sent: Vec<Syncer>,
    /// An extension was sent and its reply was lost: the row may be busy for longer than the lease knows.
    extend_unsure: bool,
    /// A release was sent and its reply was lost: it may have been carried out.
    release_unsure: bool,
}

/// What the answer to a request means for the key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The lease stands.
    Held,
    /// The lease is over; somebody in another process waits for the key if `wanted`.
    Over { wanted: bool },
}

impl Holding {
    pub(super) fn new(lease: Arc<Lease>) -> Self {
        let mut holding = Self {
            row_count: 1,
            renew_at: None,
            retry_at: None,
            pause: FIRST_RETRY,
            trouble: None,
            waiting: Vec::new(),
            sent: Vec::new(),
            extend_unsure: false,
            release_unsure: false,
            lease,
        };
        holding.plan_renewal(holding.lease.terms.since);
        holding
    }

    /// A third of the ttl after `sent`, put earlier onto a grid so that leases of one ttl fall due together
    /// and are renewed by one statement.
    fn plan_renewal(&mut self, sent: Instant) {
        let ttl = self.lease.terms.ttl;
        self.renew_at = self.lease.terms.renew.then(|| {
            let due = sent + ttl / 3;
            let grid = (ttl / 16).as_nanos().max(1);
            let past_grid = due.saturating_duration_since(epoch()).as_nanos() % grid;
            due - Duration::from_nanos(u64::try_from(past_grid).unwrap_or(0))
        });
    }

    /// Notes that the number of holds has changed. `syncer` is told when the row has it.
    pub(super) fn note_holds(&mut self, syncer: Option<Syncer>) {
        self.waiting.extend(syncer);
    }

    /// Answers callers whose time is over, and everyone when the lease has ended.
    pub(super) fn expire(&mut self, now: Instant) {
        let ended = self.lease.lost_reason().is_some();
        let key = &self.lease.terms.key;
        for list in [&mut self.waiting, &mut self.sent] {
            for syncer in list.extract_if(.., |syncer| {
                (ended && self.lease.holds() > 0) || syncer.deadline() <= now
            }) {
                if ended {
                    syncer.lost(&self.lease);
                } else {
                    syncer.give_up(key, self.trouble.clone());
                }
            }
        }
    }

    /// The store's lease has surely ended and nothing can be done for it any more.
    pub(super) fn is_past(&self, now: Instant) -> bool {
        self.lease.lost_reason().is_some() && now >= self.lease.store_end()
    }

    /// A request whose outcome nobody knows may have extended the row.
    pub(super) fn is_unsure(&self) -> bool {
        self.extend_unsure
    }

    /// How far the renewal that is due is behind its plan.
    pub(super) fn renewal_lag(&self, now: Instant) -> Option<Duration> {
        self.renew_at
            .and_then(|planned| now.checked_duration_since(planned))
    }

    /// Everyone has left, and `hold_min` keeps the row busy.
    pub(super) fn lingers(&self, now: Instant) -> bool {
        self.lease.holds() == 0 && self.lingers_until(now).is_some_and(|until| self.covers(until))
    }

    /// The row is busy until then by itself. Stores count in µs, or in ms.
    fn covers(&self, until: Instant) -> bool {
        until <= self.lease.store_end() + Duration::from_millis(1)
    }

    /// Somebody is inside, perhaps still although the lease has ended, or `hold_min` keeps the row busy.
    pub(super) fn is_occupied(&self, now: Instant) -> bool {
        self.lease.holds() > 0 || self.lingers_until(now).is_some()
    }

    /// Why the last request failed, if it did.
    pub(super) fn trouble(&self) -> Option<&StoreError> {
        self.trouble.as_ref()
    }

    /// `hold_min` keeps the row busy although everyone has left.
    fn lingers_until(&self, now: Instant) -> Option<Instant> {
        let until = self.lease.terms.hold_min_until?;
        // The local deadline is for bodies; the row is busy until its own end.
        let stands = matches!(self.lease.lost_reason(), None | Some(LostReason::Expired));
        (now < until && stands).then_some(until)
    }

    /// What to send now, if anything.
    pub(super) fn next_action(&mut self, now: Instant) -> Option<Action> {
        if self.retry_at.is_some_and(|retry_at| retry_at <= now) {
            self.retry_at = None;
        }
        let may_send = self.retry_at.is_none();
        let holds = self.lease.holds();
        let ended = self.lease.lost_reason().is_some();
        if let Some(until) = self.lingers_until(now).filter(|_| holds == 0) {
            // The callers need not wait for that.
            self.waiting.drain(..).for_each(Syncer::done);
            self.renew_at = None;
            let missing = !self.covers(until) && !ended && !self.lease.is_revoked();
            let ttl = until - now;
            return (missing && may_send).then_some(Action::Extend {
                count: 1,
                ttl,
                successor: None,
            });
        }
        if !may_send {
            return None;
        }
        if holds == 0 {
            return Some(Action::Release);
        }
        let due = !self.waiting.is_empty()
            || self.row_count != holds
            || self.renew_at.is_some_and(|renew_at| renew_at <= now);
        (due && !ended).then_some(Action::Extend {
            count: holds,
            ttl: self.lease.terms.ttl,
            successor: None,
        })
    }

    /// The action of [`next_action`](Self::next_action) is on its way.
    pub(super) fn sent(&mut self) {
        self.retry_at = None;
        self.sent.append(&mut self.waiting);
    }

    /// When to look again without an event. `asked`: a request is on its way.
    pub(super) fn next_look(&self, now: Instant, asked: bool) -> Instant {
        let deadlines = self.waiting.iter().chain(&self.sent).map(Syncer::deadline);
        let end = if self.lease.lost_reason().is_some() {
            self.lease.store_end()
        } else {
            self.lease.deadline()
        };
        let send_at = if asked {
            None
        } else if self.lease.holds() == 0 {
            self.lingers_until(now).into_iter().chain(self.retry_at).min()
        } else {
            self.retry_at
                .or(self.renew_at.filter(|_| self.lease.lost_reason().is_none()))
        };
        deadlines
            .chain(send_at.filter(|at| *at > now))
            .fold(end, Instant::min)
    }

    /// Takes the answer to a request sent at `sent_at`.
    pub(super) fn settle(
        &mut self,
        action: &Action,
        sent_at: Instant,
        answer: Result<Outcome, StoreError>,
        now: Instant,
    ) -> Settled {
        match answer {
            Ok(Outcome::Extended {
                remaining, revoked, ..
            }) => {
                self.extended(action, sent_at, remaining, revoked);
                Settled::Held
            }
            Ok(Outcome::Released { wanted, .. }) => {
                self.released();
                Settled::Over { wanted }
            }
            Ok(Outcome::Lost) if matches!(action, Action::Release) && self.release_unsure => {
                self.released();
                Settled::Over { wanted: true }
            }
            Ok(Outcome::Lost) => {
                self.lease.end(if self.lease.is_revoked() {
                    LostReason::Revoked
                } else {
                    LostReason::Gone
                });
                if matches!(action, Action::Release) {
                    let terms = &self.lease.terms;
                    tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                        held = ?self.lease.held(), "lock was gone before its release");
                }
                self.give_everyone_up();
                Settled::Over { wanted: true }
            }
            Ok(Outcome::Skipped) => {
                // The row is locked, by a fence check perhaps. Inside the lease memory decides who is in.
                if matches!(action, Action::Extend { .. }) {
                    self.sent.drain(..).for_each(Syncer::done);
                } else {
                    self.wait_on();
                }
                self.back_off(now);
                Settled::Held
            }
            Ok(other) => {
                let message = format!("the store answered {action:?} with {other:?}");
                let error = StoreError::new(StoreErrorKind::Interrupted, message);
                self.settle(action, sent_at, Err(error), now)
            }
            Err(error) => {
                if error.is_outcome_unknown() {
                    match action {
                        Action::Release => self.release_unsure = true,
                        _ => self.extend_unsure = true,
                    }
                }
                let terms = &self.lease.terms;
                tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                    held = ?self.lease.held(), %error, remaining = ?self.lease.remaining(),
                    "lock could not be {}; trying again",
                    if matches!(action, Action::Release) { "released" } else { "renewed" });
                self.trouble = Some(error);
                self.wait_on();
                self.back_off(now);
                Settled::Held
            }
        }
    }

    fn extended(&mut self, action: &Action, sent_at: Instant, remaining: Duration, revoked: bool) {
        if let Action::Extend { count, .. } = action {
            self.row_count = *count;
        }
        self.lease.confirm(sent_at, remaining);
        self.extend_unsure = false;
        self.pause = FIRST_RETRY;
        if self.trouble.take().is_some() {
            let terms = &self.lease.terms;
            tracing::info!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token, "lock renewed again");
        }
        if revoked {
            if !self.lease.is_revoked() {
                let terms = &self.lease.terms;
                tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                    ?remaining, "lock revoked by an operator");
                self.lease.mark_revoked();
            }
            self.renew_at = None;
        } else if self.renew_at.is_some() {
            self.plan_renewal(sent_at);
        }
        self.sent.drain(..).for_each(Syncer::done);
    }

    fn released(&mut self) {
        self.lease.mark_released();
        let terms = &self.lease.terms;
        tracing::debug!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
            held = ?self.lease.held(), "lock released");
        self.sent
            .drain(..)
            .chain(self.waiting.drain(..))
            .for_each(Syncer::done);
    }

    /// The lease is over: nobody will get what they wait for.
    pub(super) fn give_everyone_up(&mut self) {
        let lease = &self.lease;
        self.sent
            .drain(..)
            .chain(self.waiting.drain(..))
            .for_each(|syncer| syncer.lost(lease));
    }

    /// The request was not carried out, or nobody knows: its callers wait for the next one.
    fn wait_on(&mut self) {
        self.waiting.append(&mut self.sent);
    }

    fn back_off(&mut self, now: Instant) {
        self.retry_at = Some(now + self.pause);
        let longest = (options::margin(self.lease.terms.ttl)).min(LONGEST_RETRY);
        self.pause = (self.pause * 2).min(longest);
    }
}

/// The origin of the renewal grid.
fn epoch() -> Instant {
    static EPOCH: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}
