//! The operators' calls: inspect, revoke, force-release, health.

use std::time::Duration;

use dblock::{InspectFilter, LockError, LostReason};

use super::AnyFixture;
use super::setup::{LONG, RENEWED, Setup, eventually, is_free};

/// `inspect` through a manager: prefix, order and limit.
pub async fn inspect_filters_by_prefix_and_count(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let mut guards = Vec::new();
    for key in ["a%1", "a%2", "a_1", "ab1", "b"] {
        guards.push(locks.lock(key).acquire().await.unwrap());
    }
    let keys = async |filter: InspectFilter| -> Vec<String> {
        let rows = locks.admin().list(filter).await.unwrap();
        rows.iter().map(|row| row.key.to_string()).collect()
    };
    assert_eq!(
        keys(InspectFilter::new().prefix("a%")).await,
        ["a%1", "a%2"],
        "no pattern"
    );
    assert_eq!(keys(InspectFilter::new().prefix("a_")).await, ["a_1"]);
    assert_eq!(
        keys(InspectFilter::new().limit(3)).await,
        ["a%1", "a%2", "a_1"],
        "in order of the bytes"
    );
    assert_eq!(keys(InspectFilter::new().prefix("c")).await, [""; 0]);
}

/// `get` and `is_locked` read one key, held or not, whichever other keys begin with it.
pub async fn a_look_at_one_key_sees_that_key_alone(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let longer = locks.lock("order:42").acquire().await.unwrap();
    assert_eq!(locks.admin().get("order:4").await.unwrap(), None);
    assert!(!locks.admin().is_locked("order:4").await.unwrap());
    let guard = locks.lock("order:4").acquire().await.unwrap();
    for guard in [&longer, &guard] {
        let row = locks.admin().get(guard.key()).await.unwrap().unwrap();
        assert_eq!(
            (row.key.as_str(), row.fence_token),
            (guard.key(), guard.fence_token())
        );
        assert!(row.is_held());
        assert!(locks.admin().is_locked(guard.key()).await.unwrap());
    }
    guard.release().await.unwrap();
    let left = locks
        .admin()
        .get("order:4")
        .await
        .unwrap()
        .is_some_and(|row| row.is_held());
    assert!(!left && !locks.admin().is_locked("order:4").await.unwrap());
    assert!(locks.admin().is_locked("order:42").await.unwrap());
    let refused = locks.admin().get("").await;
    assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
}

/// A revoked lock stays held until its holder leaves; the next lease is not revoked.
pub async fn a_revoked_lock_is_free_when_its_holder_leaves(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let guard = locks.lock("key").acquire().await.unwrap();
    assert!(operator.admin().revoke("key").await.unwrap());
    assert_eq!(
        setup.the_row("key").await.reentrant_count,
        1,
        "its holder is still inside"
    );
    assert!(operator.lock("key").acquire().await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    let next = operator.lock("key").acquire().await.unwrap();
    // The order was for the former lease only.
    operator.lock("other").run(async {}).await.unwrap();
    assert!(!next.is_lost());
}

/// The holder of a revoked lease is told before the end, and the lease is not renewed.
pub async fn a_revoked_lease_is_told_and_not_renewed(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let guard = locks.lock("key").ttl(RENEWED).acquire().await.unwrap();
    assert!(operator.admin().revoke("key").await.unwrap());
    let ends_at = setup.the_row("key").await.expire_at;
    guard.revoked().await;
    assert!(!guard.is_lost(), "told before the end");
    let lost = guard.lost().await;
    assert!(
        matches!(
            lost,
            LockError::Lost {
                reason: LostReason::Revoked,
                ..
            }
        ),
        "{lost:?}"
    );
    if setup.has_clock() {
        let row = setup.until("key", |row| !row.is_held()).await;
        assert_eq!(row.expire_at, ends_at, "it was not renewed");
    }
    operator.lock("key").wait(LONG).run(async {}).await.unwrap();
}

/// A key that was freed by force can be taken at once, with a larger token.
pub async fn a_key_freed_by_force_can_be_taken_at_once(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let former = locks.lock("key").acquire().await.unwrap();
    let row = setup.the_row("key").await;
    assert!(operator.admin().force_release("key").await.unwrap());
    let freed = setup.the_row("key").await;
    assert!(is_free(&freed));
    assert_ne!(
        freed.lease_id, row.lease_id,
        "the former holder's requests find nothing"
    );
    let next = operator.lock("key").acquire().await.unwrap();
    assert!(next.fence_token() > former.fence_token());
}

/// `revoke` and `force_release` of a key that nobody holds find nothing.
pub async fn orders_about_a_free_key_find_nothing(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    for _ in 0..2 {
        assert!(!locks.admin().revoke("key").await.unwrap());
        assert!(!locks.admin().force_release("key").await.unwrap());
        // The second time there is a row, a free one.
        locks.lock("key").run(async {}).await.unwrap();
    }
}

/// `health` says when the store last answered, and counts no pending release at rest.
pub async fn health_says_when_the_store_last_answered(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    assert_eq!(locks.health().last_success, None);
    locks.lock("key").run(async {}).await.unwrap();
    eventually("the release is counted", || locks.health().pending_releases == 0).await;
    let health = locks.health();
    assert!(
        health.last_success.unwrap() < Duration::from_secs(5),
        "{health:?}"
    );
    assert_eq!((health.failing_for, health.last_error), (None, None));
}
