//! Faults that meet: a hanging request beside another key's, a loss beside a panic, an old answer beside a
//! new silence.
//!
//! On the memory store with paused time, but for the one body that blocks its thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockOptions, TimeoutCause};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn ttl(count: u64) -> LockOptions {
    LockOptions::new().ttl(ms(count))
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_another_keys_renewal_that_hangs() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let hangs = locks.lock("hangs").options(&ttl(6000)).acquire().await.unwrap();
    let guard = locks.lock("k").options(&ttl(6600)).acquire().await.unwrap();
    store.always_for("hangs", Kind::Extend, Fault::Never);
    store.until_asked(Kind::Extend, 1).await;
    // The renewal of `k` falls due while the one of `hangs` is on its way, which takes 2 seconds at most.
    sleep(ms(700)).await;
    assert_eq!(store.asked_to(Kind::Extend).len(), 1, "the lane is taken");
    let since = Instant::now();
    guard.release().await.unwrap();
    assert!(since.elapsed() < ms(100), "{:?}", since.elapsed());
    drop(hangs);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_wait_for_an_abandoned_acquire_behind_a_release_that_hangs() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let hangs = locks.lock("hangs").options(&ttl(60_000)).acquire().await.unwrap();
    store.always_for("hangs", Kind::Release, Fault::Never);
    store.next(Kind::Acquire, Fault::Fail(StoreErrorKind::Interrupted));
    let guard = locks
        .lock("k")
        .options(&ttl(6000))
        .wait(ms(1000))
        .acquire()
        .await
        .unwrap();
    // The abandoned acquire of the first try is asked for again and again; from here on it waits for its
    // lane.
    drop(hangs);
    sleep(ms(2100)).await;
    assert!(
        !store.asked_to(Kind::Extend).is_empty(),
        "the renewal was due after 2 seconds"
    );
    assert!(!guard.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_old_busy_answer_is_no_answer_for_a_later_caller() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let held = store
        .other_process()
        .lock("k")
        .options(&ttl(60_000))
        .acquire()
        .await
        .unwrap();
    let first = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock("k")
                .options(&ttl(3000))
                .wait(ms(20_000))
                .acquire()
                .await
        }
    });
    sleep(ms(3000)).await;
    store.always(Kind::Acquire, Fault::Never);
    sleep(ms(1500)).await;
    let error = locks
        .lock("k")
        .options(&ttl(3000))
        .wait(ms(300))
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(
            error,
            LockError::Timeout {
                cause: TimeoutCause::NoAnswer,
                ..
            }
        ),
        "the store has not answered in this caller's time: {error:?}"
    );
    assert!(first.await.unwrap().unwrap_err().is_store());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn an_untaken_grant_is_released_soon_after_an_outage() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::ReplyLost);
    store.always(Kind::Release, Fault::Fail(StoreErrorKind::Unreachable));
    let call = locks.lock("k").options(&ttl(600_000)).acquire();
    assert!(
        tokio::time::timeout(ms(5), call).await.is_err(),
        "the caller goes away"
    );
    assert!(
        store.row("k").await.unwrap().is_held(),
        "carried out, and nobody knows"
    );
    sleep(ms(60_000)).await;
    store.heal();
    sleep(ms(1100)).await;
    assert!(!store.row("k").await.unwrap().is_held());
}

#[tokio::test]
async fn a_panic_is_shown_even_when_the_lease_is_lost() {
    let locks = FaultyStore::memory().manager();
    let body = async {
        // No await: the deadline passes inside of one poll.
        std::thread::sleep(ms(1050));
        panic!("a bug");
    };
    let call = AssertUnwindSafe(locks.lock("k").options(&ttl(1000)).renew(false).run(body));
    let panic: Result<Result<(), _>, _> = call.catch_unwind().await;
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "a bug");
}
