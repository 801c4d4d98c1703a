//! Calls that block their thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dblock::store::MemoryStore;
use dblock::{LockError, LockManager, current, current_locks, distributed_lock};
use dblock_tests::{Backend, on_every_store};
use tokio::task::spawn_blocking;

use crate::{long, patient, short};

on_every_store!(
    a_body_that_blocks_keeps_others_out,
    a_loss_is_told_to_a_body_that_blocks,
    the_attribute_takes_a_plain_function,
);

async fn a_body_that_blocks_keeps_others_out(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (inside, entered) = tokio::sync::oneshot::channel();
    let (lets, leave) = mpsc::channel::<()>();
    let blocks = spawn_blocking(move || {
        let body = || {
            inside.send(()).unwrap();
            leave.recv().unwrap();
            "done"
        };
        locks.lock("key").options(&long()).blocking_run(body)
    });
    entered.await.unwrap();
    assert!(other.lock("key").try_acquire().await.unwrap().is_none());
    lets.send(()).unwrap();
    assert_eq!(blocks.await.unwrap().unwrap(), "done");
    let guard = other.lock("key").try_acquire().await.unwrap();
    let guard = guard.expect("the call has released before it returned");

    let mine = spawn_blocking(move || {
        let busy = other.lock("key").blocking_run(|| unreachable!("it is busy"));
        assert!(matches!(busy, Err(LockError::Busy { .. })), "{busy:?}");
        other.block_on(guard.release()).unwrap();
        let panics = || other.lock("key").blocking_run(|| panic!("planned"));
        let panic = catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "planned");
        other.lock("key").blocking_run(|| current_locks().len())
    });
    assert_eq!(mine.await.unwrap().unwrap(), 1, "the panic has released");
}

async fn a_loss_is_told_to_a_body_that_blocks(backend: Backend) {
    let locks = backend.manager().await;
    let blocks = spawn_blocking(move || {
        let mut went_on = false;
        let lost = locks.lock("key").options(&short()).blocking_run(|| {
            let lock = current().unwrap();
            assert!(locks.block_on(locks.admin().force_release("key")).unwrap());
            locks.block_on(lock.lost());
            assert_eq!(lock.remaining(), Duration::ZERO);
            went_on = true;
        });
        (went_on, lost)
    });
    let (went_on, lost) = blocks.await.unwrap();
    assert!(went_on);
    assert!(lost.unwrap_err().is_lost());
}

struct Shop {
    locks: LockManager,
    sold: Vec<u64>,
}

impl Shop {
    #[distributed_lock(key = "order:{id}", ttl = "30s", wait = "30s", manager = self.locks)]
    fn sell(&mut self, id: u64) -> Result<u32, LockError> {
        if self.sold.contains(&id) {
            return Ok(0);
        }
        self.sold.push(id);
        Ok(current().map_or(0, |lock| lock.hold_count()))
    }

    #[distributed_lock(keys = ["order:{one}", "order:{two}"], ttl = "30s", manager = self.locks)]
    fn sell_both(&mut self, one: u64, two: u64) -> Result<[u32; 3], LockError> {
        let inside = u32::try_from(current_locks().len()).unwrap();
        Ok([inside, self.sell(one)?, self.sell(two)?])
    }

    #[distributed_lock(key = "order:{id}", ttl = "30s", on_busy = Ok(false), manager = self.locks)]
    fn is_free(&self, id: u64) -> Result<bool, LockError> {
        Ok(true)
    }
}

async fn the_attribute_takes_a_plain_function(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = other.lock("order:9").options(&patient()).acquire().await.unwrap();
    let sold = Vec::new();
    let mut shop = Shop { locks, sold };
    let calls = spawn_blocking(move || {
        assert_eq!(shop.sell_both(1, 2).unwrap(), [2, 2, 2], "nested calls re-enter");
        assert_eq!(shop.sell(1).unwrap(), 0);
        assert_eq!(
            (shop.is_free(1).unwrap(), shop.is_free(9).unwrap()),
            (true, false)
        );
        shop.sold
    });
    assert_eq!(calls.await.unwrap(), [1, 2]);
    guard.release().await.unwrap();
}

/// No tokio runtime is there but that which the manager starts.
#[test]
fn a_program_without_a_runtime_locks() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}/locks.db", folder.path().display());
    let locks = LockManager::builder_for_url(&url).unwrap().build_lazy().unwrap();
    locks.block_on(locks.admin().migrate()).unwrap();
    let sum = thread::scope(|scope| {
        let add = |number: u64| {
            let locks = &locks;
            scope.spawn(move || locks.lock("key").options(&patient()).blocking_run(|| number))
        };
        let threads = [1, 2, 3, 4].map(add);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap().unwrap())
            .sum::<u64>()
    });
    assert_eq!(sum, 10);
    locks.block_on(locks.shutdown(Duration::ZERO));
}

/// The body drives a runtime, in which another task takes the same key: it is another owner.
#[test]
fn tasks_that_a_body_drives_are_other_owners() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let locks = LockManager::builder(MemoryStore::new()).build_lazy().unwrap();
    let other = locks.clone();
    let other = runtime.spawn(async move {
        let inside = current().is_some();
        (inside, other.lock("key").try_acquire().await.unwrap().is_some())
    });
    let body = || {
        (
            current().is_some(),
            runtime.block_on(other).unwrap(),
            current().is_some(),
        )
    };
    let found = locks.lock("key").blocking_run(body).unwrap();
    assert_eq!(found, (true, (false, false), true));
}

/// What it spawns goes on after the manager, and the clock is that of the runtime.
#[tokio::test(start_paused = true)]
async fn a_thread_of_a_runtime_uses_that_runtime() {
    let locks = LockManager::connect("memory:").await.unwrap();
    tokio::time::advance(Duration::from_hours(1)).await;
    let calls = spawn_blocking(move || {
        let lasts = locks
            .lock("key")
            .blocking_run(|| current().unwrap().remaining())
            .unwrap();
        let spawned = locks.block_on(async { tokio::spawn(tokio::time::sleep(Duration::from_secs(1))) });
        (lasts, spawned)
    });
    let (lasts, spawned) = calls.await.unwrap();
    assert!(lasts > Duration::from_secs(20), "{lasts:?}");
    spawned.await.unwrap();
}

#[tokio::test]
#[should_panic(expected = "Cannot start a runtime from within a runtime")]
async fn a_task_is_not_blocked() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let _ = locks.lock("key").blocking_run(|| ());
}
