//! Waiting between processes: who enters, how soon, and what waiting leaves behind. On the memory store, with and
//! without wake-ups, in paused time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{MemoryStore, Store};
use dblock::{LockManager, LockManagerBuilder, LockOptions, OnLost};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::telling_store::TellingStore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn patient() -> LockOptions {
    LockOptions::new().wait(Duration::from_mins(2))
}

fn builder(store: &TellingStore) -> LockManagerBuilder {
    let store: Arc<dyn Store> = Arc::new(store.clone());
    LockManager::builder(store)
}

fn listening(store: &TellingStore) -> LockManager {
    builder(store).start().unwrap()
}

fn without_hand_over(store: &TellingStore) -> LockManager {
    builder(store).hand_over(false).start().unwrap()
}

/// Tasks of one process that want the key again as soon as they have left it.
fn keep_busy(tasks: &mut JoinSet<()>, locks: &LockManager, count: usize, section: Duration) {
    for _ in 0..count {
        let locks = locks.clone();
        tasks.spawn(async move {
            loop {
                locks.with("key", patient(), sleep(section)).await.unwrap();
            }
        });
    }
}

/// How long one call waits for the key, at most, out of ten.
async fn longest_wait(locks: &LockManager) -> Duration {
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let since = Instant::now();
        let guard = timeout(ms(60_000), locks.acquire("key", patient()));
        let guard = guard.await.expect("it starves").unwrap();
        longest = longest.max(since.elapsed());
        guard.release().await.unwrap();
    }
    longest
}

/// Whatever the others do, and whatever their settings are.
#[tokio::test(start_paused = true)]
async fn a_process_without_local_hand_over_gets_in() {
    for section in [ms(1), ms(50)] {
        let store = TellingStore::new();
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            keep_busy(&mut tasks, &listening(&store), 2, section);
        }
        let plain = without_hand_over(&store);
        sleep(ms(500)).await;
        let longest = longest_wait(&plain).await;
        assert!(longest < ms(5000), "sections of {section:?}: {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_many_that_hand_nothing_over_gets_in() {
    for section in [ms(1), ms(50)] {
        let store = TellingStore::new();
        let mut tasks = JoinSet::new();
        let plain = || without_hand_over(&store);
        for _ in 0..2 {
            keep_busy(&mut tasks, &plain(), 2, section);
        }
        sleep(ms(500)).await;
        let longest = longest_wait(&plain()).await;
        assert!(longest < ms(5000), "sections of {section:?}: {longest:?}");
    }
}

/// Its listening fails, so it polls while the others are woken up.
#[tokio::test(start_paused = true)]
async fn a_process_that_cannot_listen_gets_in() {
    for section in [ms(1), ms(50)] {
        let store = TellingStore::new();
        let mut tasks = JoinSet::new();
        for _ in 0..3 {
            keep_busy(&mut tasks, &listening(&store), 2, section);
        }
        sleep(ms(500)).await;
        // What it sends reaches the same rows; nothing is told to it.
        let deaf = FaultyStore::over(Arc::new(store.deaf_twin()));
        let longest = longest_wait(&deaf.manager()).await;
        assert!(longest < ms(5000), "sections of {section:?}: {longest:?}");
    }
}

/// Where nobody is woken up.
#[tokio::test(start_paused = true)]
async fn a_polling_process_gets_in() {
    for section in [ms(1), ms(50)] {
        let store = MemoryStore::new();
        let manager = || LockManager::builder(store.clone()).start().unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..2 {
            keep_busy(&mut tasks, &manager(), 2, section);
        }
        sleep(ms(500)).await;
        let longest = longest_wait(&manager()).await;
        assert!(longest < ms(5000), "sections of {section:?}: {longest:?}");
    }
}

/// A caller whose time ran out is not next any more, and leaves the key to whoever asks.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_timed_out_is_not_next() {
    let store = TellingStore::new();
    let [holder, second, third] = [(); 3].map(|()| listening(&store));
    let guard = holder.acquire("key", LockOptions::new()).await.unwrap();
    let waited = second.acquire("key", LockOptions::new().wait(ms(300))).await;
    assert!(waited.unwrap_err().is_busy());
    guard.release().await.unwrap();
    for locks in [&third, &second, &holder] {
        let since = Instant::now();
        let guard = locks.acquire("key", patient()).await.unwrap();
        assert!(since.elapsed() < ms(50), "{:?}", since.elapsed());
        guard.release().await.unwrap();
        let guard = locks.try_acquire("key", LockOptions::new()).await.unwrap();
        guard.expect("it is free").release().await.unwrap();
    }
}

/// Nobody leaves a key alone that nobody wants.
#[tokio::test(start_paused = true)]
async fn the_last_holder_gets_a_free_key_at_once() {
    let store = MemoryStore::new();
    let manager = || LockManager::builder(store.clone()).start().unwrap();
    let (holder, other) = (manager(), manager());
    let guard = holder.acquire("key", LockOptions::new()).await.unwrap();
    let timed_out = other.acquire("key", LockOptions::new().wait(ms(300))).await;
    assert!(timed_out.unwrap_err().is_busy());
    guard.release().await.unwrap();
    let since = Instant::now();
    let guard = holder.try_acquire("key", LockOptions::new()).await.unwrap();
    guard.expect("it is free").release().await.unwrap();
    holder
        .acquire("key", patient())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(since.elapsed() < ms(5), "{:?}", since.elapsed());
}

/// An operator finds whoever holds the lock just after it was passed on, and is heard within a third of the ttl.
#[tokio::test(start_paused = true)]
async fn an_operator_reaches_who_was_passed_the_lock() {
    let ttl = Duration::from_secs(3);
    for by_force in [false, true] {
        let store = TellingStore::new();
        let [first, second, operator] = [(); 3].map(|()| listening(&store));
        for _ in 0..14 {
            let guard = first.acquire("key", patient()).await.unwrap();
            let next = tokio::spawn({
                let second = second.clone();
                async move {
                    second
                        .acquire("key", patient().ttl(ttl).on_lost(OnLost::Signal))
                        .await
                }
            });
            sleep(ms(20)).await;
            guard.release().await.unwrap();
            let guard = next.await.unwrap().unwrap();
            let since = Instant::now();
            if by_force {
                assert!(operator.force_release("key").await.unwrap());
                guard.lost().await;
            } else {
                assert!(operator.revoke("key").await.unwrap());
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
    let kept = locks.with("key", LockOptions::new(), body).await.unwrap();
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
            first.with("key", options.clone(), body()),
            first.with("key", options.clone(), body()),
            second.with("key", options.clone(), body()),
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
    let held = locks.acquire("key", LockOptions::new()).await.unwrap();
    let mut calls: Vec<_> = (0..WAITERS)
        .map(|_| Box::pin(locks.acquire("key", patient())))
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
    let free = locks.try_acquire("key", LockOptions::new()).await.unwrap();
    free.expect("it is free").release().await.unwrap();
}
