//! Sequences of events that once broke a promise of the engine, found by thinking as an adversary. All on a
//! clock that jumps from event to event.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{LockOptions, OnLost};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use tokio::time::{Instant, sleep};

fn ms(length: u64) -> Duration {
    Duration::from_millis(length)
}

fn patient() -> LockOptions {
    LockOptions::new().wait(Duration::from_mins(1))
}

/// A caller that does not wait asks again and again, while its process is to let others in.
#[tokio::test(start_paused = true)]
async fn non_blocking_callers_do_not_keep_another_process_out() {
    let store = FaultyStore::memory();
    let (ours, theirs) = (store.manager(), store.other_process());
    for _ in 0..4 {
        let ours = ours.clone();
        tokio::spawn(async move {
            loop {
                ours.lock("key")
                    .options(&patient())
                    .run(sleep(ms(5)))
                    .await
                    .unwrap();
            }
        });
    }
    tokio::spawn(async move {
        loop {
            // Busy most of the time.
            let _ = ours.lock("key").run(sleep(ms(5))).await;
            sleep(ms(3)).await;
        }
    });
    sleep(ms(500)).await;
    for round in 0..40 {
        sleep(ms(500 + round)).await;
        let since = Instant::now();
        let guard = theirs.lock("key").options(&patient()).acquire().await.unwrap();
        assert!(since.elapsed() < ms(1000), "{:?}", since.elapsed());
        guard.release().await.unwrap();
    }
}

/// A batch of renewals hangs. Were each of them sent alone afterwards, most would come too late.
#[tokio::test(start_paused = true)]
async fn after_one_batch_that_hung_all_leases_are_renewed_in_time() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let mut guards = Vec::new();
    for number in 0..300 {
        let key = format!("key {number}");
        guards.push(locks.lock(key).ttl(ms(3000)).acquire().await.unwrap());
    }
    store.next(Kind::Extend, Fault::Never);
    store.always(Kind::Extend, Fault::Slow(ms(10)));
    sleep(ms(6000)).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    assert_eq!(lost, 0);
}

/// Both end at the same time, and the body is done long before.
#[tokio::test(start_paused = true)]
async fn max_hold_does_not_cut_hold_min_short() {
    for ttl in [30_000, 5_000] {
        let store = FaultyStore::memory();
        let (locks, other) = (store.manager(), store.other_process());
        let options = LockOptions::new()
            .ttl(ms(ttl))
            .max_hold(ms(10_000))
            .hold_min(ms(10_000));
        locks.lock("key").options(&options).run(async {}).await.unwrap();
        for _ in 0..6 {
            sleep(ms(1500)).await;
            let early = other.lock("key").try_acquire().await.unwrap();
            assert!(early.is_none(), "ttl {ttl}");
        }
        sleep(ms(1500)).await;
        assert!(other.lock("key").try_acquire().await.unwrap().is_some());
    }
}

/// A body that only wants a signal goes on after the grace, and asks for another lock.
#[tokio::test(start_paused = true)]
async fn after_the_grace_of_a_shutdown_nobody_gets_in() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let body = tokio::spawn({
        let locks = locks.clone();
        async move {
            let inside = locks.clone();
            let body = async move {
                sleep(ms(1500)).await;
                inside.lock("inner").acquire().await.map(drop)
            };
            locks.lock("outer").on_lost(OnLost::Signal).run(body).await
        }
    });
    sleep(ms(500)).await;
    locks.shutdown(ms(500)).await;
    let inner = body.await.unwrap().unwrap();
    assert!(inner.is_err(), "{inner:?}");
    assert!(store.row("inner").await.is_none(), "nobody has asked for it");
}

/// Two holds end at once, the lock goes on to the next, whose lease is lost before its row is written.
#[tokio::test(start_paused = true)]
async fn who_has_left_is_not_told_of_its_successors_loss() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let plug = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let first = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("key").options(&patient()).acquire().await.unwrap() }
    });
    sleep(ms(1)).await;
    let second = tokio::spawn({
        let locks = locks.clone();
        async move {
            let guard = locks
                .lock("key")
                .options(&patient())
                .max_hold(ms(200))
                .acquire()
                .await
                .unwrap();
            guard.lost().await
        }
    });
    sleep(ms(1)).await;
    plug.release().await.unwrap();
    let outer = first.await.unwrap();
    let inner = outer.enter(locks.lock("key").acquire()).await.unwrap().unwrap();
    store.always(Kind::Extend, Fault::Never);
    let (inner, outer) = tokio::join!(inner.release(), outer.release());
    inner.unwrap();
    outer.unwrap();
    let lost = second.await.unwrap();
    assert!(lost.is_lost(), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn a_hand_over_costs_one_statement() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let plug = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let mut tasks = Vec::new();
    for inside in [1, 1000] {
        let locks = locks.clone();
        tasks.push(tokio::spawn(async move {
            locks
                .lock("key")
                .options(&patient())
                .run(sleep(ms(inside)))
                .await
                .unwrap();
        }));
        sleep(ms(1)).await;
    }
    store.always(Kind::Extend, Fault::Slow(ms(3)));
    plug.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let extends = store.asked_to(Kind::Extend);
    assert_eq!(extends.len(), 1, "{extends:?}");
}

/// The outer body panics while a child that inherited the lock is inside; the child returns later.
#[tokio::test(start_paused = true)]
async fn what_panicked_is_not_handed_on_by_a_child_that_returns() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let plug = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let outer = tokio::spawn({
        let locks = locks.clone();
        async move {
            let body = async {
                tokio::spawn(dblock::inherit(sleep(ms(100))));
                panic!("on purpose");
            };
            locks.lock("key").options(&patient()).run(body).await.unwrap();
        }
    });
    sleep(ms(1)).await;
    let next = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("key").options(&patient()).acquire().await.unwrap() }
    });
    sleep(ms(1)).await;
    plug.release().await.unwrap();
    assert!(outer.await.unwrap_err().is_panic());
    next.await.unwrap().release().await.unwrap();
    assert_eq!(
        store.asked_to(Kind::Acquire).len(),
        3,
        "the third one asked the store"
    );
}
