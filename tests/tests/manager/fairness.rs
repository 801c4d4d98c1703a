//! Processes share a key, although each hands the lock over to its own callers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use dblock::store::MemoryStore;
use dblock::{LockManager, current};
use dblock_tests::{Backend, on_every_store};
use tokio::task::yield_now;

use crate::{LONG, SHORT, patient};

on_every_store!(
    a_process_that_hands_over_lets_others_in,
    nobody_is_ever_inside_with_another
);

async fn a_process_that_hands_over_lets_others_in(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let enough = Arc::new(AtomicBool::new(false));
    let greedy = (0..8).map(|_| {
        let (locks, enough) = (locks.clone(), Arc::clone(&enough));
        tokio::spawn(async move {
            let mut entries = 0;
            while !enough.load(Ordering::SeqCst) {
                locks
                    .lock("key")
                    .options(&patient())
                    .run(yield_now())
                    .await
                    .unwrap();
                entries += 1;
            }
            entries
        })
    });
    let greedy: Vec<_> = greedy.collect();
    // They are at it.
    backend
        .until("key", LONG, |row| row.fence_ceiling > row.fence_token)
        .await;
    for _ in 0..3 {
        other
            .lock("key")
            .options(&patient())
            .run(yield_now())
            .await
            .unwrap();
    }
    enough.store(true, Ordering::SeqCst);
    for task in greedy {
        assert!(task.await.unwrap() > 0, "each of them has had its turn");
    }
}

/// On a clock that jumps from event to event: how long another process waits at most.
#[tokio::test(start_paused = true)]
async fn another_process_waits_for_one_turn_and_one_pause() {
    let store = MemoryStore::new();
    let manager = || LockManager::builder(store.clone()).build_lazy().unwrap();
    let (locks, other) = (manager(), manager());
    for _ in 0..4 {
        let locks = locks.clone();
        tokio::spawn(async move {
            loop {
                // It sleeps from when it enters.
                let body = async { tokio::time::sleep(Duration::from_millis(5)).await };
                locks.lock("key").options(&patient()).run(body).await.unwrap();
            }
        });
    }
    for _ in 0..10 {
        // They hand the lock over among themselves again.
        tokio::time::sleep(SHORT).await;
        let since = tokio::time::Instant::now();
        other.lock("key").options(&patient()).run(async {}).await.unwrap();
        // It queues at its first ask after 100 ms, then a turn is 100 ms, and a pause between two asks at
        // most 125 ms.
        assert!(
            since.elapsed() < Duration::from_millis(500),
            "{:?}",
            since.elapsed()
        );
    }
}

async fn nobody_is_ever_inside_with_another(backend: Backend) {
    let managers = [backend.manager().await, backend.manager().await];
    let inside = Arc::new(AtomicU32::new(0));
    let tasks = (0..16).map(|i| {
        let (locks, inside) = (managers[i % 2].clone(), Arc::clone(&inside));
        tokio::spawn(async move {
            let mut tokens = Vec::new();
            for round in 0..25 {
                let body = async {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "overlap");
                    if round % 5 == 0 {
                        // Re-entry in the middle of a turn.
                        locks
                            .lock("key")
                            .options(&patient())
                            .run(yield_now())
                            .await
                            .unwrap();
                    }
                    yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    current().unwrap().fence_token()
                };
                tokens.push(locks.lock("key").options(&patient()).run(body).await.unwrap());
            }
            tokens
        })
    });
    let mut tokens = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        let of_task = task.await.unwrap();
        assert!(of_task.is_sorted());
        tokens.extend(of_task);
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 16 * 25, "no token was given twice");
}
