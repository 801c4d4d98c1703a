//! Acquires that go wrong: of unknown outcome, cancelled, and while the store is down.
//!
//! On the memory store with paused time: what is said about time is exact.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Outcome, StoreErrorKind};
use dblock::{LockError, LockGuard, LockManager, LockOptions};
use dblock_tests::faulty_store::{ALL, Asked, Fault, FaultyStore, Kind};
use tokio::time::{Instant, sleep, timeout};

const TTL: Duration = Duration::from_secs(30);

/// What the store's patience allows a caller without `wait`.
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
    timeout(limit, locks.acquire("k", options))
        .await
        .unwrap_or_else(|_| panic!("the caller hangs past {limit:?}"))
}

async fn is_held(store: &FaultyStore) -> bool {
    store.row("k").await.is_some_and(|row| row.is_held())
}

fn kinds(asked: &[Asked]) -> Vec<Kind> {
    asked.iter().map(|asked| asked.kind).collect()
}

#[tokio::test(start_paused = true)]
async fn a_grant_whose_reply_was_lost_is_released_and_a_fresh_lease_is_asked_for() {
    for options in [no_wait(), wait(TTL)] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.next(Kind::Acquire, Fault::ReplyLost);

        let guard = acquire(&locks, options, ms(100)).await.unwrap();

        let asked = store.asked();
        assert_eq!(kinds(&asked), [Kind::Acquire, Kind::Release, Kind::Acquire]);
        assert_eq!(
            asked[0].lease_id, asked[1].lease_id,
            "the lost grant is released by its lease_id"
        );
        assert_ne!(
            asked[0].lease_id, asked[2].lease_id,
            "the next try is a lease of its own"
        );
        let row = store.row("k").await.unwrap();
        assert_eq!((row.lease_id, row.reentrant_count), (asked[2].lease_id, 1));
        assert_eq!(row.fence_token, guard.fence_token());

        guard.release().await.unwrap();
        assert!(!is_held(&store).await);
        assert_eq!(locks.health().pending_releases, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_release_of_a_lost_grant_is_resent_until_it_goes_through() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::ReplyLost);
    for kind in [
        StoreErrorKind::Unreachable,
        StoreErrorKind::Conflict,
        StoreErrorKind::Interrupted,
    ] {
        store.next(Kind::Release, Fault::Fail(kind));
    }
    let started = Instant::now();
    let guard = acquire(&locks, wait(TTL), ms(1000)).await.unwrap();
    assert!(
        started.elapsed() < ms(800),
        "it took {:?}, not the ttl",
        started.elapsed()
    );
    assert_eq!(store.asked_to(Kind::Release).len(), 4);
    guard.release().await.unwrap();
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
async fn an_acquire_that_is_carried_out_late_is_found_by_the_resent_releases() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::Late(ms(2900)));
    let call = locks.acquire("k", wait(TTL));
    let gone = timeout(ms(5), call).await;
    assert!(gone.is_err(), "the caller goes away before the second try");

    sleep(ms(2890)).await;
    assert!(!is_held(&store).await);
    sleep(ms(20)).await;
    assert!(is_held(&store).await, "the late grant is nobody's");
    sleep(ms(400)).await;
    assert!(
        !is_held(&store).await,
        "it is freed by the next release that is resent"
    );
    assert_eq!(store.asked_to(Kind::Acquire).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_late_acquire_does_not_disturb_the_lease_that_was_asked_for_instead() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::Late(ms(2900)));
    let guard = acquire(&locks, no_wait(), ms(100)).await.unwrap();
    let mine = store.row("k").await.unwrap().lease_id;
    sleep(ms(4000)).await;
    let row = store.row("k").await.unwrap();
    assert_eq!((row.lease_id, row.reentrant_count), (mine, 1));
    guard.release().await.unwrap();
    sleep(TTL).await;
    assert!(!is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_free_row_refuses_its_last_lease() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    // The statement comes a second time when its lease was released long ago.
    store.next(Kind::Acquire, Fault::Twice(ms(300)));
    assert!(timeout(ms(5), locks.acquire("k", wait(TTL))).await.is_err());
    let first = store.row("k").await.unwrap();
    assert!(!first.is_held());
    sleep(ms(305)).await;
    let second = store.row("k").await.unwrap();
    assert_eq!((second.lease_id, second.is_held()), (first.lease_id, false));
    assert_eq!(store.asked_to(Kind::Acquire).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_can_find_lives_for_one_ttl_at_most() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    // Carried out when the releases are not resent any more.
    let delay = TTL + ms(1000);
    store.next(Kind::Acquire, Fault::Late(delay));
    assert!(timeout(ms(5), locks.acquire("k", wait(TTL))).await.is_err());
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
async fn a_grant_that_was_lost_for_a_caller_who_goes_away_is_released() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::Mute);
    assert!(timeout(ms(50), locks.acquire("k", no_wait())).await.is_err());
    assert!(is_held(&store).await, "granted, but the reply never comes");
    // The request is given up after a third of the ttl, at most 5 seconds.
    sleep(ms(5000)).await;
    assert!(!is_held(&store).await);
}

/// What the store does with the request of a caller that goes away.
fn answers() -> Vec<(&'static str, Option<Fault>)> {
    vec![
        ("ok", None),
        ("error", Some(Fault::Fail(StoreErrorKind::Unreachable))),
        ("refusal", Some(Fault::Fail(StoreErrorKind::Refused))),
        ("unknown", Some(Fault::Fail(StoreErrorKind::Interrupted))),
        ("slow", Some(Fault::Slow(ms(700)))),
        ("slow reply", Some(Fault::SlowReply(ms(700)))),
        ("never", Some(Fault::Never)),
        ("mute", Some(Fault::Mute)),
        ("reply lost", Some(Fault::ReplyLost)),
        ("late", Some(Fault::Late(ms(700)))),
        ("skipped", Some(Fault::Answer(Outcome::Skipped))),
        ("lost", Some(Fault::Answer(Outcome::Lost))),
    ]
}

/// When the caller goes away.
#[derive(Debug, Clone, Copy)]
enum Leaves {
    BeforeTheFirstPoll,
    BeforeTheRequest,
    WhileTheRequestIsOnItsWay,
    BetweenTwoTries,
    WithTheGrantInItsHand,
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_acquire_leaves_nothing_behind() {
    use Leaves::{
        BeforeTheFirstPoll, BeforeTheRequest, BetweenTwoTries, WhileTheRequestIsOnItsWay,
        WithTheGrantInItsHand,
    };
    for (name, fault) in answers() {
        for options in [no_wait(), wait(TTL)] {
            for leaves in [
                BeforeTheFirstPoll,
                BeforeTheRequest,
                WhileTheRequestIsOnItsWay,
                BetweenTwoTries,
                WithTheGrantInItsHand,
            ] {
                let case = format!("{name}, {leaves:?}, {options:?}");
                let store = FaultyStore::memory();
                let locks = store.manager();
                if let Some(fault) = &fault {
                    store.next(Kind::Acquire, fault.clone());
                }
                {
                    let mut call = Box::pin(locks.acquire("k", options.clone()));
                    match leaves {
                        BeforeTheFirstPoll => {}
                        BeforeTheRequest => assert!(futures_util::poll!(&mut call).is_pending()),
                        WhileTheRequestIsOnItsWay => {
                            assert!(futures_util::poll!(&mut call).is_pending());
                            store.until_asked(Kind::Acquire, 1).await;
                        }
                        BetweenTwoTries => drop(timeout(ms(5), &mut call).await),
                        // Nobody polls the call while its grant comes.
                        WithTheGrantInItsHand => {
                            assert!(futures_util::poll!(&mut call).is_pending());
                            sleep(ms(2000)).await;
                        }
                    }
                }
                // Only an answer that never comes takes the engine's patience; the others are dealt with
                // as soon as they arrive.
                let limit = if matches!(fault, Some(Fault::Never | Fault::Mute)) {
                    ms(5100)
                } else {
                    ms(1600)
                };
                sleep(limit).await;
                assert!(!is_held(&store).await, "{case}: a lock is left behind");
                store.heal();
                let guard = acquire(&locks, no_wait(), ms(100))
                    .await
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                guard.release().await.unwrap();
                sleep(TTL * 2).await;
                assert!(!is_held(&store).await, "{case}: a lock comes to life later");
                assert_eq!(locks.health().pending_releases, 0, "{case}");
                assert!(store.overlaps().is_empty(), "{case}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_is_released_at_once() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.next(Kind::Acquire, Fault::SlowReply(ms(300)));
    assert!(timeout(ms(100), locks.acquire("k", no_wait())).await.is_err());
    assert!(is_held(&store).await);
    sleep(ms(202)).await;
    assert!(!is_held(&store).await);
    assert_eq!(locks.health().pending_releases, 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_the_queue_does_not_stop_those_behind_it() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let held = locks.acquire("k", no_wait()).await.unwrap();
    let mut first = Box::pin(locks.acquire("k", wait(TTL)));
    let mut second = Box::pin(locks.acquire("k", wait(TTL)));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert!(futures_util::poll!(&mut second).is_pending());
    store.next(Kind::Acquire, Fault::SlowReply(ms(300)));
    held.release().await.unwrap();
    store.until_asked(Kind::Acquire, 2).await;
    drop(first);
    let started = Instant::now();
    let guard = timeout(ms(1000), second).await.unwrap().unwrap();
    assert!(
        started.elapsed() >= ms(300),
        "the grant of the first one was not the second one's"
    );
    guard.release().await.unwrap();
    assert!(!is_held(&store).await);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_cancelled_while_busy_is_forgotten() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    let held = other.acquire("k", no_wait()).await.unwrap();
    assert!(timeout(ms(1000), locks.acquire("k", wait(TTL))).await.is_err());
    let asked = store.asked().len();
    sleep(ms(5000)).await;
    assert!(store.asked().len() <= asked + 1, "nobody waits, so nobody asks");
    held.release().await.unwrap();
    sleep(ms(2000)).await;
    assert!(!is_held(&store).await);
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
        let error = locks.try_acquire("k", no_wait()).await.unwrap_err();
        assert!(error.is_store(), "{fault:?}: {error:?}");

        store.heal();
        let limit = ms(11_000);
        let guard = acquire(&locks, wait(limit), limit).await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_with_wait_gets_in_when_the_store_comes_back() {
    for fault in [
        Fault::Fail(StoreErrorKind::Unreachable),
        Fault::Fail(StoreErrorKind::Interrupted),
        Fault::Never,
    ] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.down(&fault);
        let healing = async {
            sleep(ms(7000)).await;
            store.heal();
            Instant::now()
        };
        let (guard, healed) = tokio::join!(acquire(&locks, wait(TTL), TTL), healing);
        let guard = guard.unwrap();
        // At most one request that hangs and its release, or one pause, lie in between.
        assert!(
            healed.elapsed() <= ms(10_100),
            "{fault:?}: {:?}",
            healed.elapsed()
        );
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_going_down_under_a_waiter_ends_as_a_store_error() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    let held = other.acquire("k", no_wait()).await.unwrap();
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
        let held = locks.acquire("k", short.clone()).await.unwrap();
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
            let held = locks.acquire("k", no_wait()).await.unwrap();
            store.down(&fault);
            drop(held);
            let error = acquire(&locks, options, ms(5002)).await.unwrap_err();
            assert!(error.is_store(), "{fault:?}: {error:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_for_one_key_go_one_after_the_other_and_a_retry_goes_first() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let faults = [
        Fault::ReplyLost,
        Fault::Slow(ms(40)),
        Fault::SlowReply(ms(40)),
        Fault::Fail(StoreErrorKind::Interrupted),
        Fault::Fail(StoreErrorKind::Conflict),
        Fault::Answer(Outcome::Skipped),
    ];
    for round in 0..10 {
        for (place, fault) in faults.iter().enumerate() {
            store.next(ALL[(round + place) % 3], fault.clone());
        }
    }
    let tasks: Vec<_> = (0..40)
        .map(|task: u32| {
            let locks = locks.clone();
            tokio::spawn(async move {
                for _ in 0..5 {
                    let nested = async { locks.with("k0", no_wait(), sleep(ms(3))).await.unwrap() };
                    let key = format!("k{}", task % 4);
                    if task.is_multiple_of(4) {
                        locks.with(&key, wait(TTL), nested).await.unwrap();
                    } else {
                        locks.with(&key, wait(TTL), sleep(ms(7))).await.unwrap();
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        timeout(TTL * 4, task).await.unwrap().unwrap();
    }
    assert!(store.overlaps().is_empty(), "{:?}", store.overlaps());
    let asked = store.asked();
    for key in ["k0", "k1", "k2", "k3"] {
        let of_key: Vec<_> = asked.iter().filter(|asked| asked.key.as_str() == key).collect();
        for (one, next) in of_key.iter().zip(&of_key[1..]) {
            assert_ne!(one.batch, next.batch, "two requests for {key} in a batch");
            let unknown = matches!(one.answer, Some(Err(StoreErrorKind::Interrupted)));
            if unknown && one.kind == Kind::Acquire {
                assert_eq!(
                    (next.kind, next.lease_id),
                    (Kind::Release, one.lease_id),
                    "what follows an acquire of unknown outcome"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_busy_acquire_that_waits_says_so_in_the_row_and_only_extends_it() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.manager();
    let held = locks.acquire("k", no_wait()).await.unwrap();
    other.acquire("k", no_wait()).await.unwrap_err();
    assert_eq!(
        store.row("k").await.unwrap().wanted_until,
        0,
        "a caller that does not wait wants nothing"
    );

    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("k", wait(TTL)).await }
    });
    let mut last = 0;
    store.until_asked(Kind::Acquire, 3).await;
    for _ in 0..20 {
        sleep(ms(100)).await;
        let row = store.row("k").await.unwrap();
        assert!(row.wanted_until > row.now, "somebody waits");
        assert!(row.wanted_until >= last, "it is only extended");
        last = row.wanted_until;
    }
    held.release().await.unwrap();
    let guard = timeout(ms(200), waiting).await.unwrap().unwrap().unwrap();
    assert!(
        store.row("k").await.unwrap().wanted_until >= last,
        "a grant does not shorten it"
    );
    guard.release().await.unwrap();
}

/// Nothing tells the waiter: its process has no other part in the key.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_hears_nothing_gets_in_soon() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let other = store.other_process();
    for held_for in [ms(1), ms(150), ms(2_000), ms(20_000)] {
        let held = other.acquire("k", no_wait()).await.unwrap();
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
    std::mem::forget(other.acquire("k", crashed).await.unwrap());
    let started = Instant::now();
    let guard = acquire(&locks, wait(TTL), TTL).await.unwrap();
    assert!(
        started.elapsed() >= ms(3990) && started.elapsed() < ms(4010),
        "{:?}",
        started.elapsed()
    );
    guard.release().await.unwrap();
}
