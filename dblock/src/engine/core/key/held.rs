//! The lease that this process has on a key.
//!
//! | state | what happens | next |
//! |---|---|---|
//! | – | granted by the store, or passed on by another process | `Held` |
//! | `Held` | the deadline or `max_hold` passes, a fence check finds the lease gone, shutdown | `Lost` |
//! | `Held` | a transaction of the owner's has written the release: the lease is *kept* from here on | `Held` |
//! | `Held`, `Lost` | the last hold ends while `hold_min` is not over, and nothing but time has ended the lease | `Lingering` |
//! | `Held`, `Lost` | the last hold ends otherwise | `Left` |
//! | `Lingering` | `hold_min` is over | `Left` |
//! | `Left` | the next caller of this process enters in memory: local hand-over | `Held` |
//! | `Left` | the release is sent | `Releasing` |
//! | `Releasing` | the answer is `Released` or `Lost` | – |
//! | `Releasing` | the row was locked, or the outcome is unknown: the release is sent again | `Releasing` |
//! | `Left`, `Releasing`, kept | another call enters in the same transaction | `Held` |
//! | any, kept | `locks.transaction` has committed | – |
//! | `Lingering` | shutdown, when the row is busy for long enough by itself | – |
//! | any but `Held` | the latest possible end in the store has passed | – |
//!
//! - `Held`: an owner holds the lock. This is the only state in which a hold is added. The row is renewed unless it is
//!   revoked: then the lease stays `Held` until its deadline.
//! - `Lost`: the lease has ended before its holds did. Bodies are being stopped. A lost lease never becomes `Held`.
//! - `Lingering`: all holds have ended, and `hold_min` keeps the row busy. The row is extended if it would expire too
//!   early.
//! - `Left`: all holds have ended, and the release is due. The next caller may still enter without the store.
//! - `Releasing`: the release was sent, so no caller enters with this lease any more.
//!
//! When the store answers `Lost`, the lease is forgotten from any state.
//!
//! A lease is *kept* when a transaction of the owner's keeps the row locked, and frees it with its commit
//! ([`Held::keep_in_transaction`]). Then the lease has no end of its own: nothing is renewed, and `Releasing` asks until
//! that transaction is over. Answered `Released` or `Lost`, the transaction has been rolled back or has committed.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::wait_queue::WaitQueue;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::out::{Kind, LastAnswer, Note, Out, Reply};
use crate::engine::core::ownership::{Call, Ownership};
use crate::engine::core::time::{Time, on_any_clock};
use crate::error::LostReason;
use crate::key::Key;
use crate::options;
use crate::store::{Action, Extend, HandedOver, Holder, Outcome, RecordChange, StoreError, StoreErrorKind};

/// Pause before the next request for a row that somebody had locked; doubles up to [`LONGEST_RETRY`].
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// Time that a lease still has in the store when `hold_min` is over and its row is released. With less it could expire
/// first, and the next owner would take it for the lease of a process that died. (After a shutdown it does expire.)
const TO_RELEASE_IN: Duration = Duration::from_secs(1);

/// How long the row may name the former owner after a local hand-over.
const ROW_FOLLOWS_WITHIN: Duration = Duration::from_millis(50);

/// A lease as the store granted it or passed it on to this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grant {
    pub(super) lease_id: Uuid,
    pub(super) fence_token: i64,
    /// Tokens kept free above `fence_token`, for local hand-overs.
    pub(super) spare_tokens: u32,
    /// When the lease ends in the store: at the earliest, counted from when the request was sent, and at the latest
    /// (`over_at`), counted from its answer.
    pub(super) store_end: Time,
    pub(super) over_at: Time,
    /// The length that the lease was given for. The margin is a part of it.
    pub(super) length: Duration,
    /// The owner that the row names. `None` after a pass-on: then the owner in the row is unknown, and less than the
    /// whole lease may be left.
    pub(super) row_owner: Option<Uuid>,
    /// Since when the owner has it: when the request was sent that made it the owner, or that last extended the
    /// lease.
    pub(super) since: Time,
    /// Others want the key: another process, or an earlier ask of this one.
    pub(super) wanted: bool,
}

impl Grant {
    /// The local deadline for an owner that asks for `ttl`: a margin before the end in the store, and a margin before
    /// the owner's own ttl has passed, because a former owner may have asked for a longer one.
    pub(super) fn deadline(&self, ttl: Duration) -> Time {
        if flawed(Flaw::NoMargin) {
            return self.store_end;
        }
        let in_store = self.store_end.before(options::margin(self.length));
        in_store.min((self.since + ttl).before(options::margin(ttl)))
    }

    /// When the confirmed part of the owner's ttl ends.
    fn end(&self, ttl: Duration) -> Time {
        self.store_end.min(self.since + ttl)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held { holds: u32 },
    Lost { holds: u32 },
    Lingering { until: Time },
    Left,
    Releasing { unsure: bool },
}

/// A caller that waits until the store confirms what it did.
#[derive(Debug)]
pub(crate) struct Confirm<C> {
    pub(crate) ticket: C,
    pub(crate) deadline: Time,
}

/// The row must show this before a caller is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// The number of holds. Memory is enough while somebody has the row locked.
    Holds,
    /// The owner.
    Owner,
    /// An end that is counted from now.
    End,
}

#[derive(Debug)]
struct Pending<C> {
    confirm: Confirm<C>,
    shows: Shows,
}

#[derive(Debug)]
pub(super) struct Held<C> {
    grant: Grant,
    state: State,
    /// A run began with the grant, and its caller has not entered: the release takes it back.
    pub(super) undo: Option<Arc<RecordChange>>,
    /// The ownership that holds it, or held it last.
    current: Arc<Ownership>,
    /// The ttl that the owner has asked for last.
    ttl: Duration,
    /// Local hand-over is possible until then. `None` after an owner has asked for a fence check, or did not
    /// leave in order.
    hand_over_until: Option<Time>,
    /// The token and the number of holds in the row, and those that the request on its way writes.
    row: (i64, u32),
    row_sent: (i64, u32),
    row_owner_sent: Option<Uuid>,
    /// When the row must be brought up to date.
    follow_at: Option<Time>,
    /// Nothing is sent before this.
    retry_at: Option<Time>,
    pause: Duration,
    /// Why the last request failed, and the kind of the last request whose failure was logged.
    failure: Option<(Kind, StoreError)>,
    /// The last request found the row locked.
    row_locked: bool,
    /// A transaction of the owner's keeps the row locked, and frees it when it commits.
    in_transaction: bool,
    /// Callers whose change the next request carries, and those whose change is on its way.
    waiting: Vec<Pending<C>>,
    sent: Vec<Pending<C>>,
    /// The earliest deadline of these callers.
    confirm_by: Option<Time>,
    /// The ttl of an extension of unknown outcome: the row may be busy for longer than this machine knows. A later
    /// extension that succeeds proves nothing about it.
    extend_unsure: Option<Duration>,
}

/// The consequence of an answer for the key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum After {
    Stands,
    /// The lease is over. `passed_on`: the row names another process already.
    Over {
        passed_on: bool,
    },
}

impl<C> Held<C> {
    pub(super) fn new(grant: Grant, current: Arc<Ownership>, hand_over_until: Time, now: Time) -> Self {
        let row = (current.fence_token, 1);
        let mut held = Self {
            state: State::Held { holds: 1 },
            undo: None,
            hand_over_until: Some(hand_over_until),
            row,
            row_sent: row,
            row_owner_sent: grant.row_owner,
            follow_at: None,
            retry_at: None,
            pause: FIRST_RETRY,
            failure: None,
            row_locked: false,
            in_transaction: false,
            waiting: Vec::new(),
            sent: Vec::new(),
            confirm_by: None,
            extend_unsure: None,
            ttl: current.call.ttl,
            current,
            grant,
        };
        if held.row_is_behind() {
            held.follow_at = Some(now);
        }
        held
    }

    pub(super) fn lease_id(&self) -> Uuid {
        self.grant.lease_id
    }

    pub(super) fn current(&self) -> &Arc<Ownership> {
        &self.current
    }

    /// An owner holds it, perhaps although the lease has ended, or `hold_min` keeps the row busy.
    pub(super) fn is_occupied(&self) -> bool {
        !self.is_left()
    }

    /// An owner holds it, and the lease has not ended.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, State::Held { .. })
    }

    /// All holds have ended, and the row must still be released.
    pub(super) fn is_left(&self) -> bool {
        matches!(self.state, State::Left | State::Releasing { .. })
    }

    /// `hold_min` keeps the row busy, and no further request is needed for that.
    pub(super) fn lingers_by_itself(&self) -> bool {
        matches!(self.state, State::Lingering { until } if self.covers(until) || self.current.is_revoked())
    }

    pub(super) fn holder(&self, now: Time) -> Holder {
        Holder {
            owner: self.current.call.owner,
            name: self.current.call.holder.to_string(),
            fence_token: self.current.fence_token,
            remaining: Some(self.grant.store_end.since(now)),
        }
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub(super) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        match self.state {
            State::Held { holds } if self.is_of(ownership) => holds,
            _ => 0,
        }
    }

    /// How often the lock was handed over locally.
    pub(super) fn hand_overs(&self) -> u32 {
        u32::try_from(self.current.fence_token - self.grant.fence_token).unwrap_or(u32::MAX)
    }

    /// The reason why the row could not be written, as far as the last request showed.
    pub(super) fn last_error(&self) -> Option<LastAnswer> {
        match &self.failure {
            Some((_, error)) => Some(LastAnswer::Failed(error.clone())),
            None => self.row_locked.then_some(LastAnswer::RowLocked),
        }
    }

    fn is_of(&self, ownership: &Arc<Ownership>) -> bool {
        Arc::ptr_eq(&self.current, ownership)
    }

    fn row_is_behind(&self) -> bool {
        self.row.0 != self.current.fence_token || self.grant.row_owner != Some(self.current.call.owner)
    }

    // ── What callers do ──────────────────────────────────────────────────────────────────────────────

    /// Adds a hold of `ownership`. Fails when that has ended.
    pub(super) fn enter(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        match &mut self.state {
            State::Held { holds } if Arc::ptr_eq(&self.current, ownership) => {
                *holds += 1;
                Ok(())
            }
            _ => Err(ended_reason(ownership)),
        }
    }

    /// Ends a hold of `ownership`; `None` when that is not the current one. `in_order`: the body returned.
    pub(super) fn leave(
        &mut self,
        ownership: &Arc<Ownership>,
        in_order: bool,
        now: Time,
        out: &mut Out<C>,
    ) -> Option<()> {
        if !self.is_of(ownership) {
            return None;
        }
        if !in_order {
            self.hand_over_until = None;
        }
        match &mut self.state {
            State::Held { holds } | State::Lost { holds }
                if *holds > 1 && !flawed(Flaw::HoldsAreForgotten) =>
            {
                *holds -= 1;
            }
            State::Held { .. } | State::Lost { .. } => {
                // The local deadline applies to bodies. The row is busy until its own end.
                let stands = matches!(
                    self.current.ended(),
                    None | Some(LostReason::Expired | LostReason::MaxHold)
                );
                self.end_in_order(now, out);
                let lingers = self.current.hold_min_until.filter(|until| stands && now < *until);
                let lingers = lingers.filter(|_| !flawed(Flaw::HoldMinIsForgotten));
                self.state = lingers.map_or(State::Left, |until| State::Lingering { until });
                if self.failure.is_none() {
                    // The last request found the row locked. The release need not wait for its pause.
                    self.retry_at = None;
                    self.pause = FIRST_RETRY;
                }
            }
            State::Lingering { .. } | State::Left | State::Releasing { .. } => return None,
        }
        Some(())
    }

    /// The owner is done. Does nothing when the lease was lost before.
    fn end_in_order(&self, now: Time, out: &mut Out<C>) {
        if self.current.end(LostReason::Released, now) {
            out.left = Some(self.current.held_for(now));
        }
    }

    /// The owner asks for a fence check: there is no local hand-over after that.
    pub(super) fn pin(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        if !self.is_of(ownership) || !matches!(self.state, State::Held { .. }) {
            return Err(ended_reason(ownership));
        }
        self.hand_over_until = self.hand_over_until.filter(|_| flawed(Flaw::HandOverAfterPin));
        Ok(())
    }

    /// From here on the owner has this ttl.
    pub(super) fn set_ttl(&mut self, ownership: &Arc<Ownership>, ttl: Duration) -> Result<(), LostReason> {
        if !self.is_of(ownership) || !self.is_held() {
            return Err(ended_reason(ownership));
        }
        self.ttl = ttl;
        Ok(())
    }

    /// A transaction of the owner's has freed the row, and keeps it locked until it ends: no ttl runs, and no request
    /// reaches the row.
    pub(super) fn keep_in_transaction(
        &mut self,
        ownership: &Arc<Ownership>,
        now: Time,
    ) -> Result<(), LostReason> {
        self.pin(ownership)?;
        self.in_transaction = true;
        self.grant.over_at = Time::MAX;
        self.current.move_deadline(Time::MAX, now);
        Ok(())
    }

    /// An owner holds it, and the lease ends with a transaction of that owner's.
    pub(super) fn is_kept_in_transaction(&self) -> bool {
        self.in_transaction && self.is_held()
    }

    /// The owner's transaction has committed, and with it the release.
    pub(super) fn committed(&mut self, now: Time, out: &mut Out<C>) {
        self.end_in_order(now, out);
        self.released(now, out);
    }

    /// Another call in the transaction that keeps the row locked.
    pub(super) fn enter_again(
        &mut self,
        lease_id: Uuid,
        call: &Call,
        key: &Key,
        now: Time,
    ) -> Option<Arc<Ownership>> {
        if !self.in_transaction || !self.is_left() || self.grant.lease_id != lease_id {
            return None;
        }
        let ids = (lease_id, self.current.fence_token);
        let ownership = Ownership::new(key.clone(), call.clone(), ids, (now, now), Time::MAX);
        self.current = Arc::new(ownership);
        self.ttl = call.ttl;
        self.state = State::Held { holds: 1 };
        Some(Arc::clone(&self.current))
    }

    /// The transaction that keeps the row locked may have ended.
    pub(super) fn woken(&mut self) {
        if self.left_in_transaction().is_some() {
            self.retry_at = None;
            self.pause = FIRST_RETRY;
        }
    }

    /// The lease that a transaction keeps although its owner has left. The transaction may have ended unnoticed.
    pub(super) fn left_in_transaction(&self) -> Option<(Uuid, i64)> {
        (self.in_transaction && self.is_left()).then_some((self.grant.lease_id, self.current.fence_token))
    }

    /// Answers `confirm` when the store has confirmed the change.
    pub(super) fn confirm(&mut self, confirm: Confirm<C>, shows: Shows, out: &mut Out<C>) {
        let named = !self.row_is_behind() || flawed(Flaw::PinsAreConfirmedAtOnce);
        if shows == Shows::Owner && named || self.is_kept_in_transaction() {
            out.replies.push(Reply::Confirmed(confirm.ticket));
        } else {
            self.confirm_by = self.confirm_by.into_iter().chain([confirm.deadline]).min();
            self.waiting.push(Pending { confirm, shows });
        }
    }

    /// Moves the end of local hand-over to `until`, if it is still allowed.
    pub(super) fn hand_over_until(&mut self, until: Time) {
        if let Some(before) = &mut self.hand_over_until {
            *before = until;
        }
    }

    /// The next caller enters without the store, where the rules allow it.
    pub(super) fn hand_over(
        &mut self,
        queue: &mut WaitQueue<C>,
        key: &Key,
        now: Time,
        out: &mut Out<C>,
    ) -> bool {
        let after_loss = flawed(Flaw::HandOverAfterLoss);
        let until = self.hand_over_until.is_some_and(|until| now < until);
        let left =
            matches!(self.state, State::Left) || flawed(Flaw::HandOverWhileReleasing) && self.is_left();
        if !left
            || !until
            || self.current.hold_min_until.is_some()
            || self.current.is_revoked() && !flawed(Flaw::RevokedIsHandedOver)
        {
            return false;
        }
        let used_up = self.hand_overs() == self.grant.spare_tokens || self.current.fence_token == i64::MAX;
        if used_up && !flawed(Flaw::HandOverBeyondSpareTokens) {
            return false;
        }
        let confirmed = self.grant.store_end.since(now);
        let grant = Grant {
            since: now,
            ..self.grant
        };
        let next = queue.pop_if(now, |call| {
            let enough = confirmed >= call.ttl.mul_f64(2.0 / 3.0) && now < grant.deadline(call.ttl);
            call.renew && (enough || after_loss)
        });
        let Some(next) = next else { return false };
        let token = self.current.fence_token + i64::from(!flawed(Flaw::HandOverKeepsToken));
        self.grant = grant;
        let ids = (self.grant.lease_id, token);
        self.ttl = next.call.ttl;
        let deadline = grant.deadline(self.ttl);
        let ownership = Arc::new(Ownership::new(
            key.clone(),
            next.call.clone(),
            ids,
            (now, now),
            deadline,
        ));
        self.state = State::Held { holds: 1 };
        let waited = Note::Waited(Arc::clone(&ownership), now.since(next.since));
        let former = mem::replace(&mut self.current, Arc::clone(&ownership));
        out.notes.extend([waited, Note::HandedOver(former)]);
        self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
        // The former owner need not wait until the row names its successor.
        let done = self
            .waiting
            .drain(..)
            .map(|pending| Reply::Confirmed(pending.confirm.ticket));
        out.replies.extend(done);
        out.replies.push(Reply::Granted(next, ownership));
        true
    }

    // ── What time does ───────────────────────────────────────────────────────────────────────────────

    /// Lets time pass. Returns whether the lease has surely ended in the store, so that nothing can be done for it
    /// any more.
    pub(super) fn advance(&mut self, now: Time, out: &mut Out<C>) -> bool {
        if let State::Held { holds } = self.state {
            let (reason, first) = self.current.look(now);
            if first {
                self.note_lost(reason, out);
            }
            if reason.is_some() {
                self.lose(holds);
            }
        }
        if let State::Lingering { until } = self.state
            && now >= until
        {
            self.state = State::Left;
        }
        self.answer_waiting(now, out);
        let over = now >= self.grant.over_at;
        over && !matches!(self.state, State::Held { .. })
    }

    fn note_lost(&self, reason: Option<LostReason>, out: &mut Out<C>) {
        if let Some(reason) = reason {
            out.changed.push(Arc::clone(&self.current));
            out.notes.push(Note::Lost(Arc::clone(&self.current), reason));
        }
    }

    /// Answers callers whose timeout has passed, and those that wait for a lost lease.
    fn answer_waiting(&mut self, now: Time, out: &mut Out<C>) {
        let lost = matches!(self.state, State::Lost { .. });
        let done = self.lingers_by_itself() || self.is_kept_in_transaction();
        if !lost && !done && self.confirm_by.is_none_or(|by| now < by) {
            return;
        }
        let reason = ended_reason(&self.current);
        for list in [&mut self.waiting, &mut self.sent] {
            for Pending { confirm, .. } in list.extract_if(.., |p| lost || done || p.confirm.deadline <= now)
            {
                out.replies.push(if lost {
                    Reply::Lost(confirm.ticket, reason)
                } else if done {
                    Reply::Confirmed(confirm.ticket)
                } else {
                    unconfirmed(confirm, self.failure.as_ref())
                });
            }
        }
        let pending = self.waiting.iter().chain(&self.sent);
        self.confirm_by = pending.map(|pending| pending.confirm.deadline).min();
    }

    /// Answers the waiting callers as unconfirmed, because nothing is sent any more.
    pub(super) fn give_up_confirms(&mut self, out: &mut Out<C>) {
        let pending = self.waiting.drain(..).chain(self.sent.drain(..));
        out.replies
            .extend(pending.map(|pending| unconfirmed(pending.confirm, self.failure.as_ref())));
    }

    /// Ends the lease for those that hold it.
    pub(super) fn end(&mut self, reason: LostReason, now: Time, out: &mut Out<C>) {
        if let State::Held { holds } = self.state {
            if self.current.end(reason, now) {
                self.note_lost(Some(reason), out);
            }
            self.lose(holds);
        }
    }

    /// A lost lease is never handed over.
    fn lose(&mut self, holds: u32) {
        self.state = State::Lost { holds };
        if !flawed(Flaw::HandOverAfterLoss) {
            self.hand_over_until = None;
        }
    }

    /// Forgets the lease, and answers all callers that wait for it. Returns how long its row may still be busy
    /// because of a request of unknown outcome, and until when `hold_min` wants it to be.
    pub(super) fn forget(
        mut self,
        extend_on_its_way: Option<Duration>,
        now: Time,
        out: &mut Out<C>,
    ) -> Option<(Duration, Time)> {
        let held = matches!(self.state, State::Held { .. } | State::Lost { .. });
        self.end(LostReason::Gone, now, out);
        let reason = ended_reason(&self.current);
        for Pending { confirm, .. } in self.waiting.drain(..).chain(self.sent.drain(..)) {
            out.replies.push(if held {
                Reply::Lost(confirm.ticket, reason)
            } else {
                unconfirmed(confirm, self.failure.as_ref())
            });
        }
        let kept_until = match self.state {
            State::Lingering { until } => until.max(now),
            _ => now,
        };
        let unsure = extend_on_its_way.max(self.extend_unsure);
        unsure.map(|ttl| (ttl, kept_until))
    }

    /// When to look again without an event. `asked`: a request is on its way.
    pub(super) fn next_look(&self, now: Time, asked: bool) -> Option<Time> {
        let end = match self.state {
            State::Held { .. } => self.current.deadline(),
            State::Lingering { until } => Some(until),
            _ => Some(self.grant.over_at),
        };
        let send_at = match self.state {
            _ if asked => None,
            State::Held { .. } => {
                // The reason for a retry may be gone. Then the next renewal is what is due.
                let due = self.renew_at().into_iter().chain(self.follow_at).min();
                self.retry_at.filter(|at| *at > now).or(due)
            }
            _ => self.retry_at,
        };
        let times = self.confirm_by.into_iter().chain(end);
        times.chain(send_at.filter(|at| *at > now)).min()
    }

    // ── What is sent ─────────────────────────────────────────────────────────────────────────────────

    /// When the lease is extended next: when less than two thirds of its ttl are confirmed. The time is moved
    /// earlier, onto a grid, so that leases of one ttl fall due together and are renewed by one statement.
    fn renew_at(&self) -> Option<Time> {
        if !self.current.call.renew
            || self.in_transaction
            || self.current.is_revoked()
            || flawed(Flaw::NothingIsRenewed)
        {
            return None;
        }
        let due = self.grant.end(self.ttl).before(self.ttl * 2 / 3).as_nanos();
        let grid = u64::try_from((self.ttl / 16).as_nanos())
            .unwrap_or(u64::MAX)
            .max(1);
        Some(Time::from_nanos(due - due % grid))
    }

    /// The latest time for a renewal to be sent.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn must_send_by(&self) -> Option<Time> {
        let due = self.renew_at().filter(|_| self.is_held())?;
        Some(self.retry_at.map_or(due, |retry_at| retry_at.max(due)))
    }

    /// How late the renewal that is due now is.
    pub(super) fn renewal_lag(&self, now: Time) -> Option<Duration> {
        let planned = self.renew_at()?;
        (planned <= now).then(|| now.since(planned))
    }

    /// Whether the row stays busy until then without a request. Stores count in µs or in ms.
    fn covers(&self, until: Time) -> bool {
        until <= self.grant.store_end + Duration::from_millis(1)
    }

    /// The request to send now, if any.
    pub(super) fn next_action(&self, now: Time) -> Option<Action> {
        if self.retry_at.is_some_and(|retry_at| now < retry_at) {
            return None;
        }
        match self.state {
            State::Held { .. } if self.is_kept_in_transaction() => None,
            State::Held { holds } => {
                let due = !self.waiting.is_empty()
                    || self.row.1 != holds
                    || self.follow_at.is_some_and(|follow_at| follow_at <= now)
                    || self.renew_at().is_some_and(|renew_at| renew_at <= now);
                due.then(|| self.extend(holds, self.ttl))
            }
            State::Lost { .. } => None,
            State::Lingering { until } => {
                let missing = !self.covers(until + TO_RELEASE_IN / 2) && !self.current.is_revoked();
                let left = until.since(now);
                let ttl = on_any_clock(left) + TO_RELEASE_IN;
                missing.then(|| self.extend(1, ttl))
            }
            State::Left | State::Releasing { .. } => Some(Action::Release),
        }
    }

    /// Time limit of the store for a request: an extension that hangs must leave time to be sent again.
    pub(super) fn time_limit(&self, now: Time) -> Option<Duration> {
        let end = match self.state {
            State::Held { .. } => self.grant.end(self.ttl),
            State::Lingering { .. } => self.grant.store_end,
            _ => return None,
        };
        Some(end.since(now) * 2 / 3)
    }

    fn extend(&self, count: u32, ttl: Duration) -> Action {
        let mut extend = Extend::new(count, ttl);
        extend.handed_over = self.row_is_behind().then(|| HandedOver {
            owner: self.current.call.owner,
            holder: Arc::clone(&self.current.call.holder),
            fence_token: self.current.fence_token,
        });
        Action::Extend(extend)
    }

    /// `action`, from [`next_action`](Self::next_action), is being sent.
    pub(super) fn sent(&mut self, action: &Action) {
        self.retry_at = None;
        self.follow_at = None;
        self.sent.append(&mut self.waiting);
        if let Action::Extend(extend) = action {
            self.row_sent = (self.current.fence_token, extend.count);
            self.row_owner_sent = Some(self.current.call.owner);
        } else {
            // The transaction may have carried out the release.
            let unsure = self.in_transaction || matches!(self.state, State::Releasing { unsure: true });
            self.state = State::Releasing { unsure };
        }
    }

    // ── What is answered ─────────────────────────────────────────────────────────────────────────────

    /// Takes the answer to a request sent at `sent_at`.
    pub(super) fn answered(
        &mut self,
        action: &Action,
        sent_at: Time,
        answer: Result<Outcome, StoreError>,
        now: Time,
        out: &mut Out<C>,
    ) -> After {
        let release = matches!(action, Action::Release);
        self.row_locked = matches!(answer, Ok(Outcome::Skipped));
        let unsure = matches!(self.state, State::Releasing { unsure: true });
        match answer {
            Ok(Outcome::Extended {
                remaining, revoked, ..
            }) if !release => {
                self.extended(sent_at, remaining, revoked, now, out);
                After::Stands
            }
            Ok(Outcome::Released { passed_on, .. }) if release => {
                if passed_on {
                    out.notes.push(Note::PassedOn(Arc::clone(&self.current)));
                }
                self.released(now, out);
                After::Over { passed_on }
            }
            // An earlier release was carried out, and its answer was lost.
            Ok(Outcome::Lost) if release && unsure => {
                self.released(now, out);
                After::Over { passed_on: false }
            }
            Ok(Outcome::Lost) => {
                if release {
                    out.notes.push(Note::GoneBeforeRelease(Arc::clone(&self.current)));
                }
                self.gone(now, out);
                After::Over { passed_on: false }
            }
            Ok(Outcome::Skipped) => {
                if matches!(self.state, State::Held { .. }) {
                    // Somebody has the row locked, perhaps for a fence check. While the lease lasts, memory decides.
                    let trusting = self.sent.extract_if(.., |pending| pending.shows == Shows::Holds);
                    out.replies
                        .extend(trusting.map(|pending| Reply::Confirmed(pending.confirm.ticket)));
                }
                self.try_again(now);
                After::Stands
            }
            Ok(other) => {
                let message = format!("the store answered {action:?} with {other:?}");
                self.failed(
                    action,
                    StoreError::new(StoreErrorKind::Interrupted, message),
                    now,
                    out,
                );
                After::Stands
            }
            Err(_) if release && flawed(Flaw::UnknownReleaseIsDone) => After::Over { passed_on: false },
            Err(error) => {
                self.failed(action, error, now, out);
                After::Stands
            }
        }
    }

    fn failed(&mut self, action: &Action, error: StoreError, now: Time, out: &mut Out<C>) {
        if error.is_outcome_unknown() {
            match &mut self.state {
                State::Releasing { unsure } if matches!(action, Action::Release) => *unsure = true,
                _ => self.extend_unsure = self.extend_unsure.max(ttl_of(action)),
            }
        }
        let kind = Kind::of(action);
        let before = self.failure.replace((kind, error.clone()));
        out.notes.push(Note::Failed {
            ownership: Arc::clone(&self.current),
            kind,
            error,
            again: before.is_some_and(|(before, _)| before == kind),
        });
        self.try_again(now);
    }

    fn extended(&mut self, sent_at: Time, remaining: Duration, revoked: bool, now: Time, out: &mut Out<C>) {
        self.row = self.row_sent;
        self.grant.row_owner = self.row_owner_sent;
        let counted_from = if flawed(Flaw::DeadlineFromTheAnswer) {
            now
        } else {
            sent_at
        };
        self.grant.since = self.grant.since.max(sent_at);
        self.grant.over_at = self.grant.over_at.max(now + remaining);
        if counted_from + remaining >= self.grant.store_end {
            self.grant.store_end = counted_from + remaining;
            // The clock may also jump at the end of a lease that is not extended any more.
            self.grant.length = remaining.max(self.ttl);
        }
        self.pause = FIRST_RETRY;
        if matches!(self.state, State::Held { .. }) {
            self.current.move_deadline(self.grant.deadline(self.ttl), now);
            if self.row_is_behind() {
                self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
            } else {
                self.follow_at = None;
            }
        }
        if self.failure.take().is_some() {
            out.notes.push(Note::RenewedAgain(Arc::clone(&self.current)));
        }
        if revoked && !self.current.is_revoked() {
            self.current.mark_revoked();
            out.changed.push(Arc::clone(&self.current));
            out.notes
                .push(Note::Revoked(Arc::clone(&self.current), remaining));
        }
        if matches!(self.state, State::Lingering { .. }) && !self.lingers_by_itself() && !revoked {
            // The body has ended meanwhile: its caller waits for the extension that `hold_min` needs.
            self.waiting.append(&mut self.sent);
            return;
        }
        let done = self
            .sent
            .drain(..)
            .map(|pending| Reply::Confirmed(pending.confirm.ticket));
        out.replies.extend(done);
    }

    fn released(&mut self, now: Time, out: &mut Out<C>) {
        // Another call in a transaction that has ended behind its back.
        self.end(LostReason::Gone, now, out);
        out.notes.push(Note::Released(Arc::clone(&self.current)));
        let pending = self.sent.drain(..).chain(self.waiting.drain(..));
        out.replies
            .extend(pending.map(|pending| Reply::Confirmed(pending.confirm.ticket)));
    }

    /// The row no longer names the lease.
    fn gone(&mut self, now: Time, out: &mut Out<C>) {
        let reason = if self.current.is_revoked() {
            LostReason::Revoked
        } else {
            LostReason::Gone
        };
        let left = self.is_left() || matches!(self.state, State::Lingering { .. });
        self.end(reason, now, out);
        let reason = if left { reason } else { ended_reason(&self.current) };
        let pending = self.sent.drain(..).chain(self.waiting.drain(..));
        out.replies
            .extend(pending.map(|pending| Reply::Lost(pending.confirm.ticket, reason)));
    }

    /// The request was not carried out, or that is unknown: its callers wait for the next one.
    fn try_again(&mut self, now: Time) {
        self.waiting.append(&mut self.sent);
        self.retry_at = Some(now + self.pause);
        let longest = options::margin(self.ttl).min(LONGEST_RETRY);
        self.pause = (self.pause * 2).min(longest);
        if self.row_is_behind() && matches!(self.state, State::Held { .. }) {
            self.follow_at = self.retry_at;
        }
    }
}

/// The ttl of an extension; `None` for other requests.
pub(super) fn ttl_of(action: &Action) -> Option<Duration> {
    match action {
        Action::Extend(extend) => Some(extend.ttl),
        _ => None,
    }
}

fn unconfirmed<C>(confirm: Confirm<C>, failure: Option<&(Kind, StoreError)>) -> Reply<C> {
    Reply::Unconfirmed(confirm.ticket, failure.map(|(_, error)| error.clone()))
}

/// Why the ownership has ended. If it has not, it is no longer the current one.
fn ended_reason(ownership: &Ownership) -> LostReason {
    ownership.ended().unwrap_or(LostReason::Released)
}
