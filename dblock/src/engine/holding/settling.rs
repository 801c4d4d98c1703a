//! What the store's answer means for a grant that this process has.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{FIRST_RETRY, Holding, LONGEST_RETRY, Release};
use crate::engine::batch::Kind;
use crate::engine::waiter::Syncer;
use crate::error::LostReason;
use crate::options;
use crate::store::{Action, Extend, Outcome, StoreError, StoreErrorKind};

/// What the answer to a request means for the key.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::engine) enum Settled {
    /// The lease stands.
    Held,
    /// The lease is over; somebody in another process waits for the key if `wanted`.
    Over { wanted: bool },
}

impl Holding {
    /// Takes the answer to a request sent at `sent_at`.
    pub(in crate::engine) fn settle(
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
                self.extended(action, sent_at, remaining, revoked, now);
                Settled::Held
            }
            Ok(Outcome::Released { wanted, .. }) => {
                self.released();
                Settled::Over { wanted }
            }
            Ok(Outcome::Lost) if matches!(action, Action::Release) && self.release == Release::Unsure => {
                self.released();
                Settled::Over { wanted: false }
            }
            Ok(Outcome::Lost) => {
                self.grant.end(if self.grant.is_revoked() {
                    LostReason::Revoked
                } else {
                    LostReason::Gone
                });
                if matches!(action, Action::Release) {
                    let terms = self.terms();
                    tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                        held = ?terms.held(), "lock was gone before its release");
                }
                self.give_everyone_up();
                Settled::Over { wanted: false }
            }
            Ok(Outcome::Skipped) => {
                // The row is locked, by a fence check perhaps. Inside the lease memory decides who is in.
                if matches!(action, Action::Extend(_)) {
                    let done = self.sent.extract_if(.., |syncer| syncer.trusts_memory());
                    done.for_each(Syncer::done);
                }
                self.wait_on();
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
                        Action::Release => self.release = Release::Unsure,
                        _ => self.extend_unsure = true,
                    }
                }
                self.report(action, &error);
                self.trouble = Some(error);
                self.wait_on();
                self.back_off(now);
                Settled::Held
            }
        }
    }

    /// Warns once of each kind of request: it is sent again and again.
    fn report(&mut self, action: &Action, error: &StoreError) {
        let kind = Kind::of(action);
        let what = if kind == Kind::Release {
            "released"
        } else {
            "renewed"
        };
        let told = self.trouble_told.replace(kind) == Some(kind);
        let terms = self.terms();
        if told {
            tracing::debug!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token, %error,
                "lock still could not be {what}");
        } else {
            tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                held = ?terms.held(), %error, remaining = ?self.grant.remaining(),
                "lock could not be {what}; trying again");
        }
    }

    fn extended(
        &mut self,
        action: &Action,
        sent_at: Instant,
        remaining: Duration,
        revoked: bool,
        now: Instant,
    ) {
        if let Action::Extend(Extend { count, .. }) = action {
            self.row_count = *count;
        }
        self.row = Some(Arc::clone(&self.sent_terms));
        self.grant.confirm(sent_at, remaining);
        self.extend_unsure = false;
        self.pause = FIRST_RETRY;
        self.refresh(now);
        if !self.row_is_behind() {
            self.follow_at = None;
        }
        let terms = &self.seen.terms;
        self.trouble_told = None;
        if self.trouble.take().is_some() {
            tracing::info!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token, "lock renewed again");
        }
        if revoked && !self.grant.is_revoked() {
            tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                ?remaining, "lock revoked by an operator");
            self.grant.mark_revoked();
        }
        self.sent.drain(..).for_each(Syncer::done);
    }

    fn released(&mut self) {
        self.grant.mark_released();
        let terms = self.terms();
        tracing::debug!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
            held = ?terms.held(), "lock released");
        self.sent
            .drain(..)
            .chain(self.waiting.drain(..))
            .for_each(Syncer::done);
    }

    /// The lease is over: nobody will get what they wait for.
    fn give_everyone_up(&mut self) {
        let reason = self.grant.lost_reason();
        let terms = &self.seen.terms;
        self.sent
            .drain(..)
            .chain(self.waiting.drain(..))
            .for_each(|syncer| syncer.lost(terms, reason));
    }

    /// The lease has run out: who is inside has lost it, and who has left was not heard by the store.
    pub(in crate::engine) fn run_out(&mut self) {
        if !self.is_left() {
            return self.give_everyone_up();
        }
        for syncer in self.sent.drain(..).chain(self.waiting.drain(..)) {
            syncer.give_up(&self.seen.terms.key, self.trouble.clone());
        }
    }

    /// The request was not carried out, or nobody knows: its callers wait for the next one.
    fn wait_on(&mut self) {
        self.waiting.append(&mut self.sent);
    }

    fn back_off(&mut self, now: Instant) {
        self.retry_at = Some(now + self.pause);
        let longest = options::margin(self.seen.terms.ttl).min(LONGEST_RETRY);
        self.pause = (self.pause * 2).min(longest);
    }
}
