//! What an operator can see and order: inspect, revoke, free by force, health.

use std::time::Duration;

use dblock::{InspectFilter, LostReason};
use dblock_tests::backend::eventually;
use dblock_tests::{Backend, on_every_store};

use crate::{LONG, long, short};

on_every_store!(
    inspect_shows_what_the_rows_have,
    inspect_filters_by_prefix_and_count,
    a_revoked_lock_is_free_when_its_holder_leaves,
    force_release_frees_at_once,
    orders_about_a_free_key_find_nothing,
    health_says_when_the_store_last_answered,
);
on_every_store!(paused time: a_revoked_lease_is_told_and_not_renewed);

async fn inspect_shows_what_the_rows_have(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let guard = locks
        .acquire("key", long().function("shop::settle"))
        .await
        .unwrap();
    let rows = operator.inspect(InspectFilter::new()).await.unwrap();
    let [shown] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    let row = backend.the_row("key").await;
    assert!(shown.is_held());
    assert_eq!(
        (shown.key.as_str(), shown.owner, shown.reentrant_count),
        ("key", guard.owner(), 1)
    );
    assert_eq!(
        (shown.lease_id, shown.fence_token),
        (row.lease_id, guard.fence_token())
    );
    assert_eq!(
        (shown.expire_at, shown.acquired_at),
        (row.expire_at, row.acquired_at)
    );
    assert!(shown.holder.ends_with(" shop::settle"), "{}", shown.holder);
    assert!(
        shown.holder.contains(&format!("/{} ", std::process::id())),
        "{}",
        shown.holder
    );
    assert_eq!(shown.holder, row.holder);
    guard.release().await.unwrap();
    assert_eq!(operator.inspect(InspectFilter::new()).await.unwrap(), []);
    let free = operator
        .inspect(InspectFilter::new().include_free())
        .await
        .unwrap();
    assert!(
        matches!(free.as_slice(), [row] if !row.is_held() && row.reentrant_count == 0),
        "{free:?}"
    );
}

async fn inspect_filters_by_prefix_and_count(backend: Backend) {
    let locks = backend.manager().await;
    let mut guards = Vec::new();
    for key in ["a%1", "a%2", "a_1", "ab1", "b"] {
        guards.push(locks.acquire(key, long()).await.unwrap());
    }
    let keys = async |filter: InspectFilter| -> Vec<String> {
        let rows = locks.inspect(filter).await.unwrap();
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

async fn a_revoked_lock_is_free_when_its_holder_leaves(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let guard = locks.acquire("key", long()).await.unwrap();
    assert!(operator.revoke("key").await.unwrap());
    assert_eq!(
        backend.the_row("key").await.reentrant_count,
        1,
        "its holder is still inside"
    );
    assert!(operator.acquire("key", long()).await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    let next = operator.acquire("key", long()).await.unwrap();
    // The order was for the former lease only.
    operator.with("other", long(), async {}).await.unwrap();
    assert!(!next.is_lost());
}

async fn a_revoked_lease_is_told_and_not_renewed(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let guard = locks.acquire("key", short()).await.unwrap();
    assert!(operator.revoke("key").await.unwrap());
    let ends_at = backend.the_row("key").await.expire_at;
    guard.revoked().await;
    assert!(!guard.is_lost(), "told before the end");
    let lost = guard.lost().await;
    assert!(
        matches!(
            lost,
            dblock::LockError::Lost {
                reason: LostReason::Revoked,
                ..
            }
        ),
        "{lost:?}"
    );
    assert_eq!(
        backend.the_row("key").await.expire_at,
        ends_at,
        "it was not renewed"
    );
    operator.with("key", long().wait(LONG), async {}).await.unwrap();
}

async fn force_release_frees_at_once(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let former = locks.acquire("key", long()).await.unwrap();
    let row = backend.the_row("key").await;
    assert!(operator.force_release("key").await.unwrap());
    let freed = backend.the_row("key").await;
    assert!(freed.is_free());
    assert_ne!(
        freed.lease_id, row.lease_id,
        "the former holder's requests find nothing"
    );
    let next = operator.acquire("key", long()).await.unwrap();
    assert!(next.fence_token() > former.fence_token());
}

async fn orders_about_a_free_key_find_nothing(backend: Backend) {
    let locks = backend.manager().await;
    for _ in 0..2 {
        assert!(!locks.revoke("key").await.unwrap());
        assert!(!locks.force_release("key").await.unwrap());
        // The second time there is a row, a free one.
        locks.with("key", long(), async {}).await.unwrap();
    }
}

async fn health_says_when_the_store_last_answered(backend: Backend) {
    let locks = backend.manager().await;
    assert_eq!(locks.health().last_success, None);
    locks.with("key", long(), async {}).await.unwrap();
    eventually("the release is counted", || locks.health().pending_releases == 0).await;
    let health = locks.health();
    assert!(
        health.last_success.unwrap() < Duration::from_secs(5),
        "{health:?}"
    );
    assert_eq!((health.failing_for, health.last_error), (None, None));
}
