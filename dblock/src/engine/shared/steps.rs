//! Calls of the keys' machines, and carrying out what they want done then.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::env::{Env, Random, Time};
use dblock_core::machine::key::{NotClosed, Transmit};
use dblock_core::machine::out::Note;
use dblock_core::machine::ownership::Ownership;
use futures_util::FutureExt as _;
use uuid::Uuid;

use super::{Shared, Unscheduled};
use crate::engine::cells::{
    Cell, Confirm, Given, Machine, Reply, Resuming, Resumption, State, Waiter, lock, lock_in_peace,
};
use crate::store::{Kind, Outcome, StoreError, StoreErrorKind};
use crate::{Key, LostReason};

/// Every kind of request.
const ANY: &[Kind] = &[Kind::Extend, Kind::Release, Kind::Acquire];

impl Shared {
    /// As [`step_unscheduled`](Self::step_unscheduled), for a call that may be the key's first: makes the cell if
    /// there is none. Returns the cell too.
    pub(in crate::engine) fn step_new<R>(
        self: &Arc<Self>,
        key: &Key,
        mut does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> (Arc<Cell>, Option<R>, Option<Unscheduled>) {
        loop {
            let cell = self.cells.find_or_make(key);
            match self.try_step(&cell, does) {
                Ok((answer, unscheduled)) => return (cell, answer, unscheduled),
                Err(again) => does = again,
            }
            self.forget(&cell);
        }
    }

    /// Calls the machine of a key, and carries out what it wants done then. `None`: the key has been
    /// forgotten, or the machine panicked.
    pub(in crate::engine) fn step<R>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let (answer, unscheduled) = self.step_unscheduled(cell, does);
        self.put(unscheduled);
        answer
    }

    /// As [`step`](Self::step), but the caller must pass what it returns to [`put`](Self::put), or the key's
    /// request is never sent.
    pub(in crate::engine) fn step_unscheduled<R>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> (Option<R>, Option<Unscheduled>) {
        // Only a new caller has to go on to a new cell.
        self.try_step(cell, does).unwrap_or_default()
    }

    /// Gives the call back if the key has been forgotten.
    fn try_step<R, F>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        does: F,
    ) -> Result<(Option<R>, Option<Unscheduled>), F>
    where
        F: FnOnce(&mut Machine, &mut Env<'_>) -> R,
    {
        let (answer, mut out) = {
            let mut state = lock(&cell.state);
            if state.retired {
                return Err(does);
            }
            self.step_locked(&mut state, does)
        };
        let unscheduled = self.carry_out(cell, &mut out, None);
        if self.driver_gone.load(Ordering::Acquire) {
            // The driver has ended and will not see this step: end the key here.
            self.abort(cell);
        }
        Ok((answer, unscheduled))
    }

    /// Ends the lease of a key and refuses its callers. Nothing is sent any more.
    pub(in crate::engine) fn abort(self: &Arc<Self>, cell: &Arc<Cell>) {
        let mut out = {
            let mut state = lock(&cell.state);
            if state.retired {
                return;
            }
            self.step_locked(&mut state, Machine::abort).1
        };
        let unscheduled = self.carry_out(cell, &mut out, None);
        self.put(unscheduled);
    }

    /// Calls the machine, and updates the counters. A machine that panics is given up: its lease and its
    /// callers end, and the next acquire gets a new cell.
    fn step_locked<R>(
        &self,
        state: &mut State,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> (Option<R>, Out) {
        let mut random = Chance;
        let mut env = Env {
            now: self.clock.now(),
            wake_ups: self.wake_ups,
            listening: self.listening.load(Ordering::Relaxed),
            hand_over: self.hand_over,
            random: &mut random,
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| does(&mut state.machine, &mut env)));
        let (answer, mut broken) = if let Ok(answer) = stepped {
            (Some(answer), None)
        } else {
            let fresh = Machine::new(state.machine.key().clone());
            let mut broken = Box::new(mem::replace(&mut state.machine, fresh));
            state.retired = true;
            drop(catch_unwind(AssertUnwindSafe(|| broken.abort(&mut env))));
            (None, Some(broken))
        };
        self.count(state);
        let stepped = broken.as_deref_mut().unwrap_or(&mut state.machine);
        let mut out = Out {
            at: env.now,
            notes: stepped.poll_notes(),
            replies: stepped.poll_replies(),
            ready: stepped.poll_ready(),
            look_at: stepped.poll_timeout(),
            wants_wake_ups: stepped.wants_wake_ups(),
            idle: stepped.is_idle(),
            broken: None,
        };
        out.broken = broken;
        (answer, out)
    }

    /// Updates the counters that include the key.
    fn count(&self, state: &mut State) {
        let machine = &state.machine;
        let counts = [
            machine.has_release_pending(),
            machine.needs_grace(),
            machine.is_busy(),
        ];
        let counters = [
            &self.health.pending_releases,
            &self.counts.need_grace,
            &self.counts.busy,
        ];
        for ((counter, before), after) in counters.into_iter().zip(&mut state.counted).zip(counts) {
            match (mem::replace(before, after), after) {
                (false, true) => drop(counter.fetch_add(1, Ordering::AcqRel)),
                (true, false) => {
                    let last = counter.fetch_sub(1, Ordering::AcqRel) == 1;
                    if last && self.stopping.load(Ordering::Acquire) {
                        self.wake.notify_one();
                    }
                }
                _ => {}
            }
        }
    }

    /// Carries out what a machine wants done, except what is for the schedule. `resumption`: that of
    /// the batch whose answer was the last call.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        out: &mut Out,
        resumption: Option<&Arc<Resumption>>,
    ) -> Option<Unscheduled> {
        self.tell(cell, out, resumption);
        if self.immediate {
            self.carry_out_requests(cell, out);
        }
        if let Some(broken) = out.broken.take() {
            tracing::error!(key = %cell.key().typed(), "a bug in dblock: the lease of this key and its callers were given up");
            drop(broken);
            self.forget(cell);
            return None;
        }
        self.unscheduled(cell, out)
    }

    /// Reports to callers, the log and the driver.
    fn tell(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out, resumption: Option<&Arc<Resumption>>) {
        // Before the replies, so that a caller finds its own step in the log.
        let is_of_watchers = |note: &Note| matches!(note, Note::Lost(..) | Note::Revoked(..));
        let watchers_must_know = out.notes.iter().any(is_of_watchers);
        for note in mem::take(&mut out.notes) {
            self.report(out.at).note(note);
        }
        if watchers_must_know {
            cell.tell();
        }
        for reply in mem::take(&mut out.replies) {
            self.reply(cell, reply, out.at, resumption.map(Resuming::new));
        }
        if out.wants_wake_ups {
            self.wants_wake_ups.store(true, Ordering::Relaxed);
        }
    }

    fn reply(self: &Arc<Self>, cell: &Arc<Cell>, reply: Reply, at: Time, resuming: Option<Resuming>) {
        match reply {
            Reply::Granted(waiter, ownership) => {
                self.report(at).granted(waiter.since, &ownership);
                self.give(cell, waiter, Given::Lock(ownership), resuming);
            }
            Reply::Turn(waiter, turn) => self.give(cell, waiter, Given::Turn(turn), resuming),
            Reply::Refused(waiter, refusal) => {
                let error = self.report(at).refused(cell.key(), &waiter, refusal);
                let _ = waiter.to.send((Err(error), resuming));
            }
            Reply::Confirmed(to, answer) => drop(to.send((answer, resuming))),
        }
    }

    fn give(self: &Arc<Self>, cell: &Arc<Cell>, waiter: Waiter, given: Given, resuming: Option<Resuming>) {
        if let Err((Ok(given), _)) = waiter.to.send((Ok(given), resuming)) {
            self.give_back(cell, given);
        }
    }

    /// The caller that was to get this is gone.
    pub(in crate::engine) fn give_back(self: &Arc<Self>, cell: &Arc<Cell>, given: Given) {
        match given {
            Given::Lock(ownership) => self.drop_hold(cell, &ownership),
            Given::Turn(turn) => drop(self.step(cell, |machine, env| machine.end_turn(env, turn.number))),
        }
    }

    /// A hold ends before its body has returned, and nobody waits for that.
    pub(in crate::engine) fn drop_hold(self: &Arc<Self>, cell: &Arc<Cell>, ownership: &Arc<Ownership>) {
        let unscheduled = self.leave(cell, ownership, false, None);
        self.put(unscheduled);
    }

    /// Ends a hold. `returned`: the body returned before the local deadline. The caller must pass what it returns to
    /// [`put`](Self::put).
    pub(in crate::engine) fn leave(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ownership: &Arc<Ownership>,
        returned: bool,
        confirm: Option<Confirm>,
    ) -> Option<Unscheduled> {
        let unscheduled = self.step_ending(cell, ownership, |machine, env| {
            machine.leave(env, ownership, returned, confirm)
        });
        if ownership.deadline().is_none() {
            cell.tell_watchers(&ownership.watchers);
        }
        unscheduled
    }

    /// A caller enters beside others, if nothing else follows from it.
    pub(in crate::engine) fn join_quietly(
        self: &Arc<Self>,
        of_key: &Arc<Cell>,
        key: &Key,
        call: &Arc<Call>,
    ) -> Option<Arc<Ownership>> {
        let (ownership, now) = self.step_quietly(of_key, |machine, now| {
            Some((machine.join_quietly(now, key, call)?, now))
        })?;
        self.report(now).granted(now, &ownership);
        Some(ownership)
    }

    /// Ends a hold beside others, if nothing else follows from it.
    pub(in crate::engine) fn leave_quietly(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ownership: &Arc<Ownership>,
    ) -> bool {
        let left = self.step_quietly(cell, |machine, now| machine.leave_quietly(now, ownership).ok());
        if let Some(Some(held_for)) = left {
            self.left(ownership, held_for);
            cell.tell_watchers(&ownership.watchers);
        }
        left.is_some()
    }

    /// Calls the machine of a key where there is nothing to carry out afterwards. It touches little of the memory that
    /// other threads touch.
    fn step_quietly<R>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        does: impl FnOnce(&mut Machine, Time) -> Option<R>,
    ) -> Option<R> {
        let mut state = lock_in_peace(&cell.state);
        if state.retired {
            return None;
        }
        let now = self.clock.now();
        let stepped = catch_unwind(AssertUnwindSafe(|| does(&mut state.machine, now)));
        drop(state);
        let done = stepped.unwrap_or_else(|panic| {
            // As in any other step.
            self.step(cell, |_, _| resume_unwind(panic))
        });
        if self.driver_gone.load(Ordering::Acquire) {
            self.abort(cell);
        }
        done
    }

    /// A hold ends by `passes_on`, and its lease goes to a ticket, unless that is refused.
    pub(in crate::engine) fn transfer(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ownership: &Ownership,
        passes_on: impl FnOnce(&mut Machine, &mut Env<'_>) -> Result<Option<Duration>, NotClosed>,
    ) -> Result<(), NotClosed> {
        let left = self.step(cell, passes_on);
        // A key that has been forgotten has no lease any more.
        let held_for = left.unwrap_or(Err(NotClosed::Over(LostReason::Released)))?;
        if let Some(held_for) = held_for {
            self.left(ownership, held_for);
        }
        cell.tell_watchers(&ownership.watchers);
        Ok(())
    }

    /// Nobody has the ticket with the lease `to`.
    pub(in crate::engine) fn give_up_ticket(self: &Arc<Self>, key: &Key, to: Uuid, ttl: Duration) {
        let (_, _, unscheduled) = self.step_new(key, |machine, env| machine.give_up_ticket(env, to, ttl));
        self.put(unscheduled);
    }

    /// The transaction that kept the key is over, and the key is free.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(in crate::engine) fn transaction_over(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ownership: &Arc<Ownership>,
    ) {
        let unscheduled = self.step_ending(cell, ownership, |machine, env| {
            machine.handle_transaction_over(env, ownership)
        });
        self.put(unscheduled);
        cell.tell_watchers(&ownership.watchers);
    }

    /// The owner has left, after this time.
    fn left(&self, ownership: &Ownership, held_for: Duration) {
        self.meter.site(ownership.call.options.function).left(held_for);
    }

    fn step_ending(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        ownership: &Ownership,
        ends: impl FnOnce(&mut Machine, &mut Env<'_>) -> Option<Duration>,
    ) -> Option<Unscheduled> {
        let (held_for, unscheduled) = self.step_unscheduled(cell, ends);
        if let Some(held_for) = held_for.flatten() {
            self.left(ownership, held_for);
        }
        unscheduled
    }

    /// Sends the key's requests, where the store answers at once. `out` becomes that of the last call.
    fn carry_out_requests(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out) {
        while out.broken.is_none() && out.ready.take().is_some() {
            let transmit;
            (transmit, *out) = self.step_now(cell, |machine, env| machine.poll_transmit(env, ANY));
            self.tell(cell, out, None);
            let Some(Transmit { request, .. }) = transmit.flatten() else {
                continue;
            };
            let answers = catch_unwind(AssertUnwindSafe(|| {
                self.store.apply(std::slice::from_ref(&request)).now_or_never()
            }));
            let interrupted = |message| Err(StoreError::new(StoreErrorKind::Interrupted, message));
            let answer = match answers {
                Ok(Some(mut answers)) if answers.len() == 1 => answers.remove(0),
                Ok(_) => interrupted("the store said that it gives one answer at once, and did not"),
                Err(_) => interrupted("the store panicked"),
            };
            self.health.note(std::slice::from_ref(&answer));
            self.meter.answers(std::slice::from_ref(&answer));
            (_, *out) = self.step_now(cell, |machine, env| machine.handle_answer(env, answer));
            self.tell(cell, out, None);
        }
    }

    fn step_now<R>(
        &self,
        cell: &Cell,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> (Option<R>, Out) {
        self.step_locked(&mut lock(&cell.state), does)
    }

    /// The request of the key, if it has one of these kinds. From here on it is on its way.
    pub(in crate::engine) fn transmit(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        kinds: &'static [Kind],
    ) -> Option<Transmit> {
        let (transmit, mut out) = self.step_now(cell, |machine, env| machine.poll_transmit(env, kinds));
        let unscheduled = self.carry_out(cell, &mut out, None);
        self.put(unscheduled);
        transmit.flatten()
    }

    /// Gives the machine the answer to its request.
    pub(in crate::engine) fn answer(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        answer: Result<Outcome, StoreError>,
        most_together: usize,
        resumption: &Arc<Resumption>,
    ) {
        cell.most_together.store(most_together, Ordering::Relaxed);
        let (_, mut out) = self.step_now(cell, |machine, env| machine.handle_answer(env, answer));
        let unscheduled = self.carry_out(cell, &mut out, Some(resumption));
        self.put(unscheduled);
    }
}

/// What a machine wants done after a call of it, outside of all locks.
pub(super) struct Out {
    /// When it was called.
    at: Time,
    notes: Vec<Note>,
    replies: Vec<Reply>,
    pub(super) ready: Option<Kind>,
    pub(super) look_at: Option<Time>,
    wants_wake_ups: bool,
    pub(super) idle: bool,
    /// The machine panicked. It is dropped then.
    broken: Option<Box<Machine>>,
}

struct Chance;

impl Random for Chance {
    fn lease_id(&mut self) -> Uuid {
        Uuid::now_v7()
    }

    fn fraction(&mut self) -> f64 {
        fastrand::f64()
    }
}
