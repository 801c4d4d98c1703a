//! One key: everything that a process knows and decides about it, as a machine without I/O.
//!
//! Callers call it, [`handle_…`](Machine::handle_answer) takes what arrives, and
//! [`poll_…`](Machine::poll_replies) says what is to be done then. At most one request for a key is on its way.
//! Each call but the quiet ones runs `advance` first and last. `advance` ends a lease whose time is over, and lets the next
//! caller enter.
//!
//! - `held` is the lease that this process has, a state machine with its table at the top of its file.
//! - `asking` says when to ask for one, and keeps this process's place as successor.
//! - `queue` holds the callers of this process, and is fair to other processes.
//! - `abandoned` holds acquires whose answer nobody takes any more.
//! - `adopting` has the callers that adopt a ticket.
//! - `turns` lets one caller at a time try to take the key in a transaction of its own.
//! - `entering` gives a lease that comes to this process to a caller, or tells callers that they do not get one.
//! - `requests` says which request goes next, what its answer means, and what is still to be done.

mod abandoned;
mod adopting;
mod asking;
mod entering;
mod held;
mod queue;
mod requests;
mod turns;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub use self::held::{Confirm, Kept};
pub use self::requests::Transmit;

use self::abandoned::Abandoned;
use self::adopting::Adoption;
use self::asking::Asking;
use self::held::{Held, Shows, ended_reason, ttl_of};
use self::queue::{Fairness, WaitQueue};
use self::requests::{OnItsWay, Sent};
use self::turns::Turns;
use super::call::Call;
use super::env::{Env, Time};
use super::out::{Note, Refusal, Reply, Turn, Unconfirmed, Waiter};
use super::ownership::Ownership;
use crate::Key;
use crate::LostReason;
use crate::store::{Holder, Kind, Outcome, RecordChange, StoreError};

/// Everything that a process knows about one key. `A` is where the answer to an acquire goes, and `C` where a
/// confirmation goes.
#[derive(Debug)]
pub struct Machine<A, C> {
    key: Key,
    queue: WaitQueue<A>,
    adopting: Vec<Adoption<A>>,
    held: Option<Held<C>>,
    asking: Asking,
    turns: Turns,
    fairness: Fairness,
    abandoned: Vec<Abandoned>,
    on_its_way: Option<OnItsWay>,
    listed: Listed,
    look_at: Option<Time>,
    notes: Vec<Note>,
    replies: Vec<Reply<A, C>>,
}

/// The kind of request that this key has asked the dispatcher to send.
#[derive(Debug, Clone, Copy)]
enum Listed {
    No,
    /// [`poll_ready`](Machine::poll_ready) has not told the dispatcher yet.
    New(Kind),
    Known(Kind),
}

impl Listed {
    fn kind(self) -> Option<Kind> {
        match self {
            Self::No => None,
            Self::New(kind) | Self::Known(kind) => Some(kind),
        }
    }
}

/// A key that a transaction keeps although its owner has left.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    pub lease_id: Uuid,
    pub fence_token: i64,
    pub kept: Kept,
}

/// The reason why a lock is not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotClosed {
    /// The owner has no hold any more.
    Over(LostReason),
    /// There is another hold.
    OtherHold,
    /// Another caller has closed it.
    Before,
}

/// Something else may follow from a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotQuiet;

impl<A, C> Machine<A, C> {
    pub fn new(key: Key) -> Self {
        Self {
            key,
            queue: WaitQueue::new(),
            adopting: Vec::new(),
            held: None,
            asking: Asking::new(),
            turns: Turns::new(),
            fairness: Fairness::default(),
            abandoned: Vec::new(),
            on_its_way: None,
            listed: Listed::No,
            look_at: None,
            notes: Vec::new(),
            replies: Vec::new(),
        }
    }

    /// The change that undoes the begin of `ownership`'s run. `None` once its body has begun.
    pub fn undo(&self, ownership: &Arc<Ownership>) -> Option<Arc<RecordChange>> {
        let held = self.held.as_ref()?;
        held.undo
            .clone()
            .filter(|_| Arc::ptr_eq(held.current(), ownership))
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        self.held.as_ref().map_or(0, |held| held.holds(ownership))
    }

    /// What a transaction keeps although its owner has left. The transaction may have ended unnoticed.
    pub fn left_in_transaction(&self) -> Option<Left> {
        self.held.as_ref().and_then(Held::left_in_transaction)
    }

    /// A transaction of this owner's keeps the row locked.
    pub fn is_kept_in_transaction(&self, ownership: &Arc<Ownership>) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.is_kept_in_transaction() && Arc::ptr_eq(held.current(), ownership))
    }

    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Who has the lock, as the caller with this number would be told if its timeout passed now.
    pub fn holder_for(&self, number: u64, now: Time) -> Option<Holder> {
        let behind = self.queue.first_is_alone().is_some_and(|first| first < number);
        match self.refusal_of(self.queue.get(number)?, behind, now) {
            Refusal::Busy(holder) => holder,
            _ => None,
        }
    }

    /// How many callers are before the one with this number. It counts them.
    pub fn ahead_of(&self, number: u64) -> usize {
        self.queue.ahead_of(number)
    }

    /// A caller of this process with this owner waits.
    pub fn is_waited_for_by(&self, owner: Uuid) -> bool {
        self.queue.has_owner(owner)
    }

    /// Wraps every call but the quiet ones. It runs `advance` before and after, then finds the next request.
    fn during<R>(&mut self, env: &mut Env<'_>, does: impl FnOnce(&mut Self, &mut Env<'_>) -> R) -> R {
        // Whether a lease has ended must be decided before an answer moves its end.
        self.advance(env);
        let answer = does(self, env);
        self.advance(env);
        self.hear();
        self.retry_sooner_for_waiters(env.now);
        self.list_next_request(env);
        answer
    }

    /// Moves the notes and replies of `held` to the machine's own queues.
    fn hear(&mut self) {
        if let Some(held) = self.held.as_mut().filter(|held| held.has_said()) {
            self.notes.extend(held.take_notes());
            let replies = held.take_replies();
            self.replies
                .extend(replies.map(|(to, reply)| Reply::Confirmed(to, reply)));
        }
    }

    /// Queues a reply behind those that `held` made earlier.
    fn reply(&mut self, reply: Reply<A, C>) {
        self.hear();
        self.replies.push(reply);
    }

    // ── What callers want ────────────────────────────────────────────────────────────────────────────

    /// A caller wants the lock, and its answer at `to`. Returns its number.
    pub fn acquire(&mut self, env: &mut Env<'_>, call: Arc<Call>, to: A) -> u64 {
        self.during(env, |machine, env| {
            machine.ask_for(&call);
            let since = env.now;
            machine.queue.push(Waiter { call, since, to })
        })
    }

    /// As [`acquire`](Self::acquire), for a caller that shares the key and enters at once. `None` if something else
    /// would follow from it, or may be due: then it must acquire. There is nothing new to poll.
    pub fn join_quietly(&mut self, now: Time, key: &Key, call: &Arc<Call>) -> Option<Arc<Ownership>> {
        self.undisturbed(now)?.join_quietly(key, call, now)
    }

    /// As [`leave`](Self::leave), for a caller that others share the key with. Refused if something else would follow
    /// from it, or may be due: then it must leave. There is nothing new to poll.
    pub fn leave_quietly(
        &mut self,
        now: Time,
        ownership: &Arc<Ownership>,
    ) -> Result<Option<Duration>, NotQuiet> {
        let held = self.undisturbed(now).ok_or(NotQuiet)?;
        held.leave_quietly(ownership, now)
    }

    /// The lease of this process, while nobody waits and nothing is due.
    fn undisturbed(&mut self, now: Time) -> Option<&mut Held<C>> {
        let nothing_is_due = self.listed.kind().is_none() && self.look_at.is_none_or(|at| now < at);
        let undisturbed = nothing_is_due && self.queue.is_empty();
        self.held.as_mut().filter(|_| undisturbed)
    }

    /// The caller with this number is gone. If it was its turn, that is over.
    pub fn give_up(&mut self, env: &mut Env<'_>, number: u64) {
        self.during(env, |machine, env| {
            machine.queue.remove(number);
            machine.turns.end(number);
            machine.give_up_adoption(number, env.now);
        });
    }

    // ── Takes ────────────────────────────────────────────────────────────────────────────────────────

    /// The turn was dropped. Does nothing if it is over already.
    pub fn end_turn(&mut self, env: &mut Env<'_>, number: u64) {
        self.during(env, |machine, _| {
            machine.turns.end(number);
        });
    }

    /// The caller has not taken the key, and comes back to its place in the queue for a lease: its number is
    /// still its own. Its turn is over. No caller gets a turn before `no_turns_for` has passed: the row's
    /// ceiling is ahead of the clock by that much.
    pub fn come_back(
        &mut self,
        env: &mut Env<'_>,
        number: u64,
        call: Arc<Call>,
        to: A,
        no_turns_for: Duration,
    ) {
        self.during(env, |machine, env| {
            machine.turns.end(number);
            machine.turns.give_none_before(env.now + no_turns_for);
            machine.ask_for(&call);
            let since = call.since;
            machine.queue.put_back(number, Waiter { call, since, to });
        });
    }

    /// The caller's transaction has written the row, in the turn with this lease. `None` if the turn had
    /// ended before, by timeout or shutdown. The caller must then roll back.
    pub fn taken(
        &mut self,
        env: &mut Env<'_>,
        number: u64,
        lease_id: Uuid,
        fence_token: i64,
        call: Arc<Call>,
    ) -> Option<Arc<Ownership>> {
        self.during(env, |machine, env| {
            let turn = Turn { number, lease_id };
            machine.take(turn, fence_token, call, env.now)
        })
    }

    /// A caller wants the lock in the transaction that keeps the row of this lease locked. It is answered at
    /// once.
    pub fn enter_in_transaction(&mut self, env: &mut Env<'_>, lease_id: Uuid, call: Arc<Call>, to: A) {
        self.during(env, |machine, env| {
            let since = env.now;
            machine.enter_again(lease_id, Waiter { call, since, to }, since);
        });
    }

    /// A re-entry: one more hold. The reply comes when the store confirms that the lease is still held.
    pub fn enter(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
        confirm: Option<Confirm<C>>,
    ) -> Result<(), LostReason> {
        self.during(env, |machine, _| {
            let entered = machine
                .own_lease(ownership)
                .and_then(|held| held.enter(ownership));
            machine.confirm(ownership, confirm, entered.map(|()| Shows::Holds));
            entered
        })
    }

    /// A hold ends. `returned`: the body returned before the local deadline, and was neither stopped nor dropped.
    /// The reply comes when the store has confirmed it. Returns
    /// how long the owner held the lock, if this was its last hold and the lease was not lost before.
    pub fn leave(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
        returned: bool,
        confirm: Option<Confirm<C>>,
    ) -> Option<Duration> {
        self.during(env, |machine, env| {
            let left = machine
                .own_lease(ownership)
                .and_then(|held| held.leave(ownership, returned, env.now));
            let held = machine.held.as_ref();
            let others_stay = left.is_ok() && held.is_some_and(|held| held.is_shared() && held.is_held());
            if others_stay {
                // What goes back to the store may be for the next caller of this process.
                machine.asking.ask_now();
            }
            match confirm {
                // The row follows. What becomes of the others is nothing to the caller.
                Some(confirm) if others_stay => machine.reply(Reply::Confirmed(confirm.to, Ok(()))),
                confirm => machine.confirm(ownership, confirm, left.map(|_| Shows::Holds)),
            }
            left.ok().flatten()
        })
    }

    /// The owner's last hold ends, and the lease goes to a ticket with the lease `to`, for this ttl. Refused
    /// while there is a second hold. The reply comes when the store has confirmed it.
    pub fn transfer(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
        to: Uuid,
        ttl: Duration,
        confirm: Confirm<C>,
    ) -> Result<Option<Duration>, NotClosed> {
        self.during(env, |machine, env| {
            let held = machine.own_lease(ownership).map_err(NotClosed::Over)?;
            let held_for = held.transfer(ownership, to, ttl, env.now)?;
            machine.confirm(ownership, Some(confirm), Ok(Shows::Holds));
            Ok(held_for)
        })
    }

    /// Nobody has the ticket with the lease `to`, for which [`transfer`](Self::transfer) has asked: the row may name it, or
    /// a request on its way may make it do so.
    pub fn give_up_ticket(&mut self, env: &mut Env<'_>, to: Uuid, ttl: Duration) {
        self.during(env, |machine, env| {
            let held = machine.held.as_mut();
            let until = held.and_then(|held| held.give_up_ticket(to)).unwrap_or(env.now);
            machine
                .abandoned
                .push(Abandoned::of_ticket(to, until, ttl, env.now));
        });
    }

    /// A fence check: no local hand-over from here on. The reply comes when the row names the owner.
    pub fn pin(&mut self, env: &mut Env<'_>, ownership: &Arc<Ownership>, confirm: Option<Confirm<C>>) {
        self.during(env, |machine, _| {
            let pinned = machine.own_lease(ownership).and_then(|held| held.pin(ownership));
            machine.confirm(ownership, confirm, pinned.map(|()| Shows::Owner));
        });
    }

    /// The owner has another ttl from now on. The reply comes when the lease has been extended by it.
    pub fn set_ttl(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
        ttl: Duration,
        confirm: Confirm<C>,
    ) {
        self.during(env, |machine, env| {
            let set = machine
                .own_lease(ownership)
                .and_then(|held| held.set_ttl(ownership, ttl, env.now));
            machine.confirm(ownership, Some(confirm), set.map(|()| Shows::End));
        });
    }

    /// The owner begins a run by a separate write. `undo` is the change that undoes that write. Refused once
    /// the lease has ended.
    pub fn begin(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
        undo: Arc<RecordChange>,
    ) -> Result<(), LostReason> {
        self.during(env, |machine, _| {
            machine.own_lease(ownership)?.begin(ownership, undo)
        })
    }

    /// The body of a run begins. From now on the run's begin is not undone. Refused once the lease has ended.
    pub fn begun(&mut self, env: &mut Env<'_>, ownership: &Arc<Ownership>) -> Result<(), LostReason> {
        self.during(env, |machine, _| machine.own_lease(ownership)?.begun(ownership))
    }

    /// A write that ends the owner's last hold is on its way. No hold is added from now on. Refused while
    /// there is a second hold.
    pub fn close(&mut self, env: &mut Env<'_>, ownership: &Arc<Ownership>) -> Result<(), NotClosed> {
        self.during(env, |machine, _| {
            let held = machine.own_lease(ownership).map_err(NotClosed::Over)?;
            held.close(ownership)
        })
    }

    /// The write that was to end the last hold has failed. Holds can be added again.
    pub fn reopen(&mut self, env: &mut Env<'_>, ownership: &Arc<Ownership>) {
        self.during(env, |machine, _| {
            machine.held.iter_mut().for_each(|held| held.reopen(ownership));
        });
    }

    /// A transaction of the owner has written the release. The row stays locked until that transaction ends.
    pub fn keep_in_transaction(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
    ) -> Result<(), LostReason> {
        self.during(env, |machine, env| {
            let held = machine.own_lease(ownership)?;
            held.keep_in_transaction(ownership, env.now)
        })
    }

    /// The manager shuts down: callers that hold no other lock are refused.
    pub fn refuse_outermost(&mut self, env: &mut Env<'_>) {
        self.during(env, |machine, env| machine.refuse_all(false, env.now));
    }

    /// The lease is ended, and all callers are refused.
    pub fn stop(&mut self, env: &mut Env<'_>) {
        self.during(env, |machine, env| machine.end_all(env.now));
    }

    /// As [`stop`](Self::stop), and for good: nothing is sent any more, and no answer comes.
    pub fn abort(&mut self, env: &mut Env<'_>) {
        self.during(env, |machine, env| {
            machine.end_all(env.now);
            if let Some(held) = &mut machine.held {
                held.give_up_confirmations();
            }
        });
    }

    // ── What arrives ─────────────────────────────────────────────────────────────────────────────────

    /// The answer to the request on its way.
    pub fn handle_answer(&mut self, env: &mut Env<'_>, answer: Result<Outcome, StoreError>) {
        self.during(env, |machine, env| machine.apply_answer(answer, env));
    }

    /// A wake-up said that the key was freed, or a wake-up may have been missed.
    pub fn handle_freed(&mut self, env: &mut Env<'_>) {
        self.during(env, |machine, _| {
            machine.held.iter_mut().for_each(Held::woken);
            machine.asking.woken();
        });
    }

    /// A wake-up said that `inside` share the key, and that `next` comes first and has waited for so long.
    pub fn handle_may_enter(&mut self, env: &mut Env<'_>, inside: u32, next: Option<(Uuid, Duration)>) {
        let Some((_, first)) = self.queue.first() else {
            return;
        };
        let has_room = first.call.options.limit.is_some_and(|limit| limit > inside);
        let waited = env.now.since(first.since);
        let comes_first = next.is_none_or(|(lease, longer)| waited >= longer || self.asks_with(lease));
        if has_room && comes_first {
            self.handle_freed(env);
        } else if next.is_none() && self.held.is_none() {
            self.during(env, |machine, env| machine.asking.place_is_free(env));
        }
    }

    /// A wake-up said that the key was passed on, with this token, to the lease with this id, ours or not.
    pub fn handle_passed_on(&mut self, env: &mut Env<'_>, lease_id: Uuid, fence_token: i64) {
        self.during(env, |machine, env| {
            machine.passed_on(lease_id, fence_token, env);
        });
    }

    /// A caller of this process waits with this lease.
    fn asks_with(&self, lease_id: Uuid) -> bool {
        let is_next = self
            .asking
            .place()
            .is_some_and(|place| place.lease_id == lease_id);
        let on_its_way = self.on_its_way.as_ref();
        is_next || on_its_way.is_some_and(|sent| sent.lease_id == lease_id)
    }

    /// No wake-ups arrive any more.
    pub fn handle_wake_ups_lost(&mut self, env: &mut Env<'_>) {
        self.during(env, |machine, env| machine.asking.wake_ups_lost(env));
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, env: &mut Env<'_>) {
        self.during(env, |_, _| ());
    }

    /// A fence check, or a record of a later lease, has shown that the row no longer names the lease.
    pub fn handle_gone(&mut self, env: &mut Env<'_>, ownership: &Arc<Ownership>) {
        self.during(env, |machine, env| {
            let reason = if ownership.is_revoked() {
                LostReason::Revoked
            } else {
                LostReason::Gone
            };
            if let Some(held) = machine.own_lease_of(ownership) {
                held.lose(reason, env.now);
            }
        });
    }

    /// The transaction that kept the lease has committed, or one that took the key has been rolled back: the
    /// key is free. Returns as [`leave`](Self::leave).
    pub fn handle_transaction_over(
        &mut self,
        env: &mut Env<'_>,
        ownership: &Arc<Ownership>,
    ) -> Option<Duration> {
        self.during(env, |machine, env| {
            let held_for = machine.own_lease_of(ownership)?.transaction_over(env.now);
            if let Some(held) = machine.end_lease(env.now) {
                machine.take_back(&held, env.now);
            }
            held_for
        })
    }

    // ── What is to be done ───────────────────────────────────────────────────────────────────────────

    /// The new entries for the log and for metrics. To be asked for before [`poll_replies`](Self::poll_replies), so that
    /// a caller finds its own step in the log.
    pub fn poll_notes(&mut self) -> Vec<Note> {
        mem::take(&mut self.notes)
    }

    pub fn poll_replies(&mut self) -> Vec<Reply<A, C>> {
        mem::take(&mut self.replies)
    }

    /// The key has a request of this kind, and is not listed for it yet.
    pub fn poll_ready(&mut self) -> Option<Kind> {
        let Listed::New(kind) = self.listed else {
            return None;
        };
        self.listed = Listed::Known(kind);
        Some(kind)
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) if nothing else is called first.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.look_at
    }

    /// Callers wait for the key.
    pub fn has_callers(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Callers wait for a key that another process holds, or a transaction of this one.
    pub fn wants_wake_ups(&self) -> bool {
        let waits = match &self.held {
            Some(held) if held.left_in_transaction().is_some() => true,
            Some(held) => held.is_shared() && self.asking.ask_at().is_some(),
            None => self.asking.ask_at().is_some(),
        };
        waits && !self.queue.is_empty()
    }

    /// The request of the key, if it has one of these kinds. From here on it is on its way.
    pub fn poll_transmit(&mut self, env: &mut Env<'_>, kinds: &[Kind]) -> Option<Transmit> {
        self.during(env, |machine, env| {
            machine.listed = Listed::No;
            let request = machine.build_request(kinds, env)?;
            let held = machine.held.as_ref();
            let time_limit = held.and_then(|held| held.time_limit(env.now));
            Some(Transmit { request, time_limit })
        })
    }

    /// The lease of this process, if this owner has it, or had it last.
    fn own_lease_of(&mut self, ownership: &Arc<Ownership>) -> Option<&mut Held<C>> {
        self.held.as_mut().filter(|held| held.is_of(ownership))
    }

    /// The lease of this process, whichever owner has it. Where there is none, the reason why `ownership` has ended.
    fn own_lease(&mut self, ownership: &Ownership) -> Result<&mut Held<C>, LostReason> {
        self.held.as_mut().ok_or_else(|| ended_reason(ownership))
    }

    fn confirm(
        &mut self,
        ownership: &Ownership,
        confirm: Option<Confirm<C>>,
        shows: Result<Shows, LostReason>,
    ) {
        match (confirm, shows, &mut self.held) {
            (None, ..) => {}
            (Some(confirm), Ok(shows), Some(held)) => held.confirm(confirm, shows),
            (Some(confirm), ..) => {
                let lost = Unconfirmed::Lost(ended_reason(ownership));
                self.reply(Reply::Confirmed(confirm.to, Err(lost)));
            }
        }
    }

    // ── Time ─────────────────────────────────────────────────────────────────────────────────────────

    /// Lets time pass: ends and forgets a lease, hands it over to the next caller, and replies to callers
    /// whose timeout has passed.
    fn advance(&mut self, env: &mut Env<'_>) {
        let now = env.now;
        self.turns.advance(now);
        self.refuse_overdue(now);
        self.refuse_adoptions(now);
        if let Some(held) = &mut self.held {
            if held.advance(now) {
                self.forget(env);
            } else if let Some(next) = held.hand_over(&mut self.queue, &self.key, now) {
                let ownership = Arc::clone(held.current());
                self.reply(Reply::Granted(next, ownership));
            } else {
                self.let_join(now);
            }
        }
        if self
            .held
            .as_ref()
            .is_some_and(|held| held.is_held() && !held.is_shared())
        {
            // The row names the lease of this process alone, so the ones that are over cannot be in it.
            self.abandoned.retain(|abandoned| now < abandoned.over_at);
        }
        if let Some((_, first)) = self.queue.first() {
            self.asking.first_has(first.call.options.limit);
        }
        if self.held.is_none() && self.on_its_way.is_none() {
            self.enter_after_wake_up(env);
            self.give_up_places(now);
            self.give_turn(env);
        }
    }

    /// Callers enter beside those who share the lease.
    fn let_join(&mut self, now: Time) {
        while let Some(held) = &mut self.held
            && let Some((waiter, ownership)) = held.join(&mut self.queue, &self.key, now)
        {
            self.reply(Reply::Granted(waiter, ownership));
        }
    }

    /// Forgets a lease that has ended in the store. A run that was not entered is still taken back. A request
    /// of unknown outcome may have extended the row, which would then stay busy for one more ttl although
    /// nobody uses it. So the lease is released as an abandoned acquire is.
    fn forget(&mut self, env: &Env<'_>) {
        let Some(held) = &mut self.held else { return };
        let extend_on_its_way = match &self.on_its_way {
            Some(OnItsWay {
                what: Sent::OwnLease(action),
                ..
            }) => ttl_of(action),
            _ => None,
        };
        let lengthened = held.forget(extend_on_its_way, env.now);
        let Some(held) = self.end_lease(env.now) else {
            return;
        };
        self.take_back(&held, env.now);
        if let Some((ttl, kept_until)) = lengthened {
            let lease_id = held.lease_id();
            self.abandoned.retain(|abandoned| abandoned.lease_id != lease_id);
            let mut lengthened = Abandoned::new(lease_id, ttl, env.now);
            lengthened.retry_at = kept_until;
            lengthened.undo = held.undo;
            self.abandoned.push(lengthened);
        }
    }

    /// Undoes the begin of a run whose lease ended without a release and whose body never began. Nobody can
    /// begin under the lease any more.
    fn take_back(&mut self, held: &Held<C>, now: Time) {
        if let Some(undo) = &held.undo {
            let until = now + held.current().call.options.ttl;
            let mut abandoned = Abandoned::all_answered(held.lease_id(), until, now);
            abandoned.undo = Some(Arc::clone(undo));
            self.abandoned.push(abandoned);
        }
    }

    /// The lease of this process is over.
    fn end_lease(&mut self, now: Time) -> Option<Held<C>> {
        self.hear();
        let held = self.held.take()?;
        let beside_others = held.is_in_transaction() && self.asking.found_locked(now);
        let kept_since = beside_others.then(|| held.current().since);
        self.turns.lease_over(held.lease_id(), kept_since, now);
        self.asking.released(held.holder(now), held.hand_overs(), now);
        if let Some(last_error) = held.last_error() {
            self.asking.note_answer(last_error, now);
        }
        Some(held)
    }

    /// Ends the lease and the turn, and refuses all callers. A row that `hold_min` keeps busy is left to expire.
    fn end_all(&mut self, now: Time) {
        self.refuse_all(true, now);
        self.turns.end_any();
        let Some(held) = &mut self.held else { return };
        if held.undo.is_none() && held.lingers_by_itself() {
            held.left_to_expire();
            self.hear();
            self.held = None;
        } else {
            held.lose(LostReason::Shutdown, now);
        }
    }
}

#[cfg(test)]
mod tests;
