//! Waiting between processes: how soon a caller enters, and how long its lease lives. On the memory store,
//! with and without wake-ups, in paused time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{MemoryStore, Store};
use dblock::{LockManager, LockOptions, OnLost};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::telling_store::TellingStore;
use tokio::time::{Instant, sleep, timeout};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn patient() -> LockOptions {
    LockOptions::new().wait(Duration::from_mins(2))
}

fn listening(store: &TellingStore) -> LockManager {
    let store: Arc<dyn Store> = Arc::new(store.clone());
    LockManager::builder(store).build_lazy().unwrap()
}

/// Nobody leaves a key alone that nobody wants.
#[tokio::test(start_paused = true)]
async fn the_last_holder_gets_a_free_key_at_once() {
    let store = MemoryStore::new();
    let manager = || LockManager::builder(store.clone()).build_lazy().unwrap();
    let (holder, other) = (manager(), manager());
    let guard = holder.lock("key").acquire().await.unwrap();
    let timed_out = other.lock("key").wait(ms(300)).acquire().await;
    assert!(timed_out.unwrap_err().is_busy());
    guard.release().await.unwrap();
    let since = Instant::now();
    let guard = holder.lock("key").try_acquire().await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    holder
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(since.elapsed() < ms(5), "{:?}", since.elapsed());
}

/// An operator finds whoever holds the lock just after it was passed on, and is heard within a third of the
/// ttl.
#[tokio::test(start_paused = true)]
async fn an_operator_reaches_who_was_passed_the_lock() {
    let ttl = Duration::from_secs(3);
    for by_force in [false, true] {
        let store = TellingStore::new();
        let [first, second, operator] = [(); 3].map(|()| listening(&store));
        for _ in 0..14 {
            let guard = first.lock("key").options(&patient()).acquire().await.unwrap();
            let next = tokio::spawn({
                let second = second.clone();
                async move {
                    second
                        .lock("key")
                        .options(&patient())
                        .ttl(ttl)
                        .on_lost(OnLost::Signal)
                        .acquire()
                        .await
                }
            });
            sleep(ms(20)).await;
            guard.release().await.unwrap();
            let guard = next.await.unwrap().unwrap();
            let since = Instant::now();
            if by_force {
                assert!(operator.admin().force_release("key").await.unwrap());
                guard.lost().await;
            } else {
                assert!(operator.admin().revoke("key").await.unwrap());
                guard.revoked().await;
            }
            assert!(since.elapsed() <= ttl / 3 + ms(50), "{:?}", since.elapsed());
            drop(guard);
            sleep(ms(100)).await;
        }
    }
}

/// A record of a lock that is kept after its body says that it is not held.
#[tokio::test(start_paused = true)]
async fn a_record_that_is_kept_says_that_nothing_is_held() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let body = async { dblock::current().unwrap() };
    let kept = locks.lock("key").run(body).await.unwrap();
    assert_eq!(kept.remaining(), Duration::ZERO);
    let lost = timeout(ms(1), kept.lost()).await.expect("at once");
    assert!(lost.is_lost(), "{lost}");
}

/// Commits take up to two seconds: a lease lives, whether it was granted, handed over or passed on.
#[tokio::test(start_paused = true)]
async fn a_lease_lives_while_commits_take_two_seconds() {
    for commit in [ms(500), ms(700), ms(2000)] {
        let store = TellingStore::new();
        let slow = [(); 2].map(|()| {
            let slow = FaultyStore::over(Arc::new(store.clone()));
            for kind in [Kind::Acquire, Kind::Extend, Kind::Release] {
                slow.always(kind, Fault::SlowReply(commit));
            }
            slow
        });
        let [first, second] = [slow[0].manager(), slow[1].manager()];
        let body = || async {
            sleep(Duration::from_secs(25)).await;
        };
        let options = patient().ttl(Duration::from_secs(9));
        let (a, b, c) = tokio::join!(
            first.lock("key").options(&options).run(body()),
            first.lock("key").options(&options).run(body()),
            second.lock("key").options(&options).run(body()),
        );
        for done in [a, b, c] {
            done.unwrap_or_else(|error| panic!("commits of {commit:?}: {error}"));
        }
    }
}

/// The callers of one key leave in any order: each costs about the same, however many there are.
#[tokio::test]
async fn fifty_thousand_waiters_leave_in_random_order() {
    const WAITERS: usize = 50_000;
    let locks = LockManager::connect("memory:").await.unwrap();
    let held = locks.lock("key").acquire().await.unwrap();
    let mut calls: Vec<_> = (0..WAITERS)
        .map(|_| Box::pin(locks.lock("key").options(&patient()).acquire()))
        .collect();
    for call in &mut calls {
        assert!(futures_util::poll!(call.as_mut()).is_pending());
    }
    fastrand::shuffle(&mut calls);
    // Quadratic, this takes minutes.
    timeout(Duration::from_secs(20), async {
        for call in calls {
            drop(call);
            tokio::task::consume_budget().await;
        }
    })
    .await
    .expect("too slow");
    held.release().await.unwrap();
    let free = locks.lock("key").try_acquire().await.unwrap();
    free.expect("it is free").release().await.unwrap();
}
