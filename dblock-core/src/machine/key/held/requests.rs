//! The requests for the lease, when each is sent, and what its answer means.

use std::sync::Arc;
use std::time::Duration;

use super::{
    FIRST_RETRY, Held, Holds, InRow, LONGEST_OUTRUN, LONGEST_RETRY, ROW_FOLLOWS_WITHIN, State, Term, Times,
    ended_reason,
};
use crate::error::LostReason;
use crate::machine::env::{Env, Time, on_any_clock};
use crate::machine::out::{Note, Unconfirmed};
use crate::options;
use crate::store::{
    Action, Enter, Extend, HandedOver, Kind, Outcome, Released, Share, StoreError, StoreErrorKind,
};

/// Time that a lease still has in the store when `hold_min` is over and its row is released. With less it
/// could expire first, and the next owner would take it for the lease of a process that died. (After a
/// shutdown it does expire.)
const TO_RELEASE_IN: Duration = Duration::from_secs(1);

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
    /// When to look again without an event. `asked`: a request is on its way.
    pub(crate) fn next_look(&self, now: Time, asked: bool) -> Option<Time> {
        let end = match self.state {
            State::Held(_) => match &self.group {
                Some(group) => Some(group.first_end()),
                None => self.current.deadline(),
            },
            State::Lingering { until, .. } => Some(until),
            _ => self.times().map(|times| times.over_at),
        };
        let send_at = match self.state {
            _ if asked => None,
            State::Held(_) => {
                // A `retry_at` in the past no longer counts. The next renewal does.
                let due = self.renew_at().into_iter().chain(self.follow_at).min();
                self.retry_at.filter(|at| *at > now).or(due)
            }
            _ => self.retry_at,
        };
        let times = self.confirmations.due.into_iter().chain(end);
        times.chain(send_at.filter(|at| *at > now)).min()
    }

    /// When the lease is extended next: when less than two thirds of its ttl are confirmed. The time is moved
    /// earlier, onto a grid, so that leases of one ttl fall due together and are renewed by one statement.
    ///
    /// The store does not lengthen a revoked lease. It is asked as often, because its answer shows whether the
    /// key was freed by force since.
    fn renew_at(&self) -> Option<Time> {
        let times = self.times()?;
        let is_renewed = match &self.group {
            Some(group) => group.is_renewed(),
            None => self.current.call.options.renew,
        };
        if !is_renewed {
            return None;
        }
        let until = if self.current.is_revoked() {
            times.since + self.ttl
        } else {
            times.confirmed_until(self.ttl)
        };
        let due = until.before(self.ttl * 2 / 3).as_nanos();
        let grid = u64::try_from((self.ttl / 16).as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        Some(Time::from_nanos(due - due % grid))
    }

    /// When the next renewal is planned, by which somebody must look. For tests.
    pub(crate) fn must_send_by(&self) -> Option<Time> {
        let due = self.renew_at().filter(|_| self.is_held())?;
        Some(self.retry_at.map_or(due, |retry_at| retry_at.max(due)))
    }

    /// How late the renewal that is due now is.
    pub(crate) fn renewal_lag(&self, now: Time) -> Option<Duration> {
        let planned = self.renew_at()?;
        (planned <= now).then(|| now.since(planned))
    }

    /// Whether the row stays busy until then without a request. One ms of tolerance, because some stores
    /// count in ms.
    pub(super) fn covers(&self, until: Time) -> bool {
        let is_covered = |times: &Times| until <= times.store_end + Duration::from_millis(1);
        self.times().is_some_and(is_covered)
    }

    /// The request to send now, if any.
    pub(crate) fn next_action(&self, enter: Option<Enter>, now: Time) -> Option<Action> {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return None;
        }
        match self.state {
            State::Held(_) if self.is_in_transaction() => None,
            State::Held(Holds { count, .. }) => {
                let due = self.confirmations.want_request()
                    || self.counts_wrong(count)
                    || self.follow_at.is_some_and(|follow_at| follow_at <= now)
                    || self.renew_at().is_some_and(|renew_at| renew_at <= now);
                (due || enter.is_some()).then(|| self.extend(count, self.ttl, enter))
            }
            State::Lost(_) => None,
            State::Lingering { until, written } => {
                let missing = !written && !self.current.is_revoked();
                let ttl = on_any_clock(until.since(now)) + TO_RELEASE_IN;
                missing.then(|| self.extend(0, ttl, None))
            }
            State::ReleaseDue | State::Releasing { .. } => {
                Some(self.ticket.clone().map_or(Action::Release, Action::Transfer))
            }
        }
    }

    /// Time limit of the store for a request: an extension that hangs must leave time to be sent again.
    pub(crate) fn time_limit(&self, now: Time) -> Option<Duration> {
        let times = self.times()?;
        let end = match self.state {
            State::Held(_) => times.confirmed_until(self.ttl),
            State::Lingering { .. } => times.store_end,
            _ => return None,
        };
        Some(end.since(now) * 2 / 3)
    }

    /// The row must be told at once how many holds there are.
    fn counts_wrong(&self, count: u32) -> bool {
        if self.is_shared() {
            self.counts_too_many(count)
        } else {
            self.row.holds != count
        }
    }

    /// `enter`: asks whether there is room for more of those who share it.
    fn extend(&self, count: u32, ttl: Duration, enter: Option<Enter>) -> Action {
        let mut extend = Extend::new(count, ttl);
        extend.share = self
            .group
            .as_ref()
            .map(|group| Share::new(group.number + 1, enter));
        extend.handed_over = self.row_is_behind().then(|| {
            let call = &self.current.call;
            HandedOver::new(call.owner, Arc::clone(&call.holder), self.current.fence_token)
        });
        Action::Extend(extend)
    }

    /// `action`, from [`next_action`](Self::next_action), is being sent.
    pub(crate) fn sent(&mut self, action: &Action) {
        self.retry_at = None;
        self.follow_at = None;
        self.confirmations.sent();
        if let Action::Extend(extend) = action {
            self.row_sent = InRow {
                fence_token: self.current.fence_token,
                holds: extend.count,
                owner: Some(self.current.call.owner),
            };
            if let Some((group, share)) = self.group.as_mut().zip(extend.share.as_ref()) {
                group.sent(share.number);
            }
        } else {
            // The transaction may have carried out the release.
            let unsure = self.is_in_transaction() || matches!(self.state, State::Releasing { unsure: true });
            self.state = State::Releasing { unsure };
        }
    }

    // ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    /// Applies the answer to a request sent at `sent_at`.
    pub(crate) fn apply_answer(
        &mut self,
        action: &Action,
        sent_at: Time,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) -> After {
        let now = env.now;
        let release = !matches!(action, Action::Extend(_));
        let to_ticket = matches!(action, Action::Transfer(_));
        let locked = matches!(answer, Ok(Outcome::Skipped));
        self.row_locked_since = locked.then(|| self.row_locked_since.unwrap_or(now));
        let unsure = matches!(self.state, State::Releasing { unsure: true });
        match answer {
            Ok(Outcome::Extended {
                remaining,
                revoked,
                count,
                ..
            }) if !release => {
                if let Action::Extend(sent) = action {
                    self.extended(sent_at, sent.ttl, remaining, revoked, now);
                    if let Some(share) = &sent.share {
                        self.counted(count, sent.count, share.enter, now);
                    }
                }
                After::Stands
            }
            Ok(Outcome::Released(released)) if release => {
                let passed_on = released == Released::PassedOn;
                if passed_on {
                    self.notes.push(Note::PassedOn(Arc::clone(&self.current)));
                }
                self.released(now);
                After::Over { passed_on }
            }
            Err(error) if to_ticket && !error.is_retryable() && !error.is_outcome_unknown() => {
                // The store has no tickets, or refuses this one for good: the lock is released instead.
                self.ticket = None;
                self.state = State::ReleaseDue;
                self.confirmations
                    .reply_to_all(&Err(Unconfirmed::NoAnswer(Some(error))));
                After::Stands
            }
            Ok(Outcome::Granted { .. }) if to_ticket => {
                self.notes.push(Note::PassedOn(Arc::clone(&self.current)));
                self.confirmations.reply_to_all(&Ok(()));
                After::Over { passed_on: true }
            }
            Ok(Outcome::Lost) if to_ticket => {
                // An operator may have revoked the lease: then the row still names it, and the release frees it.
                self.ticket = None;
                self.state = State::ReleaseDue;
                let lost = Unconfirmed::Lost(self.gone_because());
                self.confirmations.reply_to_all(&Err(lost));
                After::Stands
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
                self.try_again(env);
                After::Stands
            }
            Ok(other) => {
                let message = format!("the store answered {action:?} with {other:?}");
                self.failed(action, StoreError::new(StoreErrorKind::Interrupted, message), env);
                After::Stands
            }
            Err(error) => {
                self.failed(action, error, env);
                After::Stands
            }
        }
    }

    fn failed(&mut self, action: &Action, error: StoreError, env: &mut Env<'_>) {
        if error.is_outcome_unknown() {
            match &mut self.state {
                // Nothing else is sent in this state.
                State::Releasing { unsure } => *unsure = true,
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
        self.try_again(env);
    }

    /// `ttl`: with which it was asked for.
    fn extended(&mut self, sent_at: Time, ttl: Duration, remaining: Duration, revoked: bool, now: Time) {
        self.row = self.row_sent;
        // This Extend was sent after the last hold had ended. It may have shortened the row's end.
        let lingers = self.row_sent.holds == 0;
        self.pause = FIRST_RETRY;
        if let Term::Times(times) = &mut self.term {
            times.since = times.since.max(sent_at);
            times.over_at = times.over_at.max(now + remaining);
            if lingers || sent_at + remaining >= times.store_end {
                times.store_end = sent_at + remaining;
                // The clock may jump at any end, so the margin stays that of the whole ttl, if the store was ever asked for it.
                times.length = remaining.max(self.ttl.min(times.length.max(ttl)));
            }
            let deadline = times.deadline(self.ttl);
            match &mut self.group {
                _ if self.current.is_revoked() => {}
                // When all have left, others may still join.
                Some(group) => group.move_deadline(deadline, now),
                None if matches!(self.state, State::Held(_)) => self.current.move_deadline(deadline, now),
                None => {}
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
            for owner in self.owners() {
                owner.mark_revoked();
                self.notes.push(Note::Revoked(owner, remaining));
            }
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
        // If another call has entered in a transaction that ended unnoticed, its lease ends here.
        self.lose(LostReason::Gone, now);
        self.notes.push(Note::Released(Arc::clone(&self.current)));
        self.confirmations.reply_to_all(&Ok(()));
    }

    fn gone_because(&self) -> LostReason {
        if self.current.is_revoked() {
            LostReason::Revoked
        } else {
            LostReason::Gone
        }
    }

    /// The row no longer names the lease.
    fn gone(&mut self, now: Time) {
        let reason = self.gone_because();
        let all_left = self.needs_release() || matches!(self.state, State::Lingering { .. });
        self.lose(reason, now);
        let reason = if all_left {
            reason
        } else {
            ended_reason(&self.current)
        };
        self.confirmations.reply_to_all(&Err(Unconfirmed::Lost(reason)));
    }

    /// The request failed or was skipped. Its callers wait for the next request.
    fn try_again(&mut self, env: &mut Env<'_>) {
        self.confirmations.wait_for_next();
        // The row of a shared lease is locked for moments only, mostly by others who share it.
        let longest = match self.row_locked_since {
            Some(_) if self.is_shared() => LONGEST_OUTRUN,
            _ => LONGEST_RETRY,
        };
        let longest = options::margin(self.ttl).min(longest);
        let pause = env.jittered(self.pause).min(longest);
        self.retry_at = Some(env.now + pause);
        self.pause = (self.pause * 2).min(longest);
        if (self.row_is_behind() || self.is_shared()) && matches!(self.state, State::Held(_)) {
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
