//! The state that callers and the driver share: the keys' machines, and the schedule of requests and looks.
//!
//! Lock order: a key's machine, then the schedule; never two machines. Only the core is called under a lock.
//! The results of a step are carried out after the machine's mutex is unlocked.

mod steps;

use std::collections::BTreeMap;
use std::sync::Arc;
#[cfg(feature = "sql")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dblock_core::machine::dispatch::Dispatch;
use dblock_core::machine::env::{Env, Time};

use self::steps::Out;
use super::cells::{Cell, Cells, Machine, lock};
use super::clock::Clock;
use super::report::Reporter;
use super::sync::{AtomicBool, Mutex, MutexGuard, Notify};
use super::watch::Ticker;
use crate::health::HealthBoard;
use crate::meter::Meter;
#[cfg(feature = "sql")]
use crate::store::fence::FenceSource;
use crate::store::{Kind, Store};

/// The state that callers and the driver of one engine share. See [`Cell`] for its place in memory.
#[repr(align(128))]
pub(crate) struct Shared {
    pub(super) id: u64,
    pub(super) clock: Clock,
    pub(super) store: Arc<dyn Store>,
    /// By part of the store, each from when it is first asked for.
    #[cfg(feature = "sql")]
    pub(super) fence_sources: Vec<OnceLock<FenceSource>>,
    pub(super) health: Arc<HealthBoard>,
    pub(super) meter: Meter,
    /// Wakes the driver.
    pub(super) wake: Arc<Notify>,
    /// No new outermost lock is granted.
    pub(super) stopping: AtomicBool,
    /// Wakes those who wait for `stopping`.
    pub(super) stops: Notify,
    /// The engine has ended or is about to: nothing is granted.
    pub(super) stopped: AtomicBool,
    /// The driver is gone. Steps that come later abort their machine themselves.
    pub(super) driver_gone: AtomicBool,
    pub(super) listening: AtomicBool,
    pub(super) ticker: Ticker,
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

/// The part of a step's output that is for the schedule. That of several keys is put there at once, so that
/// their requests go together.
pub(super) struct Unscheduled {
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
    pub(super) fn new(id: u64, store: Arc<dyn Store>, settings: Settings, health: Arc<HealthBoard>) -> Self {
        let can = store.capabilities();
        Self {
            id,
            clock: Clock::start(can.callers_runtime),
            #[cfg(feature = "sql")]
            fence_sources: (0..can.parts).map(|_| OnceLock::new()).collect(),
            health,
            meter: Meter::new(can.name),
            wake: Arc::new(Notify::new()),
            stopping: AtomicBool::new(false),
            stops: Notify::new(),
            stopped: AtomicBool::new(false),
            driver_gone: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            ticker: Ticker::default(),
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

    /// Reports what is so at `now`.
    pub(super) fn report(&self, now: Time) -> Reporter<'_> {
        Reporter {
            now,
            health: &self.health,
            meter: &self.meter,
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
    pub(super) fn left_in_transaction(&self, key: &crate::Key) -> Option<dblock_core::machine::key::Left> {
        let cell = self.cells.find(key)?;
        let state = lock(&cell.state);
        state.machine.left_in_transaction()
    }

    /// Steps the machine of every key.
    pub(super) fn each(self: &Arc<Self>, does: fn(&mut Machine, &mut Env<'_>)) {
        self.cells.each(|cell| {
            self.step(cell, does);
        });
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

    // ── The schedule ─────────────────────────────────────────────────────────────────────────────────

    /// The part of the output that is for the schedule: to send for the key, or to look at it sooner.
    fn unscheduled(&self, cell: &Arc<Cell>, out: &Out) -> Option<Unscheduled> {
        if out.idle {
            self.retire(cell);
            return None;
        }
        let registered = cell.look_at.load(Ordering::Acquire);
        let sooner = out
            .look_at
            .filter(|at| registered == 0 || at.as_nanos() < registered);
        (out.ready.is_some() || sooner.is_some()).then(|| Unscheduled {
            cell: Arc::clone(cell),
            ready: out.ready.map(|kind| (self.store.part_of(cell.key()), kind)),
            look_at: sooner,
        })
    }

    /// Puts keys into the schedule, and wakes the driver once.
    pub(super) fn put(&self, unscheduled: impl IntoIterator<Item = Unscheduled>) {
        let mut unscheduled = unscheduled.into_iter().peekable();
        if unscheduled.peek().is_none() {
            return;
        }
        let mut wake = false;
        let mut schedule = self.schedule();
        for Unscheduled { cell, ready, look_at } in unscheduled {
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

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Steps the machines that are due.
    pub(super) fn look_at_due(self: &Arc<Self>) {
        let now = self.clock.now();
        loop {
            let due = self.schedule().pop_due(now);
            let Some(cell) = due else { return };
            self.step(&cell, Machine::handle_timeout);
        }
    }
}

/// The keys that have something to send, and the times at which the driver looks at a key again.
pub(super) struct Schedule {
    pub(super) dispatch: Dispatch<Arc<Cell>>,
    looks: BTreeMap<(Time, u64), Arc<Cell>>,
    /// The driver's next planned wake-up. It moves earlier when something sooner is scheduled.
    next_look: Option<Time>,
}

impl Schedule {
    fn new(dispatch: Dispatch<Arc<Cell>>) -> Self {
        Self {
            dispatch,
            looks: BTreeMap::new(),
            next_look: None,
        }
    }

    /// Schedules a look at the key at `at`, unless one is due sooner. Returns whether the driver must be
    /// woken.
    fn look(&mut self, cell: &Arc<Cell>, at: Time) -> bool {
        let registered = cell.look_at.load(Ordering::Acquire);
        if registered != 0 && registered <= at.as_nanos() {
            // A later step has already scheduled a sooner look.
            return false;
        }
        self.look_never(cell);
        cell.look_at.store(at.as_nanos().max(1), Ordering::Release);
        self.looks.insert((at, cell.id), Arc::clone(cell));
        let sooner = self.next_look.is_none_or(|next_look| at < next_look);
        if sooner {
            self.next_look = Some(at);
        }
        sooner
    }

    fn look_never(&mut self, cell: &Arc<Cell>) {
        let registered = cell.look_at.swap(0, Ordering::AcqRel);
        if registered != 0 {
            self.looks.remove(&(Time::from_nanos(registered), cell.id));
        }
    }

    fn pop_due(&mut self, now: Time) -> Option<Arc<Cell>> {
        let first = self.looks.first_entry().filter(|first| first.key().0 <= now)?;
        let cell = first.remove();
        cell.look_at.store(0, Ordering::Release);
        Some(cell)
    }

    /// When the driver has to look again by itself.
    pub(super) fn next_look(&mut self) -> Option<Time> {
        let look = self.looks.first_key_value().map(|((at, _), _)| *at);
        self.next_look = look.into_iter().chain(self.dispatch.coalesces_until()).min();
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Key;
    use crate::engine::cells::Cells;

    /// Two steps of one key may reach the schedule in the other order.
    #[test]
    fn a_later_look_does_not_take_the_place_of_a_sooner_one() {
        let cell = Cells::new().find_or_make(&Key::new(None, "key").unwrap());
        let mut schedule = Schedule::new(Dispatch::new(1, 1));
        let at = |ms| Time::from_nanos(0) + Duration::from_millis(ms);
        assert!(schedule.look(&cell, at(100)));
        assert!(!schedule.look(&cell, at(10_000)));
        assert_eq!(schedule.next_look(), Some(at(100)));
        assert!(schedule.look(&cell, at(50)));
        assert_eq!(schedule.next_look(), Some(at(50)));
        assert_eq!(schedule.looks.len(), 1);
    }
}

#[cfg(all(test, dblock_loom))]
mod loom_tests;
