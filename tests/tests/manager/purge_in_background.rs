//! The manager purges by itself. On a clock that jumps from event to event, over rows in memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::{
    Capabilities, MemoryStore, Outcome, Purged, Request, Store, StoreError, StoreErrorKind, StoreFuture,
};
use dblock::{InspectFilter, Key, LockManager};
use dblock_conformance::forward_to_inner;
use tokio::time::Instant;

use super::purge::{DAY, HOUR};
use crate::long;

/// The rows of `store`, counted without a manager.
async fn count(store: &MemoryStore) -> usize {
    let filter = InspectFilter::new().include_free().limit(u32::MAX);
    store.inspect(&filter).await.unwrap().len()
}

/// Takes keys and never releases them: the memory store drops the rows of free keys by itself.
async fn use_keys(locks: &LockManager, count: usize) {
    for n in 0..count {
        let guard = locks
            .lock(format!("key {n}"))
            .options(&long())
            .renew(false)
            .acquire()
            .await;
        std::mem::forget(guard.unwrap());
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
    let held = locks.lock("held").options(&long()).acquire().await.unwrap();
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
    let held = locks.lock("held").options(&long()).acquire().await.unwrap();
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
    locks.lock("key 0").options(&long()).run(async {}).await.unwrap();
    assert_eq!(locks.admin().list(InspectFilter::new()).await.unwrap(), []);
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
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 1_195);
    assert_eq!(count(&store).await, 5);
}
