//! Wake-ups of all shards.

use std::sync::Arc;

use dblock::LockManager;
use dblock::store::{Store, StoreErrorKind, WakeUp};
use dblock_tests::telling_store::TellingStore;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use crate::{LONG, key, key_of, long, shards};

/// One shard that cannot be listened to takes the other's wake-ups away from nobody; without any, listening
/// ends.
#[tokio::test]
async fn a_deaf_shard_leaves_the_others() {
    let telling = [TellingStore::new(), TellingStore::new()];
    let [a, b] = telling.clone().map(|store| Arc::new(store) as Arc<dyn Store>);
    let store = Arc::new(shards([("a", &a), ("b", &b)]));
    let (tell, mut told) = mpsc::unbounded_channel();
    let listening = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.listen(&|wake_up| drop(tell.send(wake_up))).await }
    });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    telling[1].go_deaf();
    while telling[1].listeners() > 0 {
        tokio::task::yield_now().await;
    }

    let of_a = key_of(&store, "a");
    let locks = LockManager::builder(Arc::clone(&a)).build_lazy().unwrap();
    let guard = locks
        .lock(of_a.as_str())
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let other = LockManager::builder(Arc::clone(&a)).build_lazy().unwrap();
    let refused = other
        .lock(of_a.as_str())
        .options(&long())
        .wait(std::time::Duration::from_millis(50))
        .acquire()
        .await;
    assert!(refused.is_err());
    guard.release().await.unwrap();
    assert_eq!(told.recv().await, Some(WakeUp::Released(of_a)));

    telling[0].go_deaf();
    let ended = timeout(LONG, listening).await.expect("it ends").unwrap();
    assert_eq!(ended.kind(), StoreErrorKind::Unreachable, "{ended}");
}

/// A process that waits for a key that moves enters soon after the release, although half of the lock alone
/// is told.
#[tokio::test]
async fn a_pass_on_of_one_row_wakes_who_waits() {
    let telling = [TellingStore::new(), TellingStore::new()];
    let manager = || {
        let [a, b] = telling.clone().map(|store| Arc::new(store) as Arc<dyn Store>);
        let store = shards([("a", &a)]).moving_to(shards([("b", &b)])).unwrap();
        LockManager::builder(store).build_lazy().unwrap()
    };
    let (locks, other) = (manager(), manager());
    let mut waits = Vec::new();
    for _ in 0..9 {
        let guard = locks.lock("k").options(&long()).acquire().await.unwrap();
        let waiting = tokio::spawn({
            let other = other.clone();
            async move {
                (
                    other
                        .lock("k")
                        .options(&long())
                        .wait(LONG)
                        .acquire()
                        .await
                        .unwrap(),
                    Instant::now(),
                )
            }
        });
        let is_queued = async || {
            let rows = telling[0]
                .rows()
                .inspect(&dblock::InspectFilter::new())
                .await
                .unwrap();
            rows.iter().any(|row| row.key == key("k") && row.next.is_some())
        };
        while !is_queued().await {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let released = Instant::now();
        guard.release().await.unwrap();
        let (guard, entered) = waiting.await.unwrap();
        waits.push(entered - released);
        guard.release().await.unwrap();
    }
    waits.sort();
    println!("from the release until the next is inside: {waits:?}");
    // Without the wake-up it is found by asking, after most of a second.
    assert!(waits[4] < std::time::Duration::from_millis(300), "{waits:?}");
}
