//! The lease that this process has on a key.
//!
//! | state | what happens | next |
//! |---|---|---|
//! | – | granted by the store, or passed on by another process | `Held` |
//! | – | a transaction of the owner's has taken the key: the lease is *kept* from the start | `Held` |
//! | `Held` | the deadline or `max_hold` passes, a fence check finds the lease gone, shutdown | `Lost` |
//! | `Held` | a transaction of the owner's has written the release: the lease is *kept* from here on | `Held` |
//! | `Held`, `Lost` | the last hold ends while `hold_min` is not over, and nothing but time has ended the lease | `Lingering` |
//! | `Held`, `Lost` | the last hold ends otherwise | `ReleaseDue` |
//! | `Lingering` | the row's end is written as that of `hold_min` | `Lingering` |
//! | `Lingering` | `hold_min` is over | `ReleaseDue` |
//! | `ReleaseDue` | the next caller of this process enters in memory: local hand-over | `Held` |
//! | `ReleaseDue` | the release is sent, or the pass-on to a ticket | `Releasing` |
//! | `Releasing` | the answer is `Released` or `Lost`, or `Granted` to the ticket | – |
//! | `Releasing` | the row was locked, or the outcome is unknown: the release is sent again | `Releasing` |
//! | `ReleaseDue`, `Releasing`, kept | another call enters in the same transaction | `Held` |
//! | any, kept | `transaction` has committed, or has rolled back its take | – |
//! | `Lingering` | shutdown, when the row is busy for long enough by itself | – |
//! | any but `Held` | the latest possible end in the store has passed | – |
//!
//! - `Held`: an owner holds the lock. This is the only state in which a hold is added. The row is renewed.
//!   Once it is revoked, renewals go on and do not lengthen the lease, which stays `Held` until its deadline.
//! - `Lost`: the lease has ended before its holds did. Bodies are being stopped. A lost lease never becomes
//!   `Held`.
//! - `Lingering`: all holds have ended, and `hold_min` keeps the row busy. One Extend sets the row's end to
//!   one second after `hold_min`, whether that is sooner or later than before. So the key becomes free even
//!   if this process dies.
//! - `ReleaseDue`: all holds have ended, and the release was not sent. The next caller may still enter
//!   without the store.
//! - `Releasing`: the release was sent. No caller enters with this lease any more, except in a transaction
//!   that keeps it.
//!
//! When the store answers `Lost`, the lease is forgotten from any state.
//!
//! Several owners may share a lease (`share`). It is `Held` while one of them has it, and its count is how many they
//! are.
//!
//! A lease is *kept* when a transaction of the owner's keeps the row locked, and frees it with its commit
//! ([`Held::keep_in_transaction`], [`Held::taken`]). A kept lease has no end of its own and is not renewed.
//! In `Releasing` the release is repeated until the transaction is over. It is then answered `Released` or
//! `Lost`.

mod confirmations;
mod hand_over;
mod requests;
mod share;
mod term;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use self::confirmations::Confirm;
use self::confirmations::Confirmations;
pub(super) use self::confirmations::Shows;
pub(super) use self::requests::{After, ttl_of};
use self::share::Group;
pub use self::term::Kept;
use self::term::Term;
pub(super) use self::term::{Grant, Times};
use crate::error::LostReason;
use crate::machine::env::Time;
use crate::machine::key::NotClosed;
use crate::machine::key::asking::LastAnswer;
use crate::machine::out::{Note, Unconfirmed};
use crate::machine::ownership::Ownership;
use crate::store::{Holder, Kind, RecordChange, StoreError, Transfer};

/// Pause before the next request for a row that was locked, or after a failure. It doubles up to the lease's
/// margin, and at most to [`LONGEST_RETRY`], or to [`LONGEST_OUTRUN`] while others who share the row are faster.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_OUTRUN: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// How long the row may name the former owner after a local hand-over.
const ROW_FOLLOWS_WITHIN: Duration = Duration::from_millis(50);

/// An owner has entered.
const ENTERED: State = State::Held(Holds {
    count: 1,
    closed: false,
});

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Held(Holds),
    Lost(Holds),
    /// `written`: the row ends with `hold_min`.
    Lingering {
        until: Time,
        written: bool,
    },
    ReleaseDue,
    Releasing {
        unsure: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holds {
    count: u32,
    /// A write that ends the last hold is on its way. No hold is added.
    closed: bool,
}

/// What the row says of the owner.
#[derive(Debug, Clone, Copy)]
struct InRow {
    fence_token: i64,
    holds: u32,
    owner: Option<Uuid>,
}

#[derive(Debug)]
pub(super) struct Held<C> {
    lease_id: Uuid,
    /// The token of the grant.
    granted_token: i64,
    /// How many tokens above it are kept free for local hand-overs.
    spare_tokens: u32,
    term: Term,
    state: State,
    /// The ticket that gets the lease instead of a release.
    ticket: Option<Transfer>,
    /// A run has begun under the lease, or may have, and its body has not: the release takes that back.
    pub(super) undo: Option<Arc<RecordChange>>,
    /// The ownership that holds it, or held it last. Where it is shared: one of those.
    current: Arc<Ownership>,
    /// Those who share it.
    group: Option<Group>,
    /// The ttl that the owner has asked for last.
    ttl: Duration,
    /// Local hand-over is possible until then. `None` after an owner has asked for a fence check, or did not
    /// leave in order.
    hand_over_until: Option<Time>,
    row: InRow,
    /// What the request on its way writes.
    row_sent: InRow,
    /// When the row must be brought up to date.
    follow_at: Option<Time>,
    /// Nothing is sent before this.
    retry_at: Option<Time>,
    pause: Duration,
    /// The kind and error of the last request that failed. Cleared by a successful extension.
    failure: Option<(Kind, StoreError)>,
    /// The last request found the row locked.
    row_locked_since: Option<Time>,
    /// Callers that wait for the next answers.
    confirmations: Confirmations<C>,
    /// Notes that the machine has not taken yet.
    notes: Vec<Note>,
    /// The ttl of an extension of unknown outcome: the row may be busy for longer than this machine knows. A
    /// later extension that succeeds proves nothing about it.
    extend_unsure: Option<Duration>,
}

impl<C> Held<C> {
    pub(super) fn new(grant: Grant, current: Arc<Ownership>, hand_over_until: Time, now: Time) -> Self {
        let mut held = Self::by(Term::Times(grant.times), grant.row_owner, current);
        held.spare_tokens = grant.spare_tokens;
        held.hand_over_until = Some(hand_over_until);
        if grant.limit.is_some() {
            held.group = Some(Group::new(&held.current, grant.times.deadline(held.ttl)));
        }
        if held.row.owner.is_none() || held.row_is_behind() {
            held.follow_at = Some(now);
        }
        held
    }

    /// A transaction of the owner's has taken the key.
    pub(super) fn taken(current: Arc<Ownership>) -> Self {
        Self::by(Term::Transaction(Kept::Key), Some(current.call.owner), current)
    }

    /// An owner has entered, and hands nothing over.
    fn by(term: Term, row_owner: Option<Uuid>, current: Arc<Ownership>) -> Self {
        let row = InRow {
            fence_token: current.fence_token,
            holds: 1,
            owner: row_owner,
        };
        Self {
            lease_id: current.lease_id,
            granted_token: current.fence_token,
            spare_tokens: 0,
            term,
            state: ENTERED,
            ticket: None,
            undo: None,
            hand_over_until: None,
            row,
            row_sent: row,
            follow_at: None,
            retry_at: None,
            pause: FIRST_RETRY,
            failure: None,
            row_locked_since: None,
            confirmations: Confirmations::new(),
            notes: Vec::new(),
            extend_unsure: None,
            ttl: current.call.options.ttl,
            current,
            group: None,
        }
    }

    pub(super) fn lease_id(&self) -> Uuid {
        self.lease_id
    }

    pub(super) fn current(&self) -> &Arc<Ownership> {
        &self.current
    }

    /// An owner holds it, and the lease has not ended.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    /// All holds have ended, and the row must still be released.
    pub(super) fn needs_release(&self) -> bool {
        matches!(self.state, State::ReleaseDue | State::Releasing { .. })
    }

    /// The row must be released, and others have it locked since then.
    pub(super) fn finds_row_locked_since(&self) -> Option<Time> {
        self.row_locked_since.filter(|_| self.needs_release())
    }

    /// `hold_min` keeps the row busy, and no further request is needed for that.
    pub(super) fn lingers_by_itself(&self) -> bool {
        matches!(self.state, State::Lingering { until, .. } if self.covers(until) || self.current.is_revoked())
    }

    /// `hold_min` keeps the row busy, and the row ends with it already, or the lease is revoked.
    fn lingers_as_wanted(&self) -> bool {
        matches!(self.state, State::Lingering { written, .. } if written || self.current.is_revoked())
    }

    pub(super) fn holder(&self, now: Time) -> Holder {
        Holder::new(
            self.current.call.owner,
            self.current.call.holder.to_string(),
            self.current.fence_token,
            self.times().map(|times| times.store_end.since(now)),
        )
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub(super) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        match self.state {
            State::Held(_) if self.is_shared() => self.holds_shared(ownership),
            State::Held(holds) if self.is_of(ownership) => holds.count,
            _ => 0,
        }
    }

    /// The reason why the row could not be written, as far as the last request showed.
    pub(super) fn last_error(&self) -> Option<LastAnswer> {
        match &self.failure {
            Some((_, error)) => Some(LastAnswer::Failed(error.clone())),
            None => self.row_locked_since.map(|_| LastAnswer::RowLocked),
        }
    }

    /// What the lease has said since the last time.
    pub(super) fn take_notes(&mut self) -> impl Iterator<Item = Note> {
        self.notes.drain(..)
    }

    /// There are new notes or replies.
    pub(super) fn has_said(&self) -> bool {
        !self.notes.is_empty() || !self.confirmations.replies.is_empty()
    }

    /// The replies to callers that waited for a confirmation.
    pub(super) fn take_replies(&mut self) -> impl Iterator<Item = (C, Result<(), Unconfirmed>)> {
        self.confirmations.replies.drain(..)
    }

    /// This owner has it, or had it last.
    pub(super) fn is_of(&self, ownership: &Arc<Ownership>) -> bool {
        let shares = self.group.as_ref().is_some_and(|group| group.has(ownership));
        shares || Arc::ptr_eq(&self.current, ownership)
    }

    /// This owner has it, and has not ended.
    fn is_held_by(&self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        if self.is_of(ownership) && self.is_held() && ownership.ended().is_none() {
            Ok(())
        } else {
            Err(ended_reason(ownership))
        }
    }

    fn row_is_behind(&self) -> bool {
        if self.is_shared() {
            return false;
        }
        self.row.fence_token != self.current.fence_token || self.row.owner != Some(self.current.call.owner)
    }

    /// The ends of the lease, unless a transaction ends it.
    fn times(&self) -> Option<&Times> {
        match &self.term {
            Term::Times(times) => Some(times),
            Term::Transaction(_) => None,
        }
    }

    // ── What callers do ──────────────────────────────────────────────────────────────────────────────

    /// Adds a hold of `ownership`. Fails when that has ended.
    pub(super) fn enter(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        if self.is_shared() {
            return self.enter_shared(ownership);
        }
        match &mut self.state {
            State::Held(holds) if Arc::ptr_eq(&self.current, ownership) && !holds.closed => {
                holds.count += 1;
                Ok(())
            }
            _ => Err(ended_reason(ownership)),
        }
    }

    /// Closes the lock: no hold is added any more. Refused while there is a second hold, also in a lost
    /// lease. Refused when another caller has closed it.
    pub(super) fn close(&mut self, ownership: &Arc<Ownership>) -> Result<(), NotClosed> {
        let is_of = self.is_of(ownership);
        match &mut self.state {
            State::Held(holds) | State::Lost(holds) if is_of => {
                if holds.closed {
                    return Err(NotClosed::Before);
                }
                if holds.count > 1 {
                    return Err(NotClosed::OtherHold);
                }
                holds.closed = true;
                Ok(())
            }
            _ => Err(NotClosed::Over(ended_reason(ownership))),
        }
    }

    /// What was on its way has failed.
    pub(super) fn reopen(&mut self, ownership: &Arc<Ownership>) {
        let is_of = self.is_of(ownership);
        if let State::Held(holds) | State::Lost(holds) = &mut self.state {
            holds.closed &= !is_of;
        }
    }

    /// A run of this owner's begins: `undo` takes that back. An `undo` of the same attempt stays: it undoes
    /// both begins.
    pub(super) fn begin(
        &mut self,
        ownership: &Arc<Ownership>,
        undo: Arc<RecordChange>,
    ) -> Result<(), LostReason> {
        self.is_held_by(ownership)?;
        let again = |former: &RecordChange| former.expected() == undo.expected();
        if !self.undo.as_deref().is_some_and(again) {
            self.undo = Some(undo);
        }
        Ok(())
    }

    /// The body of that run begins.
    pub(super) fn begun(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        self.is_held_by(ownership)?;
        self.undo = None;
        Ok(())
    }

    /// Ends a hold of `ownership`; fails when that is not the current one. `returned`: as for the machine's `leave`.
    /// Returns how long the owner held the lock, if this was the last hold and the lease was not lost before.
    pub(super) fn leave(
        &mut self,
        ownership: &Arc<Ownership>,
        returned: bool,
        now: Time,
    ) -> Result<Option<Duration>, LostReason> {
        if let Some(left) = self.leave_shared(ownership, now) {
            return left;
        }
        if !self.is_of(ownership) {
            return Err(LostReason::Released);
        }
        if !returned && !self.is_shared() {
            self.hand_over_until = None;
        }
        match &mut self.state {
            State::Held(holds) | State::Lost(holds) if holds.count > 1 => {
                holds.count -= 1;
                Ok(None)
            }
            State::Held(_) | State::Lost(_) => {
                // After a loss by time alone the row still names us, so `hold_min` still counts.
                let stands = matches!(
                    self.current.ended(),
                    None | Some(LostReason::Expired | LostReason::MaxHold)
                );
                let held_for = self.end_ownership(now);
                // If `hold_min` is over already, `advance` moves to `ReleaseDue`.
                let lingers = self.current.hold_min_until.filter(|_| stands);
                self.state = lingers.map_or(State::ReleaseDue, |until| State::Lingering {
                    until,
                    written: false,
                });
                if matches!(self.term, Term::Transaction(Kept::Key)) {
                    // The transaction is still open: ask a moment later.
                    self.retry_at = Some(now + FIRST_RETRY);
                    self.pause = FIRST_RETRY * 2;
                } else if self.failure.is_none() {
                    // A pause after a locked row must not delay the release. A pause after a failure stays.
                    self.retry_at = None;
                    self.pause = FIRST_RETRY;
                }
                Ok(held_for)
            }
            State::Lingering { .. } | State::ReleaseDue | State::Releasing { .. } => {
                Err(LostReason::Released)
            }
        }
    }

    /// The last hold ends, and the lease goes to a ticket: no caller of this process enters with it. Refused when
    /// the lease has ended, or is to end.
    pub(super) fn transfer(
        &mut self,
        ownership: &Arc<Ownership>,
        to: Uuid,
        ttl: Duration,
        now: Time,
    ) -> Result<Option<Duration>, NotClosed> {
        self.is_held_by(ownership).map_err(NotClosed::Over)?;
        if self.current.is_revoked() {
            return Err(NotClosed::Over(LostReason::Revoked));
        }
        self.close(ownership)?;
        let call = &self.current.call;
        self.ticket = Some(Transfer::new(to, call.owner, ttl, Arc::clone(&call.holder)));
        self.leave(ownership, false, now).map_err(NotClosed::Over)
    }

    /// Nobody has the ticket with the lease `to`: the lock is released instead. Returns by when this lease is over in
    /// the store; `None` if it did not go to that ticket, or has gone.
    pub(super) fn give_up_ticket(&mut self, to: Uuid) -> Option<Time> {
        self.ticket.take_if(|ticket| ticket.to == to)?;
        self.times().map(|times| times.over_at)
    }

    /// The owner is done. Returns how long it held the lock, unless the lease was lost before.
    fn end_ownership(&self, now: Time) -> Option<Duration> {
        let ends = self.current.end(LostReason::Released, now);
        ends.then(|| self.current.held_for(now))
    }

    /// The owner asks for a fence check: there is no local hand-over after that.
    pub(super) fn pin(&mut self, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        self.is_held_by(ownership)?;
        self.hand_over_until = None;
        Ok(())
    }

    /// From here on the owner has this ttl.
    pub(super) fn set_ttl(
        &mut self,
        ownership: &Arc<Ownership>,
        ttl: Duration,
        now: Time,
    ) -> Result<(), LostReason> {
        self.is_held_by(ownership)?;
        if let Some(group) = &mut self.group {
            group.set_ttl(ownership, ttl, now);
            self.ttl = self.ttl.max(ttl);
        } else {
            self.ttl = ttl;
        }
        Ok(())
    }

    /// Replies to `confirm` when the store has confirmed the change.
    pub(super) fn confirm(&mut self, confirm: Confirm<C>, shows: Shows) {
        if shows == Shows::Owner && !self.row_is_behind() || self.is_kept_in_transaction() {
            self.confirmations.reply_at_once(confirm);
        } else {
            if self.row_locked_since.is_some() {
                // The pause grows while a transaction keeps the row, and may outlast the caller's timeout.
                self.retry_at = None;
            }
            self.confirmations.add(confirm, shows);
        }
    }

    // ── What time does ───────────────────────────────────────────────────────────────────────────────

    /// Lets time pass. Returns whether the lease has surely ended in the store, so that nothing can be done
    /// for it any more.
    pub(super) fn advance(&mut self, now: Time) -> bool {
        if let State::Held(holds) = self.state {
            if let Some(group) = &mut self.group {
                if group.end_overdue(now, &mut self.notes).is_some() {
                    self.set_lost(holds);
                } else if self.current.ended().is_some()
                    && let Some(other) = group.one_inside()
                {
                    self.current = Arc::clone(other);
                }
            } else if let (Some(reason), first) = self.current.end_if_over(now) {
                if first {
                    self.notes.push(Note::Lost(Arc::clone(&self.current), reason));
                }
                self.set_lost(holds);
            }
        }
        if let State::Lingering { until, .. } = self.state
            && now >= until
        {
            self.state = State::ReleaseDue;
        }
        self.reply_to_waiting(now);
        let over = self.times().is_some_and(|times| now >= times.over_at);
        over && !matches!(self.state, State::Held(_))
    }

    /// Replies to callers whose timeout has passed, and to those that wait for a lost lease.
    fn reply_to_waiting(&mut self, now: Time) {
        if matches!(self.state, State::Lost(_)) {
            let lost = Unconfirmed::Lost(ended_reason(&self.current));
            self.confirmations.reply_to_all(&Err(lost));
        } else if self.lingers_as_wanted() || self.is_kept_in_transaction() {
            self.confirmations.reply_to_all(&Ok(()));
        } else {
            let failure = self.failure.as_ref().map(|(_, error)| error);
            self.confirmations.reply_to_late(now, failure);
        }
    }

    /// Replies to all callers that the row stays busy by itself.
    pub(super) fn left_to_expire(&mut self) {
        self.confirmations.reply_to_all(&Ok(()));
        self.notes.push(Note::StaysBusy(Arc::clone(&self.current)));
    }

    /// Replies "unconfirmed" to the waiting callers, because nothing is sent any more.
    pub(super) fn give_up_confirmations(&mut self) {
        let failure = self.failure.as_ref().map(|(_, error)| error.clone());
        self.confirmations
            .reply_to_all(&Err(Unconfirmed::NoAnswer(failure)));
    }

    /// The lease ends before its holds do. Does nothing when they have ended.
    pub(super) fn lose(&mut self, reason: LostReason, now: Time) {
        if let State::Held(holds) = self.state {
            for owner in self.owners() {
                // Whoever ends an ownership logs the loss.
                if owner.end(reason, now) {
                    self.notes.push(Note::Lost(owner, reason));
                }
            }
            self.set_lost(holds);
        }
    }

    /// Those who have it.
    fn owners(&self) -> Vec<Arc<Ownership>> {
        match &self.group {
            Some(group) => group.owners().cloned().collect(),
            None => vec![Arc::clone(&self.current)],
        }
    }

    /// A lost lease is never handed over.
    fn set_lost(&mut self, holds: Holds) {
        self.state = State::Lost(holds);
        self.hand_over_until = None;
    }

    /// The lease is over, and about to be forgotten: replies to all callers that wait for it. Returns how long its row may still be
    /// busy because of a request of unknown outcome, and until when `hold_min` wants it to be.
    pub(super) fn forget(
        &mut self,
        extend_on_its_way: Option<Duration>,
        now: Time,
    ) -> Option<(Duration, Time)> {
        let held = matches!(self.state, State::Held(_) | State::Lost(_));
        self.lose(LostReason::Gone, now);
        if held {
            let lost = Unconfirmed::Lost(ended_reason(&self.current));
            self.confirmations.reply_to_all(&Err(lost));
        } else {
            self.give_up_confirmations();
        }
        let kept_until = match self.state {
            State::Lingering { until, .. } => until.max(now),
            _ => now,
        };
        let unsure = extend_on_its_way.max(self.extend_unsure);
        unsure.map(|ttl| (ttl, kept_until))
    }
}

/// The reason why the ownership has ended. If it has not, it is no longer the current one.
pub(super) fn ended_reason(ownership: &Ownership) -> LostReason {
    ownership.ended().unwrap_or(LostReason::Released)
}
