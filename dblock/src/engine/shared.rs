//! The state that callers and the driver share: the keys' machines, and the schedule of requests and looks.
//!
//! Lock order: a key's machine, then the schedule; never two machines. Only the core is called under a lock. The
//! results of a step are carried out after the machine's mutex is unlocked.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::cells::{Cell, Cells, State, lock};
use super::clock::Clock;
use super::core::dispatch::Dispatch;
use super::core::env::{Env, Random};
use super::core::key::{Event, Machine};
use super::core::out::{Kind, Out};
use super::core::time::Time;
use super::handle::{Alive, Ticket};
use super::report;
use super::resumption::{Resuming, Resumption};
use super::schedule::Schedule;
use super::sync::{AtomicBool, Mutex, MutexGuard, Notify};
use crate::health::HealthBoard;
use crate::key::Key;
use crate::meter::Meter;
use crate::store::{FenceSource, Outcome, Request, Store, StoreError, StoreErrorKind};

/// Every kind of request.
const ANY: &[Kind] = &[Kind::Extend, Kind::Release, Kind::Acquire];

/// The state that callers and the driver of one engine share.
pub(crate) struct Shared {
    pub(super) id: u64,
    pub(super) clock: Clock,
    pub(super) store: Arc<dyn Store>,
    /// By part of the store.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    pub(super) fence_sources: Vec<Option<FenceSource>>,
    pub(super) health: Arc<HealthBoard>,
    pub(super) meter: Meter,
    /// Alive while there is a handle.
    pub(super) alive: Weak<Alive>,
    /// Wakes the driver.
    pub(super) wake: Notify,
    /// No new outermost lock is granted.
    pub(super) stopping: AtomicBool,
    /// Wakes those who wait for `stopping`.
    pub(super) stops: Notify,
    /// The engine has ended or is about to: nothing is granted.
    pub(super) stopped: AtomicBool,
    /// The driver is gone. Steps that come later end their machine themselves.
    pub(super) ended: AtomicBool,
    pub(super) listening: AtomicBool,
    /// A caller waits for a key that another process holds.
    pub(super) wants_wake_ups: AtomicBool,
    pub(super) counts: Counts,
    hand_over: bool,
    wake_ups: bool,
    /// The store answers at once: the thread that steps a machine also carries out its requests.
    immediate: bool,
    pub(super) cells: Cells,
    schedule: Mutex<Schedule>,
}

/// How many keys are in these states.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) need_grace: AtomicUsize,
    pub(super) busy: AtomicUsize,
}

/// The result of a step for its caller.
#[derive(Default)]
pub(super) struct Stepped {
    /// The caller's number, for an acquire.
    pub(super) waiter: u64,
    /// Whether the hold was added, for a re-entry.
    pub(super) entered: bool,
    /// How long the owner held the lock that has just left it.
    pub(super) left: Option<Duration>,
    pub(super) planned: Option<Planned>,
}

/// The part of a step's output that is for the schedule. That of several keys is put there at once, so that their
/// requests go together.
pub(super) struct Planned {
    cell: Arc<Cell>,
    /// The kind of request that there is to send, and the part of the store that it is for.
    ready: Option<(usize, Kind)>,
    look_at: Option<Time>,
}

/// The builder's settings for its engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Whether a lock may be handed over locally.
    pub(crate) hand_over: bool,
    /// Minimum idle time before a row is purged in the background; `None` for never.
    pub(crate) purge_after: Option<Duration>,
}

impl Shared {
    pub(super) fn new(
        id: u64,
        store: Arc<dyn Store>,
        settings: Settings,
        health: Arc<HealthBoard>,
        alive: Weak<Alive>,
    ) -> Self {
        let can = store.capabilities();
        Self {
            id,
            clock: Clock::start(can.callers_runtime),
            fence_sources: (0..can.parts).map(|part| store.fence_source(part)).collect(),
            health,
            meter: Meter::new(can.name),
            alive,
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
            stops: Notify::new(),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            wants_wake_ups: AtomicBool::new(false),
            counts: Counts::default(),
            hand_over: settings.hand_over,
            wake_ups: can.wake_ups,
            immediate: can.immediate,
            cells: Cells::new(),
            schedule: Mutex::new(Schedule::new(Dispatch::new(can.parts, can.concurrency))),
            store,
        }
    }

    /// From now on no new outermost lock is granted.
    pub(super) fn stop_granting(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stops.notify_waiters();
    }

    // ── Keys ─────────────────────────────────────────────────────────────────────────────────────────

    /// The lease of a key that a transaction keeps although its owner has left.
    #[cfg(feature = "sql")]
    pub(super) fn left_in_transaction(&self, key: &Key) -> Option<(uuid::Uuid, i64)> {
        let cell = self.cells.find(key)?;
        let state = lock(&cell.state);
        state.machine.left_in_transaction()
    }

    /// Steps every key with an event.
    pub(super) fn each(self: &Arc<Self>, event: impl Fn() -> Event<Ticket>) {
        self.cells.each(|cell| drop(self.step(cell, event())));
    }

    /// Forgets a key of which nothing needs to be known.
    fn retire(&self, cell: &Arc<Cell>) {
        {
            let mut state = lock(&cell.state);
            if state.retired || !state.machine.is_idle() {
                return;
            }
            state.retired = true;
        }
        self.forget(cell);
    }

    /// Takes a retired cell out of its map and of the schedule.
    fn forget(&self, cell: &Arc<Cell>) {
        self.cells.remove(cell);
        if cell.look_at.load(Ordering::Acquire) != 0 {
            self.schedule().look_never(cell);
        }
    }

    // ── Steps ────────────────────────────────────────────────────────────────────────────────────────

    /// Steps the key's machine with an acquire, as [`step_unplanned`](Self::step_unplanned). Returns the cell too.
    pub(super) fn acquire(self: &Arc<Self>, key: &Key, mut event: Event<Ticket>) -> (Arc<Cell>, Stepped) {
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
    pub(super) fn step(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Stepped {
        let mut stepped = self.step_unplanned(cell, event);
        self.put(stepped.planned.take());
        stepped
    }

    /// As [`step`](Self::step), but the caller has to [`put`](Self::put) what the step wants from the schedule.
    pub(super) fn step_unplanned(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Stepped {
        // On a retired cell the event is dropped: only an acquire has to be repeated on a new cell.
        self.try_step(cell, event).unwrap_or_default()
    }

    fn try_step(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Result<Stepped, Event<Ticket>> {
        let ends = matches!(event, Event::End);
        let mut out = {
            let mut state = lock(&cell.state);
            if state.retired {
                return Err(event);
            }
            self.step_locked(&mut state, event)
        };
        let (waiter, entered, left) = (out.waiter, out.entered, out.left);
        let planned = self.carry_out(cell, &mut out, None);
        if self.ended.load(Ordering::Acquire) && !ends {
            // The driver's last event came before this step.
            self.step(cell, Event::End);
        }
        Ok(Stepped {
            waiter,
            entered,
            left,
            planned,
        })
    }

    /// Steps the machine, and updates the counters. A machine that panics is given up: its lease and its callers end,
    /// and the next acquire gets a new cell.
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
            let ended = catch_unwind(AssertUnwindSafe(|| broken.step(&mut env, Event::End)));
            Out {
                broken: Some(broken),
                ..ended.unwrap_or_default()
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

    /// Carries out what a step wants done, but for what it wants from the schedule. `resumption`: that of the batch whose
    /// answer was the event.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        out: &mut Out<Ticket>,
        resumption: Option<&Arc<Resumption>>,
    ) -> Option<Planned> {
        self.tell(cell, out, resumption);
        if self.immediate {
            self.carry_out_requests(cell, out);
        }
        if let Some(broken) = out.broken.take() {
            tracing::error!(key = %cell.key(), "a bug in dblock: the lease of this key and its callers were given up");
            drop(broken);
            self.forget(cell);
            return None;
        }
        self.plan(cell, out)
    }

    /// Reports the output of a step to callers, the log and the driver.
    fn tell(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out<Ticket>, resumption: Option<&Arc<Resumption>>) {
        // Before the replies, so that a caller finds its own step in the log.
        for note in out.notes.drain(..) {
            report::note(self, note);
        }
        for ownership in out.changed.drain(..) {
            ownership.tell();
        }
        for reply in out.replies.drain(..) {
            report::reply(self, cell, reply, resumption.map(Resuming::new));
        }
        if out.wants_wake_ups {
            self.wants_wake_ups.store(true, Ordering::Relaxed);
        }
    }

    /// The part of the output that is for the schedule: to send for the key, or to look at it sooner.
    fn plan(&self, cell: &Arc<Cell>, out: &Out<Ticket>) -> Option<Planned> {
        if out.idle {
            self.retire(cell);
            return None;
        }
        let registered = cell.look_at.load(Ordering::Acquire);
        let sooner = out
            .look_at
            .filter(|at| registered == 0 || at.as_nanos() < registered);
        (out.ready.is_some() || sooner.is_some()).then(|| Planned {
            cell: Arc::clone(cell),
            ready: out.ready.map(|kind| (self.store.part_of(cell.key()), kind)),
            look_at: sooner,
        })
    }

    /// Puts keys into the schedule, and wakes the driver once.
    pub(super) fn put(&self, planned: impl IntoIterator<Item = Planned>) {
        let mut planned = planned.into_iter().peekable();
        if planned.peek().is_none() {
            return;
        }
        let mut wake = false;
        let mut schedule = self.schedule();
        for Planned { cell, ready, look_at } in planned {
            if let Some(at) = look_at {
                wake |= schedule.look(&cell, at);
            }
            if let Some((part, kind)) = ready {
                let most_together = cell.most_together.load(Ordering::Relaxed);
                schedule.dispatch.ready(cell, part, kind, most_together);
                wake = true;
            }
        }
        drop(schedule);
        if wake {
            self.wake.notify_one();
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

    /// The request of the key, if it has one of these kinds, and the time limit of the store for it. From here on it
    /// is on its way.
    pub(super) fn request(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        kinds: &'static [Kind],
    ) -> Option<(Request, Option<Duration>)> {
        let mut out = self.step_now(cell, Event::Send(kinds));
        let request = out.request.take().map(|request| (request, out.time_limit));
        let planned = self.carry_out(cell, &mut out, None);
        self.put(planned);
        request
    }

    /// Steps the machine with the answer to its request.
    pub(super) fn answer(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        answer: Result<Outcome, StoreError>,
        most_together: usize,
        resumption: &Arc<Resumption>,
    ) {
        cell.most_together.store(most_together, Ordering::Relaxed);
        let mut out = self.step_now(cell, Event::Answer(answer));
        let planned = self.carry_out(cell, &mut out, Some(resumption));
        self.put(planned);
    }

    // ── The schedule ─────────────────────────────────────────────────────────────────────────────────

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Steps the machines that are due.
    pub(super) fn look_at_due(self: &Arc<Self>) {
        let now = self.clock.now();
        loop {
            let due = self.schedule().pop_due(now);
            let Some(cell) = due else { return };
            self.step(&cell, Event::Time);
        }
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

#[cfg(loom)]
#[cfg(test)]
mod loom_tests;
