//! What callers and the driver share: the keys' machines, and what is ready to be sent or due to be looked at.
//!
//! Lock order: a key's machine, then the schedule; never two machines. Nothing is called under a lock but the core:
//! what a step wants done is carried out after the machine's mutex is let go.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use uuid::Uuid;

use super::clock::Clock;
use super::core::dispatch::{Dispatch, MAX_BATCH};
use super::core::env::{Env, Random};
use super::core::key::{Event, Machine};
use super::core::out::{Kind, Out};
use super::core::ownership::Ownership;
use super::core::time::Time;
use super::handle::{Alive, Ticket};
use super::report;
use super::resumption::{Resuming, Resumption};
use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Notify};
use crate::health::HealthBoard;
use crate::key::Key;
use crate::store::{FenceSource, Outcome, Request, Store, StoreError, StoreErrorKind};

/// Keys are found in one of so many maps, so that none of them is locked for long.
const SHARDS: usize = if cfg!(all(test, loom)) { 1 } else { 64 };

/// Everything that may be sent.
const ANY: &[Kind] = &[Kind::Extend, Kind::Release, Kind::Acquire];

/// What callers and the driver of one engine share.
pub(crate) struct Shared {
    pub(super) id: u64,
    pub(super) clock: Clock,
    pub(super) store: Arc<dyn Store>,
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    pub(super) fence_source: Option<FenceSource>,
    pub(super) health: Arc<HealthBoard>,
    /// Alive while there is a handle.
    pub(super) alive: Weak<Alive>,
    /// Wakes the driver.
    pub(super) wake: Notify,
    /// No outermost lock is given any more.
    pub(super) stopping: AtomicBool,
    /// The engine has ended, or is about to: nobody gets a lock.
    pub(super) stopped: AtomicBool,
    /// The driver is gone: nobody else answers what a step leaves open.
    pub(super) ended: AtomicBool,
    pub(super) listening: AtomicBool,
    /// A caller waits for a key of another process.
    pub(super) wants_wake_ups: AtomicBool,
    pub(super) counts: Counts,
    hand_over: bool,
    wake_ups: bool,
    /// The store answers at once: requests are carried out where they arise.
    immediate: bool,
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<Key, Arc<Cell>>>>,
    schedule: Mutex<Schedule>,
    last_cell: AtomicU64,
}

/// How many keys are in these states.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) need_grace: AtomicUsize,
    pub(super) busy: AtomicUsize,
}

/// One key.
pub(crate) struct Cell {
    key: Key,
    id: u64,
    state: Mutex<State>,
    /// How large a batch it may go in. After one that hung, batches are smaller and smaller until there is an
    /// answer, so that a request that hangs the store does not take others along again and again.
    most_together: AtomicUsize,
    /// When it is looked at, in the schedule; 0 for never. Written under the schedule's mutex only.
    look_at: AtomicU64,
}

impl Cell {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// How many holds `ownership` has: none once it has ended.
    pub(super) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        lock(&self.state).machine.holds(ownership)
    }
}

struct State {
    machine: Machine<Ticket>,
    /// It is no longer in its map: a caller that comes looks the key up again.
    retired: bool,
    /// What it counts for: a pending release, a grace, being busy.
    counted: [bool; 3],
}

/// What is ready to be sent, and when to look at which key.
pub(super) struct Schedule {
    pub(super) dispatch: Dispatch<Arc<Cell>>,
    looks: BTreeMap<(Time, u64), Arc<Cell>>,
    /// When the driver looks next by itself.
    planned: Option<Time>,
}

/// What a caller learns of its own step.
#[derive(Debug, Default)]
pub(super) struct Stepped {
    /// The caller's number, of an acquire.
    pub(super) waiter: u64,
    /// The hold was added, of a re-entry.
    pub(super) entered: bool,
}

/// What a builder says of its engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Locks may be handed over inside the process without the store.
    pub(crate) hand_over: bool,
    /// How long a row must have been idle to be deleted in the background; `None` for never.
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
            fence_source: store.fence_source(),
            health,
            alive,
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            listening: AtomicBool::new(false),
            wants_wake_ups: AtomicBool::new(false),
            counts: Counts::default(),
            hand_over: settings.hand_over,
            wake_ups: can.wake_ups,
            immediate: can.immediate,
            hasher: RandomState::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            schedule: Mutex::new(Schedule {
                dispatch: Dispatch::new(can.concurrency),
                looks: BTreeMap::new(),
                planned: None,
            }),
            last_cell: AtomicU64::new(0),
            store,
        }
    }

    // ── Keys ─────────────────────────────────────────────────────────────────────────────────────────

    fn shard(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Arc<Cell>>> {
        let hash = self.hasher.hash_one(key);
        let at = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        lock(&self.shards[at])
    }

    /// The cell of a key, if there is one.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Cell>> {
        self.shard(key).get(key).cloned()
    }

    fn find_or_make(&self, key: &Key) -> Arc<Cell> {
        let mut shard = self.shard(key);
        match shard.entry(key.clone()) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(place) => {
                let cell = Arc::new(Cell {
                    key: key.clone(),
                    id: self.last_cell.fetch_add(1, Ordering::Relaxed) + 1,
                    state: Mutex::new(State {
                        machine: Machine::new(key.clone()),
                        retired: false,
                        counted: [false; 3],
                    }),
                    most_together: AtomicUsize::new(MAX_BATCH),
                    look_at: AtomicU64::new(0),
                });
                Arc::clone(place.insert(cell))
            }
        }
    }

    /// Tells every key of an event, some keys at a time.
    pub(super) fn each(self: &Arc<Self>, event: impl Fn() -> Event<Ticket>) {
        for shard in &self.shards {
            let cells: Vec<Arc<Cell>> = lock(shard).values().cloned().collect();
            for cell in cells {
                self.step(&cell, event());
            }
        }
    }

    /// Forgets a key about which there is nothing to know.
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
        let mut shard = self.shard(&cell.key);
        let former = match shard.get(&cell.key) {
            Some(found) if Arc::ptr_eq(found, cell) => shard.remove(&cell.key),
            _ => None,
        };
        drop(shard);
        drop(former);
        if cell.look_at.load(Ordering::Acquire) != 0 {
            self.schedule().look_never(cell);
        }
    }

    // ── Steps ────────────────────────────────────────────────────────────────────────────────────────

    /// Tells the key's machine of an acquire. Returns the cell, and the caller's number there.
    pub(super) fn acquire(
        self: &Arc<Self>,
        key: &Key,
        waiter: Box<super::core::key::Waiter<Ticket>>,
    ) -> (Arc<Cell>, u64) {
        let mut event = Event::Acquire(waiter);
        loop {
            let cell = self.find_or_make(key);
            match self.try_step(&cell, event) {
                Ok(stepped) => return (cell, stepped.waiter),
                Err(again) => event = again,
            }
            self.forget(&cell);
        }
    }

    /// Tells a machine of an event, and carries out what it wants done.
    pub(super) fn step(self: &Arc<Self>, cell: &Arc<Cell>, event: Event<Ticket>) -> Stepped {
        // Only an acquire minds that a cell is retired: nothing else can concern it.
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
        let stepped = Stepped {
            waiter: out.waiter,
            entered: out.entered,
        };
        self.carry_out(cell, &mut out, None);
        if self.ended.load(Ordering::Acquire) && !ends {
            // It came too late for the driver's last event.
            self.step(cell, Event::End);
        }
        Ok(stepped)
    }

    /// A step, and what the key counts for after it. A machine that panics is given up: its lease and its callers end
    /// with it, and whoever comes next gets another cell.
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

    /// Carries out what a step wants done. `resumption`: of the batch that the step has the answer of.
    fn carry_out(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        out: &mut Out<Ticket>,
        resumption: Option<&Arc<Resumption>>,
    ) {
        self.tell(cell, out, resumption);
        if self.immediate {
            self.carry_out_requests(cell, out);
        }
        if let Some(broken) = out.broken.take() {
            tracing::error!(key = %cell.key, "a bug in dblock: the lease of this key and its callers were given up");
            drop(broken);
            return self.forget(cell);
        }
        self.plan(cell, out);
    }

    /// Tells callers, the log and the driver what the step says.
    fn tell(self: &Arc<Self>, cell: &Arc<Cell>, out: &mut Out<Ticket>, resumption: Option<&Arc<Resumption>>) {
        // Before the replies: a caller that goes on finds in the log what it did.
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

    /// Has the key sent for, and looked at again, when the step says so.
    fn plan(&self, cell: &Arc<Cell>, out: &Out<Ticket>) {
        if out.idle {
            return self.retire(cell);
        }
        let registered = cell.look_at.load(Ordering::Acquire);
        let sooner = out
            .look_at
            .filter(|at| registered == 0 || at.as_nanos() < registered);
        if out.ready.is_none() && sooner.is_none() {
            return;
        }
        let mut schedule = self.schedule();
        let mut wake = out.ready.is_some();
        if let Some(kind) = out.ready {
            let most_together = cell.most_together.load(Ordering::Relaxed);
            schedule.dispatch.ready(Arc::clone(cell), kind, most_together);
        }
        if let Some(at) = sooner {
            wake |= schedule.look(cell, at);
        }
        drop(schedule);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Carries out what the key has to send, where the store answers at once. `out` is that of the last step then.
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
            *out = self.step_now(cell, Event::Answer(answer));
            self.tell(cell, out, None);
        }
    }

    fn step_now(&self, cell: &Cell, event: Event<Ticket>) -> Out<Ticket> {
        self.step_locked(&mut lock(&cell.state), event)
    }

    /// The request that a key has to send, of one of these kinds, and how long the store may take for it. It is on its
    /// way from here on.
    pub(super) fn request(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        kinds: &'static [Kind],
    ) -> Option<(Request, Option<Duration>)> {
        let mut out = self.step_now(cell, Event::Send(kinds));
        let request = out.request.take().map(|request| (request, out.time_limit));
        self.carry_out(cell, &mut out, None);
        request
    }

    /// The answer to the request on its way.
    pub(super) fn answer(
        self: &Arc<Self>,
        cell: &Arc<Cell>,
        answer: Result<Outcome, StoreError>,
        most_together: usize,
        resumption: &Arc<Resumption>,
    ) {
        cell.most_together.store(most_together, Ordering::Relaxed);
        let mut out = self.step_now(cell, Event::Answer(answer));
        self.carry_out(cell, &mut out, Some(resumption));
    }

    // ── The schedule ─────────────────────────────────────────────────────────────────────────────────

    pub(super) fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }

    /// Looks at the keys whose time has come.
    pub(super) fn look_at_due(self: &Arc<Self>) {
        let now = self.clock.now();
        loop {
            let due = self.schedule().pop_due(now);
            let Some(cell) = due else { return };
            self.step(&cell, Event::Time);
        }
    }
}

impl Schedule {
    /// Looks at the key by then, or sooner. Returns whether the driver has to know.
    fn look(&mut self, cell: &Arc<Cell>, at: Time) -> bool {
        let registered = cell.look_at.load(Ordering::Acquire);
        if registered != 0 && registered <= at.as_nanos() {
            // Another step, which this one overtook, has asked for it.
            return false;
        }
        self.look_never(cell);
        cell.look_at.store(at.as_nanos().max(1), Ordering::Release);
        self.looks.insert((at, cell.id), Arc::clone(cell));
        let sooner = self.planned.is_none_or(|planned| at < planned);
        if sooner {
            self.planned = Some(at);
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
    pub(super) fn plan(&mut self) -> Option<Time> {
        let look = self.looks.first_key_value().map(|((at, _), _)| *at);
        self.planned = look.into_iter().chain(self.dispatch.held_back_until()).min();
        self.planned
    }
}

/// A panic inside of one of these locks leaves whole values behind.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    /// Two steps of one key may ask for their looks in another order than they were made in.
    #[test]
    fn a_later_look_does_not_take_the_place_of_a_sooner_one() {
        let settings = Settings {
            hand_over: true,
            purge_after: None,
        };
        let store = Arc::new(MemoryStore::new());
        let shared = Shared::new(1, store, settings, Arc::default(), Weak::new());
        let cell = shared.find_or_make(&Key::new(None, "key").unwrap());
        let at = |ms| Time::from_nanos(0) + Duration::from_millis(ms);
        let mut schedule = shared.schedule();
        assert!(schedule.look(&cell, at(100)));
        assert!(!schedule.look(&cell, at(10_000)));
        assert_eq!(schedule.plan(), Some(at(100)));
        assert!(schedule.look(&cell, at(50)));
        assert_eq!(schedule.plan(), Some(at(50)));
        assert_eq!(schedule.looks.len(), 1);
    }
}
