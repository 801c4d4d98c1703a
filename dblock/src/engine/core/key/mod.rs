//! One key: everything that a process knows and decides about it, as a machine without I/O.
//!
//! [`Machine::step`] takes an [`Event`] and says what it wants done. At most one request for a key is on its way. Before
//! and after each event the step lets time pass ([`Machine::advance`]): there a lease ends, and the next caller enters.
//!
//! - [`held`] is the lease that this process has, a state machine with its table at the top of its file.
//! - [`asking`] says when to ask for one, and keeps this process's place as successor.
//! - [`wait_queue`] holds the callers of this process; [`fairness`] is about other processes.
//! - [`abandoned`] holds acquires whose answer nobody takes any more.
//! - [`entering`] gives a lease that comes to this process to a caller.
//! - [`sending`] says which request goes next, [`answers`] what its answer means.
//!
//! `flawed(…)` is false outside of the simulation, which puts one flaw at a time into this code and must find it.

mod abandoned;
mod answers;
mod asking;
mod entering;
mod fairness;
mod held;
mod sending;
mod wait_queue;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub(crate) use self::held::Confirm;
pub(crate) use self::wait_queue::Waiter;

use self::abandoned::Abandoned;
use self::asking::Asking;
use self::fairness::Fairness;
use self::held::{Held, Shows, ttl_of};
use self::wait_queue::WaitQueue;
use super::env::Env;
use super::flaw::{Flaw, flawed};
use super::out::{Kind, Note, Out, Refusal, Reply};
use super::ownership::Ownership;
use super::time::Time;
use crate::error::LostReason;
use crate::key::Key;
use crate::store::{Action, Outcome, RecordChange, StoreError};

/// An event of a key.
#[derive(Debug)]
pub(crate) enum Event<C> {
    /// A caller wants the lock.
    Acquire(Box<Waiter<C>>),
    /// The caller with this number, from [`Out::waiter`], is gone.
    GiveUp(u64),
    /// A re-entry: one more hold. `confirm` is answered when the store confirms that the lease is still held.
    Enter(Arc<Ownership>, Option<Confirm<C>>),
    /// A hold ends. `in_order`: the body returned. `confirm` is answered when the store has confirmed it.
    Leave {
        ownership: Arc<Ownership>,
        in_order: bool,
        confirm: Option<Confirm<C>>,
    },
    /// A fence check: no local hand-over from here on. `confirm` is answered when the row names the owner.
    Pin(Arc<Ownership>, Option<Confirm<C>>),
    /// The owner has another ttl from now on. Answered when the lease has been extended by it.
    SetTtl(Arc<Ownership>, Duration, Confirm<C>),
    /// The caller of a run that began with its grant has entered: that is not taken back any more.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs begin with the lock")
    )]
    Begun(Arc<Ownership>),
    /// A fence check has found that the row no longer names the lease.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    Gone(Arc<Ownership>),
    /// A transaction of the owner's has freed the row, and keeps it locked until it ends.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    KeptInTransaction(Arc<Ownership>),
    /// That transaction has committed: the key is free.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    Committed(Arc<Ownership>),
    /// A caller wants the lock in the transaction that keeps the row of this lease locked.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    EnterAgain(Uuid, Box<Waiter<C>>),
    /// The request for this key may be sent now, if it is one of these kinds.
    Send(&'static [Kind]),
    /// The answer to the request on its way.
    Answer(Result<Outcome, StoreError>),
    /// A wake-up said that the key was freed, or a wake-up may have been missed.
    WokenUp,
    /// A wake-up said that the key was passed on, with this token, to the lease with this id, ours or not.
    PassedOn(Uuid, i64),
    /// No wake-ups arrive any more.
    WakeUpsLost,
    /// Time has passed.
    Time,
    /// The manager shuts down: callers that hold no other lock are refused.
    Refuse,
    /// The lease is ended, and all callers are refused.
    Stop,
    /// As `Stop`, and for good: nothing is sent or answered any more.
    End,
}

/// Everything that a process knows about one key.
#[derive(Debug)]
pub(crate) struct Machine<C> {
    key: Key,
    queue: WaitQueue<C>,
    held: Option<Held<C>>,
    asking: Asking,
    fairness: Fairness,
    abandoned: Vec<Abandoned>,
    on_its_way: Option<OnItsWay>,
    /// The kind of request for which the dispatcher lists this key.
    listed: Option<Kind>,
}

/// The request on its way.
#[derive(Debug)]
struct OnItsWay {
    lease_id: Uuid,
    action: Action,
    for_whom: ForWhom,
    sent_at: Time,
    /// For an acquire that begins a run: what takes that back.
    undo: Option<Arc<RecordChange>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForWhom {
    Abandoned,
    /// The lease that this process has.
    OwnLease,
    /// The extension of a row that was passed on: no caller has entered yet.
    Arriving,
    /// The acquire for the caller with this number.
    Waiter(u64),
}

impl<C> Machine<C> {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            queue: WaitQueue::new(),
            held: None,
            asking: Asking::new(),
            fairness: Fairness::default(),
            abandoned: Vec::new(),
            on_its_way: None,
            listed: None,
        }
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub(crate) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        self.held.as_ref().map_or(0, |held| held.holds(ownership))
    }

    /// The lease that a transaction keeps although its owner has left. The transaction may have ended unnoticed.
    #[cfg(feature = "sql")]
    pub(crate) fn left_in_transaction(&self) -> Option<(Uuid, i64)> {
        self.held.as_ref().and_then(Held::left_in_transaction)
    }

    /// A transaction of this owner's keeps the row locked.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn is_kept_in_transaction(&self, ownership: &Arc<Ownership>) -> bool {
        let held = self.held.as_ref();
        held.is_some_and(|held| held.is_kept_in_transaction() && Arc::ptr_eq(held.current(), ownership))
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Takes an event, and says what it wants done.
    pub(crate) fn step(&mut self, env: &mut Env<'_>, event: Event<C>) -> Out<C> {
        let mut out = Out::default();
        // Whether a lease has ended must be decided before an answer moves its end.
        if !flawed(Flaw::LostLivesAgain) {
            self.advance(env, &mut out);
        }
        self.take(event, env, &mut out);
        self.advance(env, &mut out);
        self.list_next_request(env, &mut out);
        out
    }

    /// Applies the event itself. [`advance`](Self::advance) then decides who enters.
    fn take(&mut self, event: Event<C>, env: &mut Env<'_>, out: &mut Out<C>) {
        let now = env.now;
        match event {
            Event::Acquire(waiter) => {
                if waiter.non_blocking || self.queue.is_empty() {
                    self.asking.ask_now();
                }
                out.waiter = self.queue.push(waiter);
            }
            Event::GiveUp(_) if flawed(Flaw::GoneCallersAreKept) => {}
            Event::GiveUp(number) => drop(self.queue.remove(number)),
            Event::Enter(ownership, confirm) => {
                let entered = self.own_lease().and_then(|held| held.enter(&ownership));
                out.entered = entered.is_ok();
                self.confirm(&ownership, confirm, entered.map(|()| Shows::Holds), out);
            }
            Event::Leave {
                ownership,
                in_order,
                confirm,
            } => {
                let left = self
                    .held
                    .as_mut()
                    .and_then(|held| held.leave(&ownership, in_order, now, out));
                self.confirm(
                    &ownership,
                    confirm,
                    left.map(|()| Shows::Holds).ok_or(LostReason::Released),
                    out,
                );
            }
            Event::Pin(ownership, confirm) => {
                let pinned = self.own_lease().and_then(|held| held.pin(&ownership));
                self.confirm(&ownership, confirm, pinned.map(|()| Shows::Owner), out);
            }
            Event::SetTtl(ownership, ttl, confirm) => {
                let set = self.own_lease().and_then(|held| held.set_ttl(&ownership, ttl));
                self.confirm(&ownership, Some(confirm), set.map(|()| Shows::End), out);
            }
            Event::Begun(ownership) => self
                .own_lease_of(&ownership)
                .into_iter()
                .for_each(|held| held.undo = None),
            Event::Gone(ownership) => {
                let reason = if ownership.is_revoked() {
                    LostReason::Revoked
                } else {
                    LostReason::Gone
                };
                if let Some(held) = self.own_lease_of(&ownership) {
                    held.end(reason, now, out);
                }
            }
            Event::KeptInTransaction(ownership) => {
                let kept = self
                    .held
                    .as_mut()
                    .map(|held| held.keep_in_transaction(&ownership, now));
                out.entered = kept.is_some_and(|kept| kept.is_ok());
            }
            Event::Committed(ownership) => {
                let held = self.held.take_if(|held| Arc::ptr_eq(held.current(), &ownership));
                if let Some(mut held) = held {
                    held.committed(now, out);
                    self.after(&held, now);
                }
            }
            Event::EnterAgain(lease_id, waiter) => self.enter_again(lease_id, waiter, now, out),
            Event::Send(kinds) => {
                self.listed = None;
                out.request = self.send(kinds, env);
                out.time_limit = self.held.as_ref().and_then(|held| held.time_limit(now));
            }
            Event::Answer(answer) => self.answer(answer, env, out),
            Event::WokenUp => {
                self.held.iter_mut().for_each(Held::woken);
                self.asking.woken();
            }
            Event::PassedOn(lease_id, fence_token) => self.passed_on(lease_id, fence_token, env),
            Event::WakeUpsLost => self.asking.wake_ups_lost(env),
            // `advance` and `list_next_request` do what time asks for.
            Event::Time => {}
            Event::Refuse => self.refuse_all(false, out),
            Event::Stop => self.stop(now, out),
            Event::End => {
                self.stop(now, out);
                if let Some(held) = &mut self.held {
                    held.give_up_confirms(out);
                }
            }
        }
    }

    /// Another call in the transaction that keeps the lease.
    fn enter_again(&mut self, lease_id: Uuid, waiter: Box<Waiter<C>>, now: Time, out: &mut Out<C>) {
        let held = self.held.as_mut();
        let entered = held.and_then(|held| held.enter_again(lease_id, &waiter.call, &self.key, now));
        out.replies.push(match entered {
            Some(ownership) => Reply::Granted(waiter, ownership),
            None => Reply::Refused(waiter, Refusal::RowLocked),
        });
    }

    /// The lease of this process, if this owner has it, or had it last.
    fn own_lease_of(&mut self, ownership: &Arc<Ownership>) -> Option<&mut Held<C>> {
        self.held
            .as_mut()
            .filter(|held| Arc::ptr_eq(held.current(), ownership))
    }

    fn own_lease(&mut self) -> Result<&mut Held<C>, LostReason> {
        self.held.as_mut().ok_or(LostReason::Released)
    }

    fn confirm(
        &mut self,
        ownership: &Ownership,
        confirm: Option<Confirm<C>>,
        shows: Result<Shows, LostReason>,
        out: &mut Out<C>,
    ) {
        match (confirm, shows, &mut self.held) {
            (None, ..) => {}
            (Some(confirm), Ok(shows), Some(held)) => held.confirm(confirm, shows, out),
            (Some(confirm), ..) => {
                let reason = ownership.ended().unwrap_or(LostReason::Released);
                out.replies.push(Reply::Lost(confirm.ticket, reason));
            }
        }
    }

    // ── What time does ───────────────────────────────────────────────────────────────────────────────

    /// Lets time pass: ends and forgets a lease, hands it over to the next caller, and answers callers whose timeout
    /// has passed.
    fn advance(&mut self, env: &mut Env<'_>, out: &mut Out<C>) {
        let now = env.now;
        self.refuse_overdue(now, out);
        if let Some(held) = &mut self.held {
            if held.advance(now, out) {
                self.forget(env, out);
            } else {
                held.hand_over(&mut self.queue, &self.key, now, out);
            }
        }
        if self.held.as_ref().is_some_and(Held::is_held) {
            // The row names the lease of this process, so the ones that are over cannot be in it.
            self.abandoned.retain(|abandoned| now < abandoned.over_at);
        }
        let asking = self.on_its_way.is_some() && !flawed(Flaw::WakeUpsAreBelievedWhileAsking);
        if self.held.is_none() && !asking {
            self.enter_after_wake_up(env, out);
            self.give_up_places(now);
        }
    }

    /// Forgets a lease that has ended in the store. A request of unknown outcome may have extended the row, which
    /// would then stay busy for one more ttl although nobody uses it. So the lease is released as an abandoned acquire is.
    fn forget(&mut self, env: &Env<'_>, out: &mut Out<C>) {
        let Some(held) = self.held.take() else { return };
        let sent = self.on_its_way.as_ref();
        let extend_on_its_way = sent
            .filter(|sent| sent.for_whom == ForWhom::OwnLease)
            .and_then(|sent| ttl_of(&sent.action));
        self.after(&held, env.now);
        let lease_id = held.lease_id();
        if let Some((ttl, kept_until)) = held.forget(extend_on_its_way, env.now, out) {
            let mut abandoned = Abandoned::new(lease_id, ttl, env.now);
            abandoned.retry_at = kept_until;
            self.abandoned.push(abandoned);
        }
    }

    /// The lease of this process is over.
    fn after(&mut self, held: &Held<C>, now: Time) {
        self.asking.released(held.holder(now), held.hand_overs(), now);
        if let Some(last_error) = held.last_error() {
            self.asking.answered(last_error, now);
        }
    }

    fn refuse_overdue(&mut self, now: Time, out: &mut Out<C>) {
        if self.queue.first_deadline().is_none_or(|deadline| now < deadline) && !self.queue.has_non_blocking()
        {
            return;
        }
        let mut holder = None;
        if let Some(held) = &self.held {
            if held.is_occupied() {
                holder = Some(held.holder(now));
                self.refuse_non_blocking(Time::MAX, &Refusal::Busy(holder.clone()), out);
            } else {
                // Nobody holds the lock, but the row is not released yet: callers wait for that.
                self.asking.note_last_error(held.last_error(), now);
            }
        }
        if flawed(Flaw::TimeoutsAreForgotten) {
            return;
        }
        while let Some(waiter) = self.queue.pop_overdue(now) {
            let refusal = match &holder {
                Some(_) => Refusal::Busy(holder.clone()),
                None => self.asking.refusal(waiter.since, waiter.non_blocking),
            };
            out.replies.push(Reply::Refused(waiter, refusal));
        }
    }

    fn refuse_non_blocking(&mut self, came_before: Time, refusal: &Refusal, out: &mut Out<C>) {
        while let Some(waiter) = self.queue.pop_non_blocking(came_before) {
            out.replies.push(Reply::Refused(waiter, refusal.clone()));
        }
    }

    fn refuse_all(&mut self, nested_too: bool, out: &mut Out<C>) {
        let refused = self.queue.take(nested_too).into_iter();
        out.replies
            .extend(refused.map(|waiter| Reply::Refused(waiter, Refusal::Shutdown)));
    }

    /// Ends the lease and refuses all callers. A row that `hold_min` keeps busy is left to expire.
    fn stop(&mut self, now: Time, out: &mut Out<C>) {
        self.refuse_all(true, out);
        if let Some(held) = self.held.take_if(|held| held.lingers_by_itself()) {
            out.notes.push(Note::LeftBusy(Arc::clone(held.current())));
        }
        if let Some(held) = &mut self.held {
            held.end(LostReason::Shutdown, now, out);
        }
    }

    // ── What the driver counts ───────────────────────────────────────────────────────────────────────

    /// A release must still be written to the row, or is on its way.
    pub(crate) fn has_release_pending(&self) -> bool {
        // An acquire that no caller waits for any more is released once it is granted.
        let releases = |sent: &OnItsWay| match sent.action {
            Action::Release => true,
            Action::Acquire(_) => self.queue.is_empty(),
            Action::Extend(_) => false,
        };
        !self.abandoned.is_empty()
            || self.held.as_ref().is_some_and(Held::is_left)
            || self.on_its_way.as_ref().is_some_and(releases)
    }

    /// An owner holds the lock, or is about to enter or has just left: a shutdown gives them its grace. Leases
    /// that no caller took, and rows that `hold_min` keeps busy by themselves, need none.
    pub(crate) fn needs_grace(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.lingers_by_itself()) || self.on_its_way.is_some()
    }

    /// A lease is held or abandoned, or a request is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.is_some() || !self.abandoned.is_empty() || self.on_its_way.is_some()
    }
}

#[cfg(test)]
mod tests;
