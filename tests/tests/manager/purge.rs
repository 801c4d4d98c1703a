//! Rows that nobody uses go away; nothing else changes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::{
    Capabilities, MemoryStore, Outcome, Purged, Request, Store, StoreError, StoreErrorKind, StoreFuture,
};
use dblock::{InspectFilter, Key, LockError, LockManager};
use dblock_conformance::forward_to_inner;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use futures_util::future::join_all;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{long, patient};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

on_every_store!(less_than_a_day_is_refused, nothing_is_purged_after_shutdown);
on_every_store!(
    databases:
    a_purge_takes_many_steps,
    locks_hold_while_rows_are_purged,
);
on_every_store!(servers: a_locked_row_is_left_for_later);

/// As if the rows had last been used `days` days ago: those that `which` says, in all or one of the columns
/// that tell.
async fn age(backend: &Backend, columns: &[&str], days: i64, which: &str) {
    let micros = days * 86_400_000_000;
    let set: Vec<String> = columns
        .iter()
        .map(|column| format!("{column} = {column} - {micros}"))
        .collect();
    let sql = format!("UPDATE {{table}} SET {} WHERE {which}", set.join(", "));
    backend.execute(&sql).await;
}

const TIMES: [&str; 5] = [
    "expire_at",
    "wanted_until",
    "fence_token",
    "fence_ceiling",
    "acquired_at",
];

async fn keys(locks: &LockManager) -> Vec<String> {
    let rows = locks.inspect(InspectFilter::new().include_free()).await.unwrap();
    rows.iter().map(|row| row.key.to_string()).collect()
}

async fn less_than_a_day_is_refused(backend: Backend) {
    let too_soon = Duration::from_millis(86_399_999);
    for idle in [Duration::ZERO, HOUR, too_soon] {
        let purged = backend.manager().await.purge(idle).await;
        assert!(matches!(purged, Err(LockError::Invalid { .. })), "{purged:?}");
        let built = backend.builder().purge_after(idle).start();
        assert!(matches!(built, Err(LockError::Invalid { .. })), "{built:?}");
    }
    backend.builder().purge_after(DAY).start().unwrap();
    backend.builder().purge_after(None).start().unwrap();
}

async fn nothing_is_purged_after_shutdown(backend: Backend) {
    let locks = backend.manager().await;
    locks.shutdown(Duration::ZERO).await;
    let purged = locks.purge(DAY).await;
    assert!(matches!(purged, Err(LockError::Shutdown { .. })), "{purged:?}");
}

async fn a_purge_takes_many_steps(backend: Backend) {
    let locks = backend.manager().await;
    let names: Vec<String> = (0..1_100).map(|n| format!("key {n:04}")).collect();
    let acquires = names.iter().map(|name| locks.acquire(name, patient()));
    let guards: Vec<_> = join_all(acquires).await.into_iter().map(Result::unwrap).collect();
    join_all(guards.into_iter().map(dblock::LockGuard::release)).await;
    // More than a step between those that stay.
    let old = "lock_key NOT IN ('key 0003', 'key 0800')";
    age(&backend, &TIMES, 2, old).await;
    assert_eq!(locks.purge(DAY * 3).await.unwrap(), 0);
    assert_eq!(locks.purge(DAY).await.unwrap(), 1_098);
    assert_eq!(keys(&locks).await, ["key 0003", "key 0800"]);
    assert_eq!(locks.purge(DAY).await.unwrap(), 0);
}

async fn a_locked_row_is_left_for_later(backend: Backend) {
    let locks = backend.manager().await;
    for name in ["a", "b"] {
        locks.with(name, patient(), async {}).await.unwrap();
    }
    age(&backend, &TIMES, 2, "true").await;
    let mut user = Transaction::begin(&backend).await;
    let lock = format!("SELECT 1 FROM {} WHERE lock_key = 'a' FOR UPDATE", backend.table);
    user.execute(lock).await;
    assert_eq!(locks.purge(DAY).await.unwrap(), 1);
    assert_eq!(keys(&locks).await, ["a"]);
    user.rollback().await;
    assert_eq!(locks.purge(DAY).await.unwrap(), 1);
}

/// Rows vanish all the time under the feet of those who take the locks.
async fn locks_hold_while_rows_are_purged(backend: Backend) {
    const TURNS: usize = 40;
    let done = Arc::new(AtomicBool::new(false));
    let purged = Arc::new(AtomicU64::new(0));
    let mut spoilers = JoinSet::new();
    for key in ["a", "b"] {
        let (backend, done) = (backend.clone(), Arc::clone(&done));
        spoilers.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let free = format!("lock_key = '{key}' AND reentrant_count = 0");
                age(&backend, &TIMES, 2, &free).await;
                // Or a store of one writer has no time for anybody else.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let operator = backend.manager().await;
    spoilers.spawn({
        let (done, purged) = (Arc::clone(&done), Arc::clone(&purged));
        async move {
            while !done.load(Ordering::Relaxed) {
                match operator.purge(DAY).await {
                    Ok(rows) => drop(purged.fetch_add(rows, Ordering::Relaxed)),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });

    let inside = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        // Each grant and release in the row.
        let locks = backend.builder().hand_over(false).build().await.unwrap();
        for task in 0..4 {
            let (locks, backend) = (locks.clone(), backend.clone());
            let (key, inside) = [("a", &inside[0]), ("b", &inside[1])][task % 2];
            let inside = Arc::clone(inside);
            tasks.spawn(async move {
                for _ in 0..TURNS {
                    let guard = locks.acquire(key, patient()).await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside of {key}");
                    let row = backend.the_row(key).await;
                    assert_eq!(row.fence_token, guard.fence_token(), "the grant is in the row");
                    assert!(!row.is_free() && row.expire_at > row.now, "{row:?}");
                    assert!(inside.swap(false, Ordering::SeqCst), "two were inside of {key}");
                    guard.release().await.unwrap();
                }
            });
        }
    }
    tasks.join_all().await;
    done.store(true, Ordering::Relaxed);
    spoilers.join_all().await;
    assert!(purged.load(Ordering::Relaxed) > 0, "no row was purged meanwhile");
}

/// The rows of `store`, counted without a manager.
async fn count(store: &MemoryStore) -> usize {
    let filter = InspectFilter::new().include_free().limit(u32::MAX);
    store.inspect(&filter).await.unwrap().len()
}

async fn use_keys(locks: &LockManager, count: usize) {
    for n in 0..count {
        locks.with(format!("key {n}"), long(), async {}).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn idle_rows_go_in_the_background() {
    let store = MemoryStore::new();
    let locks = LockManager::builder(store.clone())
        .purge_after(DAY)
        .build()
        .await
        .unwrap();
    // More than a step.
    use_keys(&locks, 1_200).await;
    let held = locks.acquire("held", long()).await.unwrap();
    tokio::time::sleep(DAY).await;
    assert_eq!(
        count(&store).await,
        1_201,
        "a day has not passed since the leases' end"
    );
    use_keys(&locks, 3).await;
    tokio::time::sleep(HOUR * 2).await;
    assert_eq!(count(&store).await, 4, "what was used stays");
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_first_pass_comes_within_an_hour() {
    let store = MemoryStore::new();
    {
        let locks = LockManager::builder(store.clone()).build().await.unwrap();
        use_keys(&locks, 3).await;
        locks.shutdown(Duration::ZERO).await;
    }
    tokio::time::sleep(DAY * 8).await;
    assert_eq!(
        count(&store).await,
        3,
        "nothing is purged by a manager that was shut down"
    );
    let off = LockManager::builder(store.clone())
        .purge_after(None)
        .build()
        .await
        .unwrap();
    tokio::time::sleep(DAY).await;
    assert_eq!(count(&store).await, 3, "it is switched off");
    let locks = LockManager::builder(store.clone()).build().await.unwrap();
    tokio::time::sleep(HOUR).await;
    assert_eq!(count(&store).await, 0);
    drop((off, locks));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_purged_while_the_manager_stops() {
    let store = MemoryStore::new();
    let locks = LockManager::builder(store.clone())
        .purge_after(DAY)
        .build()
        .await
        .unwrap();
    use_keys(&locks, 3).await;
    let held = locks.acquire("held", long()).await.unwrap();
    let stopping = tokio::spawn(async move { locks.shutdown(DAY * 5).await });
    tokio::time::sleep(DAY * 3).await;
    assert!(
        !stopping.is_finished() && !held.is_lost(),
        "the grace is not over"
    );
    assert_eq!(count(&store).await, 4);
    held.release().await.unwrap();
    stopping.await.unwrap();
}

/// A memory store whose purge takes the answers of a script first, and writes down where it was to go on.
#[derive(Debug)]
struct Scripted {
    inner: MemoryStore,
    script: Mutex<VecDeque<Option<StoreErrorKind>>>,
    steps: Mutex<Vec<(Instant, Option<Key>)>>,
}

impl Scripted {
    fn steps(&self) -> Vec<(Instant, Option<Key>)> {
        self.steps.lock().unwrap().clone()
    }
}

impl Store for Scripted {
    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        self.steps.lock().unwrap().push((Instant::now(), after.cloned()));
        let fault = self.script.lock().unwrap().pop_front().flatten();
        Box::pin(async move {
            match fault {
                // Never answers.
                Some(StoreErrorKind::Interrupted) => std::future::pending().await,
                Some(kind) => Err(StoreError::new(kind, "told to fail")),
                None => self.inner.purge(idle, after, limit).await,
            }
        })
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.inner.apply(requests)
    }

    forward_to_inner!(but purge);
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_failed_goes_on_where_it_was() {
    let script = [
        Some(StoreErrorKind::Refused),
        None,
        Some(StoreErrorKind::Interrupted),
        Some(StoreErrorKind::Conflict),
    ];
    let store = Arc::new(Scripted {
        inner: MemoryStore::new(),
        script: Mutex::new(script.into()),
        steps: Mutex::default(),
    });
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .build()
        .await
        .unwrap();
    use_keys(&locks, 700).await;
    // The first pass comes within an hour, and after each failure the next about an hour later.
    tokio::time::sleep(HOUR * 6).await;
    let steps = store.steps();
    let from: Vec<bool> = steps.iter().map(|(_, after)| after.is_some()).collect();
    assert_eq!(from, [false, false, true, true, true], "{steps:?}");
    assert_eq!(steps[2].1, steps[4].1, "the step that failed is taken again");
    for failed in [0, 2, 3] {
        let pause = steps[failed + 1].0 - steps[failed].0;
        assert!(pause > HOUR / 2 && pause < HOUR * 3 / 2, "{pause:?}");
    }
    // Locks and other admin tasks went on.
    locks.with("key 0", long(), async {}).await.unwrap();
    assert_eq!(locks.inspect(InspectFilter::new()).await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_pass_rests_between_its_steps() {
    let store = Arc::new(Scripted {
        inner: MemoryStore::new(),
        script: Mutex::default(),
        steps: Mutex::default(),
    });
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .build()
        .await
        .unwrap();
    use_keys(&locks, 2_600).await;
    tokio::time::sleep(HOUR).await;
    let steps = store.steps();
    assert_eq!(steps.len(), 6, "{steps:?}");
    for two in steps.windows(2) {
        assert!(two[1].0 - two[0].0 >= Duration::from_millis(100), "{two:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_operator_purges_at_once() {
    let store = MemoryStore::new();
    let locks = LockManager::builder(store.clone())
        .purge_after(None)
        .namespace("mine")
        .build()
        .await
        .unwrap();
    use_keys(&locks, 1_200).await;
    tokio::time::sleep(DAY * 2).await;
    use_keys(&locks, 5).await;
    assert_eq!(locks.purge(DAY).await.unwrap(), 1_195);
    assert_eq!(count(&store).await, 5);
}
