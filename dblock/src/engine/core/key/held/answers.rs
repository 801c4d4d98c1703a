//! The consequences of an answer of the store for the lease.

use std::sync::Arc;
use std::time::Duration;

use super::{FIRST_RETRY, Held, LONGEST_RETRY, ROW_FOLLOWS_WITHIN, State, Term, ended_reason};
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::out::{Kind, Note, Unconfirmed};
use crate::engine::core::time::Time;
use crate::error::LostReason;
use crate::options;
use crate::store::{Action, Outcome, StoreError, StoreErrorKind};

/// The consequence of an answer for the key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum After {
    Stands,
    /// The lease is over. `passed_on`: the row names another process already.
    Over {
        passed_on: bool,
    },
}

impl<C> Held<C> {
    /// Applies the answer to a request sent at `sent_at`.
    pub(crate) fn apply_answer(
        &mut self,
        action: &Action,
        sent_at: Time,
        answer: Result<Outcome, StoreError>,
        now: Time,
    ) -> After {
        let release = matches!(action, Action::Release);
        self.row_locked = matches!(answer, Ok(Outcome::Skipped));
        let unsure = matches!(self.state, State::Releasing { unsure: true });
        match answer {
            Ok(Outcome::Extended {
                remaining, revoked, ..
            }) if !release => {
                self.extended(sent_at, remaining, revoked, now);
                After::Stands
            }
            Ok(Outcome::Released { passed_on, .. }) if release => {
                if passed_on {
                    self.notes.push(Note::PassedOn(Arc::clone(&self.current)));
                }
                self.released(now);
                After::Over { passed_on }
            }
            // An earlier release was carried out, and its answer was lost.
            Ok(Outcome::Lost) if release && unsure => {
                self.released(now);
                After::Over { passed_on: false }
            }
            Ok(Outcome::Lost) => {
                if release {
                    self.notes
                        .push(Note::GoneBeforeRelease(Arc::clone(&self.current)));
                }
                self.gone(now);
                After::Over { passed_on: false }
            }
            Ok(Outcome::Skipped) => {
                if matches!(self.state, State::Held(_)) {
                    // Somebody has the row locked, perhaps for a fence check. While the lease lasts, memory
                    // decides.
                    self.confirmations.reply_to_sent_holds();
                }
                self.try_again(now);
                After::Stands
            }
            Ok(other) => {
                let message = format!("the store answered {action:?} with {other:?}");
                self.failed(action, StoreError::new(StoreErrorKind::Interrupted, message), now);
                After::Stands
            }
            Err(_) if release && flawed(Flaw::UnknownReleaseIsDone) => After::Over { passed_on: false },
            Err(error) => {
                self.failed(action, error, now);
                After::Stands
            }
        }
    }

    fn failed(&mut self, action: &Action, error: StoreError, now: Time) {
        if error.is_outcome_unknown() {
            match &mut self.state {
                State::Releasing { unsure } if matches!(action, Action::Release) => *unsure = true,
                _ => self.extend_unsure = self.extend_unsure.max(ttl_of(action)),
            }
        }
        let kind = Kind::of(action);
        let before = self.failure.replace((kind, error.clone()));
        self.notes.push(Note::Failed {
            ownership: Arc::clone(&self.current),
            kind,
            error,
            again: before.is_some_and(|(before, _)| before == kind),
        });
        self.try_again(now);
    }

    fn extended(&mut self, sent_at: Time, remaining: Duration, revoked: bool, now: Time) {
        self.row = self.row_sent;
        let counted_from = if flawed(Flaw::DeadlineFromTheAnswer) {
            now
        } else {
            sent_at
        };
        // Sent when all had left: the row's end may have come nearer.
        let lingers = self.row_sent.holds == 0;
        self.pause = FIRST_RETRY;
        if let Term::Times(times) = &mut self.term {
            times.since = times.since.max(sent_at);
            times.over_at = times.over_at.max(now + remaining);
            if lingers || counted_from + remaining >= times.store_end {
                times.store_end = counted_from + remaining;
                // The clock may also jump at the end of a lease that is not extended any more.
                times.length = remaining.max(self.ttl);
            }
            if matches!(self.state, State::Held(_)) && !self.current.is_revoked() {
                self.current.move_deadline(times.deadline(self.ttl), now);
            }
        }
        if matches!(self.state, State::Held(_)) {
            if self.row_is_behind() {
                self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
            } else {
                self.follow_at = None;
            }
        }
        if self.failure.take().is_some() {
            self.notes.push(Note::RenewedAgain(Arc::clone(&self.current)));
        }
        if revoked && !self.current.is_revoked() {
            self.current.mark_revoked();
            self.notes
                .push(Note::Revoked(Arc::clone(&self.current), remaining));
        }
        if let State::Lingering { written, .. } = &mut self.state {
            *written |= lingers;
        }
        if matches!(self.state, State::Lingering { .. }) && !self.lingers_as_wanted() {
            // The body has ended meanwhile: its caller waits for the request that `hold_min` needs.
            self.confirmations.wait_for_next();
            return;
        }
        self.confirmations.reply_to_sent();
    }

    pub(super) fn released(&mut self, now: Time) {
        // Another call in a transaction that has ended behind its back.
        self.lose(LostReason::Gone, now);
        self.notes.push(Note::Released(Arc::clone(&self.current)));
        self.confirmations.reply_to_all(&Ok(()));
    }

    /// The row no longer names the lease.
    fn gone(&mut self, now: Time) {
        let reason = if self.current.is_revoked() {
            LostReason::Revoked
        } else {
            LostReason::Gone
        };
        let all_left = self.needs_release() || matches!(self.state, State::Lingering { .. });
        self.lose(reason, now);
        let reason = if all_left {
            reason
        } else {
            ended_reason(&self.current)
        };
        self.confirmations.reply_to_all(&Err(Unconfirmed::Lost(reason)));
    }

    /// The request was not carried out, or that is unknown: its callers wait for the next one.
    fn try_again(&mut self, now: Time) {
        self.confirmations.wait_for_next();
        self.retry_at = Some(now + self.pause);
        let longest = options::margin(self.ttl).min(LONGEST_RETRY);
        self.pause = (self.pause * 2).min(longest);
        if self.row_is_behind() && matches!(self.state, State::Held(_)) {
            self.follow_at = self.retry_at;
        }
    }
}

/// The ttl of an extension; `None` for other requests.
pub(crate) fn ttl_of(action: &Action) -> Option<Duration> {
    match action {
        Action::Extend(extend) => Some(extend.ttl),
        _ => None,
    }
}
