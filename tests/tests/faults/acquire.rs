//! Acquires that go wrong: of unknown outcome, and while the store is down.
//!
//! On the memory store with paused time: what is said about time is exact.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockGuard, LockManager, LockOptions};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);

/// The store's timeout for a caller without `wait`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn no_wait() -> LockOptions {
    LockOptions::new().ttl(TTL)
}

fn wait(length: Duration) -> LockOptions {
    no_wait().wait(length)
}

/// An acquire that must have its answer after `limit` at the latest.
async fn acquire(locks: &LockManager, options: LockOptions, limit: Duration) -> Result<LockGuard, LockError> {
    timeout(limit, locks.lock("k").options(&options).acquire())
        .await
        .unwrap_or_else(|_| panic!("the caller hangs past {limit:?}"))
}

async fn is_held(store: &FaultyStore) -> bool {
    store.row("k").await.is_some_and(|row| row.is_held())
}

#[tokio::test(start_paused = true)]
async fn resent_releases_never_free_another_lease_and_end_with_the_ttl() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    let guard = acquire(&other, no_wait(), ms(100)).await.unwrap();
    let held = store.row("k").await.unwrap().lease_id;
    // Not carried out, but nobody can know that.
    store.next(Kind::Acquire, Fault::Fail(StoreErrorKind::Interrupted));
    let started = Instant::now();
    let refused = acquire(&locks, no_wait(), ms(100)).await.unwrap_err();
    assert!(refused.is_busy(), "{refused:?}");
    let lost = store.asked()[0].lease_id;

    while started.elapsed() < TTL * 2 {
        sleep(ms(500)).await;
        let row = store.row("k").await.unwrap();
        assert_eq!((row.lease_id, row.is_held()), (held, true));
    }
    let releases: Vec<_> = store
        .asked_to(Kind::Release)
        .into_iter()
        .filter(|asked| asked.lease_id == lost)
        .collect();
    assert!(releases.len() >= 5, "{} releases", releases.len());
    let end = releases.last().unwrap().at - started;
    assert!(end >= TTL && end <= TTL + ms(50), "the last one after {end:?}");
    assert_eq!(locks.health().pending_releases, 0);
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_can_find_lives_for_one_ttl_at_most() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    // Carried out when the releases are not resent any more.
    let delay = TTL + ms(1000);
    store.next(Kind::Acquire, Fault::Late(delay));
    assert!(
        timeout(ms(5), locks.lock("k").options(&wait(TTL)).acquire())
            .await
            .is_err()
    );
    sleep(delay).await;
    assert!(is_held(&store).await);

    let started = Instant::now();
    let guard = acquire(&store.other_process(), wait(TTL * 2), TTL * 2)
        .await
        .unwrap();
    assert!(
        started.elapsed() <= TTL + ms(10),
        "it took {:?}",
        started.elapsed()
    );
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_is_released_at_once() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::SlowReply(ms(300)));
    assert!(
        timeout(ms(100), locks.lock("k").options(&no_wait()).acquire())
            .await
            .is_err()
    );
    assert!(is_held(&store).await);
    sleep(ms(202)).await;
    assert!(!is_held(&store).await);
    assert_eq!(locks.health().pending_releases, 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_neither_busy_nor_acquired() {
    use StoreErrorKind::{Conflict, Interrupted, Other, Refused, Schema, Unreachable, Unsupported};
    let cases = [
        (Fault::Fail(Unreachable), true, true),
        (Fault::Fail(Interrupted), false, true),
        (Fault::Fail(Conflict), false, true),
        (Fault::Never, false, true),
        (Fault::Slow(ms(60_000)), false, true),
        (Fault::Fail(Schema), true, false),
        (Fault::Fail(Refused), true, false),
        (Fault::Fail(Unsupported), true, false),
        (Fault::Fail(Other), true, false),
    ];
    for (fault, at_once, worth_waiting) in cases {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.down(&fault);
        let tries = [
            (no_wait(), ANSWER_TIMEOUT, at_once),
            (wait(ms(3000)), ms(3000), !worth_waiting),
        ];
        for (options, end, at_once) in tries {
            let started = Instant::now();
            let error = acquire(&locks, options, ms(10_000)).await.unwrap_err();
            assert!(error.is_store(), "{fault:?}: {error:?}");
            assert_eq!(error.key().map(dblock::Key::as_str), Some("k"));
            let took = started.elapsed();
            let right = if at_once {
                took <= ms(1)
            } else {
                took >= end && took <= end + ms(2)
            };
            assert!(right, "{fault:?}: the answer took {took:?}");
        }
        let error = locks
            .lock("k")
            .options(&no_wait())
            .try_acquire()
            .await
            .unwrap_err();
        assert!(error.is_store(), "{fault:?}: {error:?}");

        store.heal();
        let limit = ms(11_000);
        let guard = acquire(&locks, wait(limit), limit).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_going_down_under_a_waiter_ends_as_a_store_error() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    let held = other.lock("k").options(&no_wait()).acquire().await.unwrap();
    let fault = async {
        sleep(ms(1000)).await;
        store.down(&Fault::Fail(StoreErrorKind::Unreachable));
    };
    let started = Instant::now();
    let (result, ()) = tokio::join!(acquire(&locks, wait(ms(3000)), ms(3002)), fault);
    let error = result.unwrap_err();
    assert!(error.is_store() && started.elapsed() >= ms(3000), "{error:?}");
    held.release().await.unwrap();
}

/// The lease of this process ends because its renewals hang; whoever waits for it must not hear "busy".
#[tokio::test(start_paused = true)]
async fn a_waiter_for_a_lease_that_the_outage_ended_hears_of_the_outage() {
    for fault in [Fault::Never, Fault::Fail(StoreErrorKind::Unreachable)] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        let short = LockOptions::new().ttl(ms(3000));
        let held = locks.lock("k").options(&short).acquire().await.unwrap();
        store.down(&fault);
        let error = acquire(&locks, short.wait(ms(3500)), ms(3502)).await.unwrap_err();
        assert!(held.is_lost());
        assert!(error.is_store(), "{fault:?}: {error:?}");
    }
}

/// Nobody is inside; only the release could not be written yet.
#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_written_is_not_busy() {
    for fault in [Fault::Never, Fault::Fail(StoreErrorKind::Unreachable)] {
        for options in [no_wait(), wait(ms(3000))] {
            let store = FaultyStore::memory();
            let locks = store.manager();
            let held = locks.lock("k").options(&no_wait()).acquire().await.unwrap();
            store.down(&fault);
            drop(held);
            let error = acquire(&locks, options, ms(5002)).await.unwrap_err();
            assert!(error.is_store(), "{fault:?}: {error:?}");
        }
    }
}

/// Nothing tells the waiter: its process has no other part in the key.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_hears_nothing_gets_in_soon() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    for held_for in [ms(1), ms(150), ms(2_000), ms(20_000)] {
        let held = other.lock("k").options(&no_wait()).acquire().await.unwrap();
        let leaving = async {
            sleep(held_for).await;
            held.release().await.unwrap();
            Instant::now()
        };
        let (guard, free) = tokio::join!(acquire(&locks, wait(TTL), TTL), leaving);
        assert!(
            free.elapsed() < ms(1500),
            "{:?} after {held_for:?}",
            free.elapsed()
        );
        guard.unwrap().release().await.unwrap();
    }
    // The same when the holder never releases: its lease expires.
    let crashed = LockOptions::new().ttl(ms(4000)).renew(false);
    std::mem::forget(other.lock("k").options(&crashed).acquire().await.unwrap());
    let started = Instant::now();
    let guard = acquire(&locks, wait(TTL), TTL).await.unwrap();
    assert!(
        started.elapsed() >= ms(3990) && started.elapsed() < ms(4010),
        "{:?}",
        started.elapsed()
    );
    guard.release().await.unwrap();
}
