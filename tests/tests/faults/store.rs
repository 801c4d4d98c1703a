//! Stores that break their contract: callers get errors in bounded time, and other keys go on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::store::{
    Capabilities, MemoryStore, Outcome, Released, Request, Store, StoreError, StoreErrorKind, StoreFuture,
};
use dblock::{LockError, LockManager, LockOptions};
use dblock_conformance::forward_to_inner;
use dblock_tests::faulty_store::{ALL, Fault, FaultyStore, Kind};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL)
}

fn broken() -> [Fault; 5] {
    [
        Fault::Panic,
        Fault::PanicEarly,
        Fault::TooFew,
        Fault::TooMany,
        Fault::Never,
    ]
}

#[tokio::test(start_paused = true)]
async fn one_bad_answer_is_survived() {
    for fault in broken() {
        let store = FaultyStore::memory();
        let locks = store.manager();
        for kind in ALL {
            store.next(kind, fault.clone());
        }
        let started = Instant::now();
        let wait = options().wait(TTL);
        let body = async {
            locks
                .lock("k")
                .options(&options())
                .wait(TTL)
                .run(async {})
                .await
                .map(|()| store.asked_to(Kind::Extend).len())
        };
        let nested = timeout(TTL, locks.lock("k").options(&wait).run(body))
            .await
            .expect("bounded");
        let extends = nested.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        let extends = extends.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(extends >= 2, "{fault:?}: the re-entry is sent again");
        assert!(
            started.elapsed() <= ms(20_000),
            "{fault:?}: {:?}",
            started.elapsed()
        );
        sleep(ms(10_000)).await;
        assert!(!store.row("k").await.unwrap().is_held(), "{fault:?}");
        // A release is resent for a ttl when the acquire may still be on its way.
        sleep(TTL).await;
        assert_eq!(locks.health().pending_releases, 0, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_store_is_a_store_error_in_bounded_time() {
    for fault in broken() {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.down(&fault);
        for (options, limit) in [(options(), ms(5002)), (options().wait(ms(2000)), ms(2002))] {
            let tried = timeout(limit, locks.lock("k").options(&options).try_acquire()).await;
            assert!(
                matches!(tried, Ok(Err(_))),
                "{fault:?}: busy is not known: {tried:?}"
            );
            let answer = timeout(limit, locks.lock("k").options(&options).acquire()).await;
            let error = answer
                .unwrap_or_else(|_| panic!("{fault:?}: the caller hangs"))
                .unwrap_err();
            assert!(error.is_store() && !error.is_busy(), "{fault:?}: {error:?}");
        }
        store.heal();
        let guard = timeout(
            ms(11_000),
            locks.lock("k").options(&options()).wait(ms(11_000)).acquire(),
        )
        .await
        .unwrap();
        guard
            .unwrap_or_else(|error| panic!("{fault:?}: {error}"))
            .release()
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_breaks_the_store_does_not_stop_the_others() {
    for fault in broken() {
        let store = FaultyStore::memory();
        let locks = store.manager();
        for kind in ALL {
            store.always_for("bad", kind, fault.clone());
        }
        let held = locks.lock("held").ttl(ms(20_000)).acquire().await.unwrap();
        let bad = tokio::spawn({
            let locks = locks.clone();
            async move {
                for _ in 0..4 {
                    let error = locks.lock("bad").options(&options()).acquire().await.unwrap_err();
                    assert!(error.is_store(), "{error:?}");
                }
            }
        });
        for round in 0..40 {
            let started = Instant::now();
            let guard = locks
                .lock(format!("good{round}"))
                .options(&options())
                .wait(ms(11_000))
                .acquire()
                .await
                .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            drop(guard);
            // At worst the lane is taken by the bad key's request until it is given up.
            assert!(
                started.elapsed() <= ms(10_100),
                "{fault:?}: {:?}",
                started.elapsed()
            );
            sleep(ms(500)).await;
        }
        assert!(!held.is_lost(), "{fault:?}: renewals go on");
        drop(held);
        sleep(ms(5_100)).await;
        assert!(!store.row("held").await.unwrap().is_held(), "{fault:?}");
        bad.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn many_keys_share_batches_and_each_stands_alone() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.always_for("k7", Kind::Acquire, Fault::Fail(StoreErrorKind::Other));
    let calls = (0..50).map(|number| {
        let locks = locks.clone();
        async move {
            (
                number,
                locks
                    .lock(format!("k{number}"))
                    .options(&options())
                    .acquire()
                    .await,
            )
        }
    });
    for (number, answer) in join_all(calls).await {
        match answer {
            Ok(guard) => guard.release().await.unwrap(),
            Err(LockError::Store { source, .. }) if number == 7 => {
                assert_eq!(source.kind(), StoreErrorKind::Other);
            }
            Err(error) => panic!("k{number}: {error}"),
        }
    }
    let acquires = store.asked_to(Kind::Acquire);
    let batches: std::collections::BTreeSet<_> = acquires.iter().map(|asked| asked.batch).collect();
    assert_eq!(acquires.len(), 50);
    assert!(batches.len() <= 2, "{} batches", batches.len());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_not_kept_waiting_by_acquires_or_releases_that_hang() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let held = locks.lock("held").ttl(ms(1000)).acquire().await.unwrap();
    let freed = locks.lock("freed").options(&options()).acquire().await.unwrap();
    store.always_for("hangs", Kind::Acquire, Fault::Never);
    store.always_for("freed", Kind::Release, Fault::Never);
    drop(freed);
    let waiter = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock("hangs")
                .options(&options())
                .wait(ms(20_000))
                .acquire()
                .await
        }
    });
    sleep(ms(20_000)).await;
    assert!(!held.is_lost());
    // Its release may have to wait for one that hangs: then it is not confirmed, but not lost either.
    if let Err(error) = held.release().await {
        assert!(error.is_store(), "{error}");
    }
    assert!(waiter.await.unwrap().unwrap_err().is_store());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_always_says_lost_to_acquires_ends_with_the_callers_time() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.always(Kind::Acquire, Fault::Answer(Outcome::Lost));
    let answer = timeout(
        ms(2002),
        locks.lock("k").options(&options()).wait(ms(2000)).acquire(),
    )
    .await;
    assert!(answer.expect("bounded").is_err());
    let asked = store.asked_to(Kind::Acquire).len();
    assert!(asked < 1000, "asked {asked} times without a pause");
}

#[tokio::test(start_paused = true)]
async fn an_answer_to_another_question_is_a_store_error() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let released = Outcome::Released(Released::Before);
    store.always(Kind::Acquire, Fault::Answer(released.clone()));
    let answer = timeout(
        ms(2002),
        locks.lock("k").options(&options()).wait(ms(2000)).acquire(),
    )
    .await;
    assert!(answer.expect("bounded").unwrap_err().is_store());
    store.heal();

    let guard = locks.lock("k").ttl(ms(3000)).acquire().await.unwrap();
    let extended = Outcome::extended(TTL);
    store.next(Kind::Release, Fault::Answer(extended));
    store.next(Kind::Extend, Fault::Answer(Outcome::Skipped));
    sleep(ms(6000)).await;
    guard.release().await.unwrap();
    assert!(!store.row("k").await.unwrap().is_held());
}

/// However many callers meet an outage, what is left to do ends with the last ttl.
#[tokio::test(start_paused = true)]
async fn a_stop_during_an_outage_is_bounded() {
    for fault in [Fault::Never, Fault::Fail(StoreErrorKind::Unreachable)] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        let held = locks.lock("held").options(&options()).acquire().await.unwrap();
        store.down(&fault);
        let waiter = tokio::spawn({
            let locks = locks.clone();
            async move { locks.lock("k").options(&options()).wait_forever().acquire().await }
        });
        sleep(ms(1000)).await;
        let started = Instant::now();
        timeout(ms(3100), locks.shutdown(ms(1000)))
            .await
            .expect("bounded");
        assert!(started.elapsed() >= ms(1000));
        assert!(waiter.await.unwrap().unwrap_err().is_shutdown());
        assert!(held.is_lost());
        let error = timeout(ms(1), locks.lock("k").options(&options()).acquire())
            .await
            .expect("at once")
            .unwrap_err();
        assert!(error.is_shutdown(), "{error:?}");
    }
}

/// A body that the shutdown ends has its release refused when the engine ends, however long the store is
/// silent.
#[tokio::test(start_paused = true)]
async fn a_body_that_a_shutdown_ends_does_not_wait_for_a_silent_store() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let body = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock("k")
                .options(&options())
                .run(std::future::pending::<()>())
                .await
        }
    });
    store.until_asked(Kind::Acquire, 1).await;
    sleep(ms(10)).await;
    store.down(&Fault::Never);
    locks.shutdown(ms(100)).await;
    let ended = timeout(ms(10_000), body).await.expect("bounded").unwrap();
    assert!(ended.unwrap_err().is_lost());
}

/// A store that answers where it is called, in the caller's thread.
#[derive(Debug)]
struct PanicsOnce {
    inner: Arc<dyn Store>,
    panics: AtomicBool,
}

impl Store for PanicsOnce {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        assert!(!self.panics.swap(false, Ordering::Relaxed), "told to panic");
        self.inner.apply(requests)
    }

    forward_to_inner!();
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_a_store_in_the_callers_thread_is_survived() {
    let store = Arc::new(PanicsOnce {
        inner: Arc::new(MemoryStore::new()),
        panics: AtomicBool::new(true),
    });
    assert!(store.capabilities().immediate);
    let locks = LockManager::builder(store as Arc<dyn Store>)
        .build_lazy()
        .unwrap();
    locks
        .lock("k")
        .options(&options())
        .wait(TTL)
        .run(async {})
        .await
        .unwrap();
}

/// The driver hears that the last lock has been released, wherever that was carried out.
#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_with_the_last_lock() {
    let locks = LockManager::builder(MemoryStore::new()).build_lazy().unwrap();
    let day = LockOptions::new().ttl(Duration::from_hours(24));
    let guard = locks.lock("k").options(&day).acquire().await.unwrap();
    let started = Instant::now();
    let release = async {
        sleep(ms(50)).await;
        guard.release().await.unwrap();
    };
    tokio::join!(locks.shutdown(TTL), release);
    assert!(started.elapsed() < ms(1000), "{:?}", started.elapsed());
}
