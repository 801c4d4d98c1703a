//! Shared and limited locks: together inside, alone outside, or refused by a store that has none.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager};
use futures_util::future::join_all;

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
            tokio::time::sleep(Duration::from_millis(5)).await;
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
