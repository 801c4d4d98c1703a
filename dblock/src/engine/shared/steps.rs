//! Calls of the keys' machines, and carrying out what they want done then.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::{Shared, Unscheduled};
use crate::engine::cells::{Cell, State, lock};
use crate::engine::core::env::{Env, Random};
use crate::engine::core::key::Machine;
use crate::engine::core::out::{Kind, Note, Out, Transmit};
use crate::engine::handle::Ticket;
use crate::engine::report;
use crate::engine::resumption::{Resuming, Resumption};
use crate::key::Key;
use crate::store::{Outcome, StoreError, StoreErrorKind};

/// Every kind of request.
const ANY: &[Kind] = &[Kind::Extend, Kind::Release, Kind::Acquire];

impl Shared {
    /// As [`step_unscheduled`](Self::step_unscheduled), for a call that comes to a key of which nothing need be
    /// known. Returns the cell too.
    pub(in crate::engine) fn step_new<R>(
        self: &Arc<Self>,
        key: &Key,
        mut does: impl FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
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
        does: impl FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let (answer, unscheduled) = self.step_unscheduled(cell, does);
        self.put(unscheduled);
        answer
    }

    /// As [`step`](Self::step), but the caller has to [`put`](Self::put) what the machine wants from the
    /// schedule.
    pub(in crate::engine) fn step_unscheduled<R>(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        does: impl FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
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
        F: FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
    {
        let (answer, mut wants) = {
            let mut state = lock(&cell.state);
            if state.retired {
                return Err(does);
            }
            self.step_locked(&mut state, does)
        };
        let unscheduled = self.carry_out(cell, &mut wants, None);
        if self.driver_gone.load(Ordering::Acquire) {
            // The driver's last call came before this one.
            self.abort(cell);
        }
        Ok((answer, unscheduled))
    }

    /// Ends the lease of a key and refuses its callers. Nothing is sent any more.
    pub(in crate::engine) fn abort(self: &Arc<Self>, cell: &Arc<Cell>) {
        let mut wants = {
            let mut state = lock(&cell.state);
            if state.retired {
                return;
            }
            self.step_locked(&mut state, Machine::abort).1
        };
        let unscheduled = self.carry_out(cell, &mut wants, None);
        self.put(unscheduled);
    }

    /// Calls the machine, and updates the counters. A machine that panics is given up: its lease and its
    /// callers end, and the next acquire gets a new cell.
    fn step_locked<R>(
        &self,
        state: &mut State,
        does: impl FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
    ) -> (Option<R>, Wants) {
        let mut random = Chance;
        let mut env = Env {
            now: self.clock.now(),
            wake_ups: self.wake_ups,
            listening: self.listening.load(Ordering::Relaxed),
            hand_over: self.hand_over,
            random: &mut random,
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| does(&mut state.machine, &mut env)));
        let (answer, broken) = if let Ok(answer) = stepped {
            (Some(answer), None)
        } else {
            let fresh = Machine::new(state.machine.key().clone());
            let mut broken = Box::new(mem::replace(&mut state.machine, fresh));
            state.retired = true;
            drop(catch_unwind(AssertUnwindSafe(|| broken.abort(&mut env))));
            (None, Some(broken))
        };
        self.count(state);
        let mut wants = Wants {
            out: Out::default(),
            broken,
        };
        wants.out = match &mut wants.broken {
            Some(broken) => broken.take_out(),
            None => state.machine.take_out(),
        };
        (answer, wants)
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

    /// Carries out what a machine wants done, but for what it wants from the schedule. `resumption`: that of
    /// the batch whose answer was the last call.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        wants: &mut Wants,
        resumption: Option<&Arc<Resumption>>,
    ) -> Option<Unscheduled> {
        self.tell(cell, &mut wants.out, resumption);
        if self.immediate {
            self.carry_out_requests(cell, wants);
        }
        if let Some(broken) = wants.broken.take() {
            tracing::error!(key = %cell.key().typed(), "a bug in dblock: the lease of this key and its callers were given up");
            drop(broken);
            self.forget(cell);
            return None;
        }
        self.unscheduled(cell, &wants.out)
    }

    /// Reports to callers, the log and the driver.
    fn tell(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out<Ticket>, resumption: Option<&Arc<Resumption>>) {
        // Before the replies, so that a caller finds its own step in the log.
        let is_of_watchers = |note: &Note| matches!(note, Note::Lost(..) | Note::Revoked(..));
        let watchers_must_know = out.notes.iter().any(is_of_watchers);
        for note in out.notes.drain(..) {
            report::note(self, note);
        }
        if watchers_must_know {
            cell.tell();
        }
        for reply in out.replies.drain(..) {
            report::reply(self, cell, reply, resumption.map(Resuming::new));
        }
        if out.wants_wake_ups {
            self.wants_wake_ups.store(true, Ordering::Relaxed);
        }
    }

    /// Sends the key's requests, where the store answers at once. `wants` becomes that of the last call.
    fn carry_out_requests(self: &Arc<Self>, cell: &Arc<Cell>, wants: &mut Wants) {
        while wants.out.ready.take().is_some() {
            let transmit;
            (transmit, *wants) = self.step_now(cell, |machine, env| machine.poll_transmit(env, ANY));
            self.tell(cell, &mut wants.out, None);
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
            (_, *wants) = self.step_now(cell, |machine, env| machine.handle_answer(env, answer));
            self.tell(cell, &mut wants.out, None);
        }
    }

    fn step_now<R>(
        &self,
        cell: &Cell,
        does: impl FnOnce(&mut Machine<Ticket>, &mut Env<'_>) -> R,
    ) -> (Option<R>, Wants) {
        self.step_locked(&mut lock(&cell.state), does)
    }

    /// The request of the key, if it has one of these kinds. From here on it is on its way.
    pub(in crate::engine) fn transmit(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        kinds: &'static [Kind],
    ) -> Option<Transmit> {
        let (transmit, mut wants) = self.step_now(cell, |machine, env| machine.poll_transmit(env, kinds));
        let unscheduled = self.carry_out(cell, &mut wants, None);
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
        let (_, mut wants) = self.step_now(cell, |machine, env| machine.handle_answer(env, answer));
        let unscheduled = self.carry_out(cell, &mut wants, Some(resumption));
        self.put(unscheduled);
    }
}

/// What is to be done after a call of a machine, outside of all locks.
struct Wants {
    out: Out<Ticket>,
    /// The machine panicked. It is dropped then.
    broken: Option<Box<Machine<Ticket>>>,
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
