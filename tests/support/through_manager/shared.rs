//! Shared and limited locks: together inside, alone outside, or refused by a store that has none.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions};
use futures_util::future::join_all;
use tokio::sync::Barrier;
use tokio::time::{Instant, sleep};

use super::AnyFixture;
use super::setup::{LONG, Setup};

/// Two managers share a key, and a third gets it alone when both have left.
pub async fn managers_share_a_key_or_are_refused(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, two) = (setup.manager().await, setup.manager().await);
    let share = async |locks: &LockManager| locks.lock("key").ttl(LONG).wait(LONG).shared().acquire().await;
    if !setup.shares() {
        match share(&one).await {
            Err(LockError::Store { source, .. }) => {
                assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
            }
            other => panic!("{other:?}"),
        }
        return;
    }
    let (first, second) = (share(&one).await.unwrap(), share(&two).await.unwrap());
    let again = share(&two).await.unwrap();
    assert!(one.lock("key").ttl(LONG).try_acquire().await.unwrap().is_none());
    let alone = one.lock("key").ttl(LONG).wait(LONG).acquire();
    let leave = async {
        for guard in [first, again, second] {
            guard.release().await.unwrap();
        }
    };
    let (alone, ()) = tokio::join!(alone, leave);
    let alone = alone.unwrap();
    assert!(
        two.lock("key")
            .ttl(LONG)
            .shared()
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    alone.release().await.unwrap();
    assert!(setup.is_free("key").await);
}

/// Three managers have more callers than may be inside.
pub async fn a_limit_holds_over_managers(fixture: &dyn AnyFixture) {
    const LIMIT: u32 = 2;
    let setup = Setup::new(fixture).await;
    if !setup.shares() {
        return;
    }
    let (inside, most) = (AtomicU32::new(0), AtomicU32::new(0));
    let managers = [
        setup.manager().await,
        setup.manager().await,
        setup.manager().await,
    ];
    let calls = managers.iter().cycle().take(30).map(async |locks| {
        let body = async {
            most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
            sleep(Duration::from_millis(5)).await;
            inside.fetch_sub(1, SeqCst);
        };
        locks
            .lock("key")
            .ttl(LONG)
            .wait(LONG * 2)
            .limit(LIMIT)
            .run(body)
            .await
    });
    for done in join_all(calls).await {
        done.unwrap();
    }
    assert_eq!(most.into_inner(), LIMIT);
    assert!(setup.is_free("key").await);
}

fn patient() -> LockOptions {
    LockOptions::new().ttl(LONG).wait(LONG * 2)
}

/// Readers overlap without end, and a writer waits for 3 seconds at most.
pub async fn a_writer_gets_in_beside_readers_that_overlap(fixture: &dyn AnyFixture) {
    nobody_starves(fixture, &patient(), &patient().shared()).await;
}

/// Writers follow each other without end, and a reader waits for 3 seconds at most.
pub async fn readers_get_in_beside_writers_that_follow_each_other(fixture: &dyn AnyFixture) {
    nobody_starves(fixture, &patient().shared(), &patient()).await;
}

/// A limit is always used up, and one who waits for a place waits for 3 seconds at most.
pub async fn a_waiter_for_one_place_gets_in_beside_newcomers(fixture: &dyn AnyFixture) {
    nobody_starves(fixture, &patient().limit(2), &patient().limit(2)).await;
}

/// Calls of one kind beside calls of another kind that never stop, in two processes.
async fn nobody_starves(fixture: &dyn AnyFixture, waiter: &LockOptions, others: &LockOptions) {
    let setup = Setup::new(fixture).await;
    if !setup.shares() {
        return;
    }
    let (one, two) = (setup.manager().await, setup.manager().await);
    let end = Barrier::new(7);
    let others = [&one, &two].repeat(3).into_iter().map(async |locks| {
        let follow_each_other = async {
            loop {
                let lock = locks.lock("key").options(others);
                lock.run(sleep(Duration::from_millis(5))).await.unwrap();
            }
        };
        tokio::select! {
            biased;
            _ = end.wait() => {}
            () = follow_each_other => {}
        }
    });
    let waits = async {
        for locks in [&one, &two].repeat(5) {
            let since = Instant::now();
            let guard = locks.lock("key").options(waiter).acquire().await.unwrap();
            let took = since.elapsed();
            assert!(took < Duration::from_secs(3), "{took:?}");
            guard.release().await.unwrap();
        }
        end.wait().await;
    };
    tokio::join!(join_all(others), waits);
}
