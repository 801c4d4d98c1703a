//! Steps of the keys' machines, and carrying out what a step wants done.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::{Shared, Stepped, Unscheduled};
use crate::engine::cells::{Cell, State, lock};
use crate::engine::core::env::{Env, Random};
use crate::engine::core::key::{Event, Machine};
use crate::engine::core::out::{Kind, Note, Out};
use crate::engine::handle::Ticket;
use crate::engine::report;
use crate::engine::resumption::{Resuming, Resumption};
use crate::key::Key;
use crate::store::{Outcome, Request, StoreError, StoreErrorKind};

/// Every kind of request.
const ANY: &[Kind] = &[Kind::Extend, Kind::Release, Kind::Acquire];

impl Shared {
    /// Steps the key's machine with an acquire, as [`step_unscheduled`](Self::step_unscheduled). Returns the
    /// cell too.
    pub(in crate::engine) fn acquire(
        self: &Arc<Self>,
        key: &Key,
        mut event: Event<Ticket>,
    ) -> (Arc<Cell>, Stepped) {
        loop {
            let cell = self.cells.find_or_make(key);
            match self.try_step(&cell, event) {
                Ok(stepped) => return (cell, stepped),
                Err(again) => event = again,
            }
            self.forget(&cell);
        }
    }

    /// Steps a machine with an event, and carries out what the step wants done.
    pub(in crate::engine) fn step(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Stepped {
        let mut stepped = self.step_unscheduled(cell, event);
        self.put(stepped.unscheduled.take());
        stepped
    }

    /// As [`step`](Self::step), but the caller has to [`put`](Self::put) what the step wants from the
    /// schedule.
    pub(in crate::engine) fn step_unscheduled(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        event: Event<Ticket>,
    ) -> Stepped {
        // On a retired cell the event is dropped: only an acquire has to be repeated on a new cell.
        self.try_step(cell, event).unwrap_or_default()
    }

    fn try_step(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Result<Stepped, Event<Ticket>> {
        let aborts = matches!(event, Event::Abort);
        let mut out = {
            let mut state = lock(&cell.state);
            if state.retired {
                return Err(event);
            }
            self.step_locked(&mut state, event)
        };
        let (waiter, entered, held_for) = (out.waiter, out.entered, out.held_for);
        let unscheduled = self.carry_out(cell, &mut out, None);
        if self.driver_gone.load(Ordering::Acquire) && !aborts {
            // The driver's last event came before this step.
            self.step(cell, Event::Abort);
        }
        Ok(Stepped {
            waiter,
            entered,
            held_for,
            unscheduled,
        })
    }

    /// Steps the machine, and updates the counters. A machine that panics is given up: its lease and its
    /// callers end, and the next acquire gets a new cell.
    fn step_locked(&self, state: &mut State, event: Event<Ticket>) -> Out<Ticket> {
        let mut random = Chance;
        let mut env = Env {
            now: self.clock.now(),
            wake_ups: self.wake_ups,
            listening: self.listening.load(Ordering::Relaxed),
            hand_over: self.hand_over,
            random: &mut random,
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| state.machine.step(&mut env, event)));
        let out = stepped.unwrap_or_else(|_| {
            let fresh = Machine::new(state.machine.key().clone());
            let mut broken = Box::new(mem::replace(&mut state.machine, fresh));
            state.retired = true;
            let aborted = catch_unwind(AssertUnwindSafe(|| broken.step(&mut env, Event::Abort)));
            Out {
                broken: Some(broken),
                ..aborted.unwrap_or_default()
            }
        });
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
        out
    }

    /// Carries out what a step wants done, but for what it wants from the schedule. `resumption`: that of the
    /// batch whose answer was the event.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        out: &mut Out<Ticket>,
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

    /// Reports the output of a step to callers, the log and the driver.
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

    /// Sends the key's requests, where the store answers at once. `out` becomes the output of the last step.
    fn carry_out_requests(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out<Ticket>) {
        while out.ready.take().is_some() {
            *out = self.step_now(cell, Event::Send(ANY));
            self.tell(cell, out, None);
            let Some(request) = out.request.take() else {
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
            *out = self.step_now(cell, Event::Answer(answer));
            self.tell(cell, out, None);
        }
    }

    fn step_now(&self, cell: &Cell, event: Event<Ticket>) -> Out<Ticket> {
        self.step_locked(&mut lock(&cell.state), event)
    }

    /// The request of the key, if it has one of these kinds, and the time limit of the store for it. From
    /// here on it is on its way.
    pub(in crate::engine) fn request(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        kinds: &'static [Kind],
    ) -> Option<(Request, Option<Duration>)> {
        let mut out = self.step_now(cell, Event::Send(kinds));
        let request = out.request.take().map(|request| (request, out.time_limit));
        let unscheduled = self.carry_out(cell, &mut out, None);
        self.put(unscheduled);
        request
    }

    /// Steps the machine with the answer to its request.
    pub(in crate::engine) fn answer(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        answer: Result<Outcome, StoreError>,
        most_together: usize,
        resumption: &Arc<Resumption>,
    ) {
        cell.most_together.store(most_together, Ordering::Relaxed);
        let mut out = self.step_now(cell, Event::Answer(answer));
        let unscheduled = self.carry_out(cell, &mut out, Some(resumption));
        self.put(unscheduled);
    }
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
