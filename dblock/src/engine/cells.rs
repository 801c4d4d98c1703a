//! The keys that an engine knows, each with its machine behind a mutex.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
#[cfg(not(all(test, dblock_loom)))]
use std::{hint, sync::TryLockError};

use dblock_core::machine::dispatch::MAX_BATCH;
use dblock_core::machine::env::Time;
use dblock_core::machine::key;
use dblock_core::machine::out::{self, Turn, Unconfirmed};
use dblock_core::machine::ownership::Ownership;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::sync::{AtomicU64, Mutex, MutexGuard, Notify};
use crate::Key;
use crate::LockError;
use crate::store::Holder;
#[cfg(feature = "run_once")]
use crate::store::RecordChange;

/// What a caller gets that is not refused.
pub(super) enum Given {
    Lock(Arc<Ownership>),
    Turn(Turn),
}

/// The answers to callers. A caller drops the `Resuming` as soon as it runs again.
pub(super) type Acquired = (Result<Given, LockError>, Option<Resuming>);
pub(super) type Confirmed = (Result<(), Unconfirmed>, Option<Resuming>);

pub(super) type AcquireReply = oneshot::Sender<Acquired>;
pub(super) type ConfirmReply = oneshot::Sender<Confirmed>;

pub(super) type Machine = key::Machine<AcquireReply, ConfirmReply>;
pub(super) type Waiter = out::Waiter<AcquireReply>;
pub(super) type Confirm = key::Confirm<ConfirmReply>;
pub(super) type Reply = out::Reply<AcquireReply, ConfirmReply>;

/// The callers that a batch has answered and that do not run yet. They are likely to send a request at once,
/// so the next batch waits a moment for them.
pub(super) struct Resumption {
    callers: AtomicUsize,
    /// A batch is waiting for them.
    waited_for: AtomicBool,
    /// Wakes the driver.
    wake: Arc<Notify>,
}

impl Resumption {
    pub(super) fn new(wake: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            callers: AtomicUsize::new(0),
            waited_for: AtomicBool::new(false),
            wake: Arc::clone(wake),
        })
    }

    /// Whether to wait: some callers do not run yet. The last of them wakes the driver.
    pub(super) fn must_wait(&self) -> bool {
        self.waited_for.store(true, Ordering::SeqCst);
        self.callers.load(Ordering::SeqCst) > 0
    }
}

/// One of the callers.
pub(crate) struct Resuming(Arc<Resumption>);

impl Resuming {
    pub(super) fn new(resumption: &Arc<Resumption>) -> Self {
        resumption.callers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(resumption))
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        let last = self.0.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.waited_for.load(Ordering::SeqCst) {
            self.0.wake.notify_one();
        }
    }
}

impl fmt::Debug for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resuming")
    }
}

/// Number of maps that the keys are spread over, so that none of the maps is locked for long.
const MAPS: usize = if cfg!(all(test, dblock_loom)) { 1 } else { 64 };

/// One key. What is counted beside it does not share its memory: that is written by all threads, and this is read.
#[repr(align(128))]
pub(crate) struct Cell {
    key: Key,
    pub(super) id: u64,
    pub(super) state: Mutex<State>,
    /// The largest batch that the key may be part of. After a batch that hung it shrinks until there is an
    /// answer, so that a request that hangs the store does not take others along again and again.
    pub(super) most_together: AtomicUsize,
    /// When the schedule looks at it; 0 for never. Written under the schedule's mutex only.
    pub(super) look_at: AtomicU64,
    changed: Notify,
}

impl Cell {
    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// Wakes the tasks that wait for the end of a lease of the key, or for its revocation.
    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// As [`tell`](Self::tell), if what has changed concerns only these watchers. The tasks of others who share the
    /// lease are left alone, unless one of these waits.
    pub(super) fn tell_watchers(&self, watchers: &AtomicU64) {
        // A task that is not counted yet runs its test after this, and so sees the change.
        if watchers.fetch_add(0, Ordering::AcqRel) > 0 {
            self.tell();
        }
    }

    /// Completes when `test` holds. The test runs at once and after each [`tell`](Self::tell). `watchers` counts the task
    /// meanwhile.
    pub(super) async fn until(&self, watchers: &AtomicU64, test: impl Fn() -> bool) {
        let _watcher = Watcher::new(watchers);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if test() {
                return;
            }
            changed.await;
        }
    }

    /// How many holds `ownership` has: 0 once it has ended.
    pub(super) fn holds(&self, ownership: &Arc<Ownership>) -> u32 {
        lock(&self.state).machine.holds(ownership)
    }

    /// Who has the lock, as the caller with this number would be told if its timeout passed now.
    pub(super) fn holder_for(&self, number: u64, now: Time) -> Option<Holder> {
        lock(&self.state).machine.holder_for(number, now)
    }

    /// How many callers are before the one with this number.
    pub(super) fn ahead_of(&self, number: u64) -> usize {
        lock(&self.state).machine.ahead_of(number)
    }

    pub(super) fn is_waited_for_by(&self, owner: Uuid) -> bool {
        lock(&self.state).machine.is_waited_for_by(owner)
    }

    #[cfg(feature = "run_once")]
    pub(super) fn undo(&self, ownership: &Arc<Ownership>) -> Option<Arc<RecordChange>> {
        lock(&self.state).machine.undo(ownership)
    }

    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(super) fn is_kept_in_transaction(&self, ownership: &Arc<Ownership>) -> bool {
        lock(&self.state).machine.is_kept_in_transaction(ownership)
    }
}

pub(super) struct State {
    pub(super) machine: Machine,
    /// The cell is no longer in its map. An acquire must look the key up again.
    pub(super) retired: bool,
    /// The counters that include the key: pending releases, needs a grace, busy.
    pub(super) counted: [bool; 3],
}

/// The cells by key.
pub(super) struct Cells {
    hasher: RandomState,
    shards: Vec<Mutex<HashMap<Key, Arc<Cell>>>>,
    last_id: AtomicU64,
}

impl Cells {
    pub(super) fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..MAPS).map(|_| Mutex::default()).collect(),
            last_id: AtomicU64::new(0),
        }
    }

    fn shard(&self, key: &Key) -> MutexGuard<'_, HashMap<Key, Arc<Cell>>> {
        let hash = self.hasher.hash_one(key);
        let at = usize::try_from(hash % MAPS as u64).unwrap_or(0);
        lock(&self.shards[at])
    }

    /// The cell of a key, if there is one.
    pub(super) fn find(&self, key: &Key) -> Option<Arc<Cell>> {
        self.shard(key).get(key).cloned()
    }

    pub(super) fn find_or_make(&self, key: &Key) -> Arc<Cell> {
        let mut shard = self.shard(key);
        match shard.entry(key.clone()) {
            Entry::Occupied(found) => Arc::clone(found.get()),
            Entry::Vacant(place) => {
                let cell = Arc::new(Cell {
                    key: key.clone(),
                    id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
                    state: Mutex::new(State {
                        machine: Machine::new(key.clone()),
                        retired: false,
                        counted: [false; 3],
                    }),
                    most_together: AtomicUsize::new(MAX_BATCH),
                    look_at: AtomicU64::new(0),
                    changed: Notify::new(),
                });
                Arc::clone(place.insert(cell))
            }
        }
    }

    /// Calls `each` with every cell, in the order in which they were made, and without the lock of a map.
    pub(super) fn each(&self, each: impl FnMut(&Arc<Cell>)) {
        let mut cells = Vec::new();
        for shard in &self.shards {
            cells.extend(lock(shard).values().cloned());
        }
        cells.sort_unstable_by_key(|cell| cell.id);
        cells.iter().for_each(each);
    }

    /// Takes a retired cell out of its map.
    pub(super) fn remove(&self, cell: &Arc<Cell>) {
        let mut shard = self.shard(&cell.key);
        let former = match shard.get(&cell.key) {
            Some(found) if Arc::ptr_eq(found, cell) => shard.remove(&cell.key),
            _ => None,
        };
        drop(shard);
        drop(former);
    }
}

/// One of the tasks that are counted here.
struct Watcher<'a>(&'a AtomicU64);

impl<'a> Watcher<'a> {
    fn new(watchers: &'a AtomicU64) -> Self {
        watchers.fetch_add(1, Ordering::AcqRel);
        Self(watchers)
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As [`lock`], for a mutex that is asked for again and again. A thread that finds it taken stays away for a while, in
/// which the other one makes several steps: to make them in turns would take the memory to and fro.
pub(super) fn lock_in_peace<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(not(all(test, dblock_loom)))]
    for pause in [64, 128, 256, 512, 1024] {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            Err(TryLockError::WouldBlock) => (0..pause).for_each(|_| hint::spin_loop()),
        }
    }
    lock(mutex)
}

/// A panic never leaves a half-changed value under these locks.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, dblock_loom))]
mod loom_tests {
    use futures_util::FutureExt as _;
    use loom::thread;

    use super::*;
    use crate::engine::sync::{AtomicBool, in_every_order};

    #[test]
    fn whoever_waits_is_woken_by_what_makes_its_test_true() {
        in_every_order(|| {
            let cell = Cells::new().find_or_make(&Key::new(None, "k").unwrap());
            let lost = Arc::new((AtomicBool::new(false), AtomicU64::new(0)));
            let loses = {
                let (cell, lost) = (Arc::clone(&cell), Arc::clone(&lost));
                thread::spawn(move || {
                    let (is_lost, watchers) = &*lost;
                    is_lost.store(true, Ordering::Release);
                    cell.tell_watchers(watchers);
                })
            };
            let (is_lost, watchers) = &*lost;
            let test = || is_lost.load(Ordering::Acquire);
            let mut waiters = [(); 2].map(|()| Box::pin(cell.until(watchers, test)));
            let early = waiters.each_mut().map(|waiter| waiter.now_or_never());
            loses.join().unwrap();
            for (waiter, early) in waiters.iter_mut().zip(early) {
                assert!(early.or_else(|| waiter.now_or_never()).is_some());
            }
        });
    }
}
