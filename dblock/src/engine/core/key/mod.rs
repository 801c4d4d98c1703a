//! One key: everything that a process knows and decides about it, as a machine without I/O.
//!
//! [`Machine::step`] takes an [`Event`] and says what it wants done. At most one request for a key is on its
//! way. Before and after each event the step lets time pass ([`Machine::advance`]): there a lease ends, and
//! the next caller enters.
//!
//! - [`held`] is the lease that this process has, a state machine with its table at the top of its file.
//! - [`asking`] says when to ask for one, and keeps this process's place as successor.
//! - [`wait_queue`] holds the callers of this process; [`fairness`] is about other processes.
//! - [`abandoned`] holds acquires whose answer nobody takes any more.
//! - [`entering`] gives a lease that comes to this process to a caller.
//! - [`sending`] says which request goes next, [`answers`] what its answer means.
//! - [`refusing`] tells callers that they do not get the lock.
//! - [`unfinished`] says what is still to be done for the key.
//!
//! `flawed(…)` is false outside of the simulation, which puts one flaw at a time into this code and must find
//! it.

mod abandoned;
mod answers;
mod asking;
mod entering;
mod event;
mod fairness;
mod held;
mod refusing;
mod sending;
mod unfinished;
mod wait_queue;

use std::sync::Arc;

pub(crate) use self::event::Event;
pub(crate) use self::held::Confirm;
pub(crate) use self::wait_queue::Waiter;

use self::abandoned::Abandoned;
use self::asking::Asking;
use self::fairness::Fairness;
use self::held::{Held, Shows, ttl_of};
use self::sending::{ForWhom, OnItsWay};
use self::wait_queue::WaitQueue;
use super::env::Env;
use super::flaw::{Flaw, flawed};
use super::out::{Kind, Note, Out, Reply};
use super::ownership::Ownership;
use super::time::Time;
use crate::error::LostReason;
use crate::key::Key;
#[cfg(feature = "run_once")]
use crate::store::RecordChange;

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

    /// What takes back the run of `ownership` that has begun, or may have, and whose body has not.
    #[cfg(feature = "run_once")]
    pub(crate) fn undo(&self, ownership: &Arc<Ownership>) -> Option<Arc<RecordChange>> {
        let held = self.held.as_ref()?;
        held.undo
            .clone()
            .filter(|_| Arc::ptr_eq(held.current(), ownership))
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub(crate) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        self.held.as_ref().map_or(0, |held| held.holds(ownership))
    }

    /// The lease that a transaction keeps although its owner has left. The transaction may have ended
    /// unnoticed.
    #[cfg(feature = "sql")]
    pub(crate) fn left_in_transaction(&self) -> Option<(uuid::Uuid, i64)> {
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
                let has_left = self
                    .held
                    .as_mut()
                    .and_then(|held| held.leave(&ownership, in_order, now, out));
                self.confirm(
                    &ownership,
                    confirm,
                    has_left.map(|()| Shows::Holds).ok_or(LostReason::Released),
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
            Event::Begin(ownership, undo) => {
                out.entered = self
                    .held
                    .as_mut()
                    .is_some_and(|held| held.begin(&ownership, undo));
            }
            Event::Begun(ownership) => {
                out.entered = self.held.as_mut().is_some_and(|held| held.begun(&ownership));
            }
            Event::Close(ownership) => {
                out.entered = self.held.as_mut().is_some_and(|held| held.close(&ownership));
            }
            Event::Reopen(ownership) => self.held.iter_mut().for_each(|held| held.reopen(&ownership)),
            Event::Gone(ownership) => {
                let reason = if ownership.is_revoked() {
                    LostReason::Revoked
                } else {
                    LostReason::Gone
                };
                if let Some(held) = self.own_lease_of(&ownership) {
                    held.lose(reason, now, out);
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
                    self.take_back(&held, now);
                }
            }
            Event::EnterAgain(lease_id, waiter) => self.enter_again(lease_id, waiter, now, out),
            Event::Send(kinds) => {
                self.listed = None;
                out.request = self.send(kinds, env);
                out.time_limit = self.held.as_ref().and_then(|held| held.time_limit(now));
            }
            Event::Answer(answer) => self.apply_answer(answer, env, out),
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
            Event::Abort => {
                self.stop(now, out);
                if let Some(held) = &mut self.held {
                    held.give_up_confirmations(out);
                }
            }
        }
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

    /// Lets time pass: ends and forgets a lease, hands it over to the next caller, and replies to callers
    /// whose timeout has passed.
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

    /// Forgets a lease that has ended in the store. A run that was not entered is still taken back. A request
    /// of unknown outcome may have extended the row, which would then stay busy for one more ttl although
    /// nobody uses it. So the lease is released as an abandoned acquire is.
    fn forget(&mut self, env: &Env<'_>, out: &mut Out<C>) {
        let Some(held) = self.held.take() else { return };
        let sent = self.on_its_way.as_ref();
        let extend_on_its_way = sent
            .filter(|sent| sent.for_whom == ForWhom::OwnLease)
            .and_then(|sent| ttl_of(&sent.action));
        self.after(&held, env.now);
        self.take_back(&held, env.now);
        let (lease_id, undo) = (held.lease_id(), held.undo.clone());
        if let Some((ttl, kept_until)) = held.forget(extend_on_its_way, env.now, out) {
            self.abandoned.retain(|abandoned| abandoned.lease_id != lease_id);
            let mut lengthened = Abandoned::new(lease_id, ttl, env.now);
            lengthened.retry_at = kept_until;
            lengthened.undo = undo;
            self.abandoned.push(lengthened);
        }
    }

    /// Takes back the run of a lease that has ended without a release, if its body has not begun. Nobody can
    /// begin under the lease any more.
    fn take_back(&mut self, held: &Held<C>, now: Time) {
        if let Some(undo) = &held.undo {
            let until = now + held.current().call.ttl;
            let mut abandoned = Abandoned::all_answered(held.lease_id(), until, now);
            abandoned.undo = Some(Arc::clone(undo));
            self.abandoned.push(abandoned);
        }
    }

    /// The lease of this process is over.
    fn after(&mut self, held: &Held<C>, now: Time) {
        self.asking.released(held.holder(now), held.hand_overs(), now);
        if let Some(last_error) = held.last_error() {
            self.asking.note_answer(last_error, now);
        }
    }

    /// Ends the lease and refuses all callers. A row that `hold_min` keeps busy is left to expire.
    fn stop(&mut self, now: Time, out: &mut Out<C>) {
        self.refuse_all(true, out);
        if let Some(mut held) = self
            .held
            .take_if(|held| held.undo.is_none() && held.lingers_by_itself())
        {
            held.left_to_expire(out);
            out.notes.push(Note::StaysBusy(Arc::clone(held.current())));
        }
        if let Some(held) = &mut self.held {
            held.lose(LostReason::Shutdown, now, out);
        }
    }
}

#[cfg(test)]
mod tests;
