//! Faults while a lock is held: of renewals, re-entries and releases.
//!
//! On the memory store with paused time: what is said about time is exact.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::store::{Outcome, StoreErrorKind};
use dblock::{LockError, LockOptions, LostReason};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use futures_util::FutureExt;
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(3);

/// `TTL` less max(ttl / 20, 50 ms): the local deadline of a lease that is not renewed.
const DEADLINE: Duration = Duration::from_millis(2850);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL)
}

async fn count(store: &FaultyStore) -> u32 {
    store.row("k").await.unwrap().reentrant_count
}

fn lost_reason(error: &LockError) -> LostReason {
    match error {
        LockError::Lost { reason, .. } => *reason,
        other => panic!("not lost: {other:?}"),
    }
}

/// Is set when the body is dropped or done.
struct Inside(Arc<AtomicBool>);

impl Inside {
    fn enter(flag: &Arc<AtomicBool>) -> Self {
        flag.store(true, Ordering::SeqCst);
        Self(Arc::clone(flag))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_fail_are_tried_again_until_the_local_deadline() {
    use StoreErrorKind::{Conflict, Interrupted, Other, Refused, Unreachable};
    for kind in [Unreachable, Interrupted, Conflict, Refused, Other] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        let body = async {
            for _ in 0..3 {
                sleep(ms(500)).await;
                store.always(Kind::Extend, Fault::Fail(kind));
                sleep(ms(1450)).await;
                store.heal();
                sleep(ms(2000)).await;
            }
            "done"
        };
        let result = locks.lock("k").options(&options()).run(body).await;
        assert_eq!(result.unwrap_or_else(|error| panic!("{kind:?}: {error}")), "done");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_ends_just_before_the_local_deadline_is_survived() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let body = async {
        store.always(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
        // Retries come at most a margin apart.
        sleep(ms(2690)).await;
        store.heal();
        sleep(TTL * 2).await;
    };
    locks.lock("k").options(&options()).run(body).await.unwrap();
}

/// The faults that a renewal meets when the database cannot be reached.
fn outages() -> [Fault; 6] {
    [
        Fault::Fail(StoreErrorKind::Unreachable),
        Fault::Fail(StoreErrorKind::Interrupted),
        Fault::Fail(StoreErrorKind::Refused),
        Fault::Never,
        Fault::Slow(ms(3_600_000)),
        Fault::Answer(Outcome::Skipped),
    ]
}

#[tokio::test(start_paused = true)]
async fn an_outage_longer_than_the_lease_stops_the_body_before_the_database_would() {
    for fault in outages() {
        let store = FaultyStore::memory();
        let locks = store.manager();
        let inside = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let body = async {
            let _inside = Inside::enter(&inside);
            store.down(&fault);
            sleep(TTL * 10).await;
        };
        // Only the body's end is looked at here; the call goes on to wait for its release.
        let call = locks.lock("k").options(&options()).run(body);
        let watch = async {
            sleep(ms(2848)).await;
            assert!(inside.load(Ordering::SeqCst), "{fault:?}: stopped too early");
            sleep(ms(4)).await;
            assert!(
                !inside.load(Ordering::SeqCst),
                "{fault:?}: a hanging renewal delays the deadline"
            );
            let row = store.row("k").await.unwrap();
            assert!(row.is_held(), "{fault:?}: the database's lease ends later");
            let left = row.expire_at.since(row.now);
            assert!(
                left >= Duration::from_millis(145),
                "{fault:?}: {left:?} before the database's expiry"
            );
        };
        let (result, ()) = tokio::join!(timeout(TTL * 2, call), watch);
        let error = result.expect("the call does not hang").unwrap_err();
        assert_eq!(lost_reason(&error), LostReason::Expired, "{fault:?}");
        assert!(
            started.elapsed() <= TTL + ms(1),
            "{fault:?}: {:?}",
            started.elapsed()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_carried_out_but_never_answered_moves_nothing() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let started = Instant::now();
    store.always(Kind::Extend, Fault::Mute);
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let error = guard.lost().await;
    assert_eq!(lost_reason(&error), LostReason::Expired);
    let took = started.elapsed();
    assert!(took >= DEADLINE && took <= DEADLINE + ms(1), "{took:?}");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_counts_from_before_the_request_was_sent() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let delay = ms(800);
    store.next(Kind::Acquire, Fault::SlowReply(delay));
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let row = store.row("k").await.unwrap();
    let (remaining, rest) = (guard.remaining(), row.expire_at.since(row.now));
    assert!(remaining + delay <= DEADLINE, "{remaining:?}");
    assert!(
        remaining + Duration::from_millis(145) <= rest,
        "{remaining:?} of {rest:?}"
    );

    // The same for a renewal, and a late reply never moves it beyond the database's.
    store.always(Kind::Extend, Fault::SlowReply(delay));
    for _ in 0..200 {
        sleep(ms(50)).await;
        let row = store.row("k").await.unwrap();
        let (remaining, rest) = (guard.remaining(), row.expire_at.since(row.now));
        assert!(remaining > Duration::ZERO, "slow renewals are good enough");
        assert!(
            remaining + Duration::from_millis(145) <= rest,
            "{remaining:?} of {rest:?}"
        );
    }
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_is_not_revived() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    store.always(Kind::Extend, Fault::Never);
    let error = guard.lost().await;
    assert_eq!(lost_reason(&error), LostReason::Expired);
    store.heal();
    let extends = store.asked_to(Kind::Extend).len();
    // Neither by re-entry nor by renewal, although the row still has the lease.
    assert!(guard.enter(async {}).await.unwrap_err().is_lost());
    sleep(TTL).await;
    assert_eq!(store.asked_to(Kind::Extend).len(), extends);
    assert!(guard.release().await.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn a_reentry_into_a_store_that_is_down_is_an_error_in_bounded_time() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let body = async {
        store.always(Kind::Extend, Fault::Never);
        let started = Instant::now();
        let nested = locks
            .lock("k")
            .options(&options())
            .wait(ms(700))
            .run(async { panic!("it must not enter") });
        let error: LockError = timeout(ms(702), nested)
            .await
            .expect("bounded")
            .map(|(): ()| ())
            .unwrap_err();
        assert!(error.is_store(), "{error:?}");
        assert!(started.elapsed() >= ms(700));
        store.heal();
        sleep(TTL).await;
        assert_eq!(
            count(&store).await,
            1,
            "the hold that did not enter is not counted"
        );
    };
    locks.lock("k").options(&options()).run(body).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_late_release_does_not_free_the_next_lease_of_the_same_process() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    for fault in [Fault::Late(ms(500)), Fault::Twice(ms(500))] {
        locks
            .lock("outer")
            .options(&options())
            .run(async {
                let first = locks.lock("k").options(&options()).acquire().await.unwrap();
                store.next(Kind::Release, fault.clone());
                let owner = first.owner();
                first.release().await.unwrap();
                let second = locks.lock("k").options(&options()).acquire().await.unwrap();
                assert_eq!(second.owner(), owner, "the same chain");
                sleep(ms(1000)).await;
                let row = store.row("k").await.unwrap();
                assert_eq!(
                    (row.is_held(), row.fence_token),
                    (true, second.fence_token()),
                    "{fault:?}"
                );
                second.release().await.unwrap();
            })
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_renewal_changes_nothing_of_the_next_lease() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    store.next(Kind::Extend, Fault::Late(ms(500)));
    store.until_asked(Kind::Extend, 1).await;
    guard.release().await.unwrap();
    let next = store
        .other_process()
        .lock("k")
        .ttl(ms(1000))
        .renew(false)
        .acquire()
        .await
        .unwrap();
    let before = store.row("k").await.unwrap();
    // It arrives while the next lease is alive.
    sleep(ms(600)).await;
    let after = store.row("k").await.unwrap();
    assert_eq!(
        (after.expire_at, after.lease_id),
        (before.expire_at, before.lease_id)
    );
    assert!(after.is_held());
    sleep(ms(500)).await;
    assert!(!store.row("k").await.unwrap().is_held());
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_the_lease_gone_says_so() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    store.other_process().admin().force_release("k").await.unwrap();
    let error = guard.release().await.unwrap_err();
    assert_eq!(lost_reason(&error), LostReason::Gone);
    assert_eq!(
        store.asked_to(Kind::Release).len(),
        1,
        "that is an answer, not a reason to try again"
    );
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_done_keeps_its_result_whatever_happens_to_the_release() {
    for fault in [
        Fault::Never,
        Fault::Mute,
        Fault::Fail(StoreErrorKind::Unreachable),
        Fault::Fail(StoreErrorKind::Other),
    ] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.always(Kind::Release, fault.clone());
        let started = Instant::now();
        let value = timeout(ms(4000), locks.lock("k").run(async { 42 })).await;
        assert_eq!(value.expect("bounded").unwrap(), 42);
        assert!(
            started.elapsed() <= ms(3001),
            "{fault:?}: {:?}",
            started.elapsed()
        );

        // A panic too is kept for no longer.
        let started = Instant::now();
        let body = locks.lock("p").run(async { panic!("of the body") });
        let caught =
            std::panic::AssertUnwindSafe(timeout(ms(4000), body.map(|_: Result<(), _>| ()))).catch_unwind();
        assert!(caught.await.is_err(), "the panic goes on");
        assert!(
            started.elapsed() <= ms(3001),
            "{fault:?}: {:?}",
            started.elapsed()
        );

        store.heal();
        sleep(ms(6000)).await;
        assert_eq!(
            count(&store).await,
            0,
            "{fault:?}: it is released in the background"
        );
        assert_eq!(locks.health().pending_releases, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_lease_waits_for_its_release_no_longer_than_it_lives() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.always(Kind::Release, Fault::Never);
    let started = Instant::now();
    let short = LockOptions::new().ttl(ms(1000));
    timeout(ms(3000), locks.lock("k").options(&short).run(async {}))
        .await
        .expect("bounded")
        .unwrap();
    assert!(started.elapsed() <= ms(1001), "{:?}", started.elapsed());
}
