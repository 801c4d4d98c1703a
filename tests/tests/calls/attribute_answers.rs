//! The attribute's arguments at run time, where they are more than options of the call.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{InspectFilter, LockError, LockManager, distributed_lock};
use tokio::sync::Barrier;

#[distributed_lock(key = "job", on_busy = Ok("skipped"), manager = locks)]
async fn skips(locks: &LockManager) -> Result<&'static str, LockError> {
    Ok("done")
}

#[distributed_lock(key = "job", on_error = |error| error.to_string(), manager = locks)]
async fn tells(locks: &LockManager) -> String {
    "done".to_owned()
}

#[distributed_lock(key = "job", wait = "50ms", on_busy = "busy", on_error = |_| "failed", manager = locks)]
async fn answers(locks: &LockManager) -> &'static str {
    "done"
}

#[distributed_lock(key = "outer", manager = locks)]
#[distributed_lock(key = "inner:{id}", manager = locks)]
async fn stacked(locks: &LockManager, id: u32) -> Result<Vec<String>, LockError> {
    let mut rows = locks.admin().list(InspectFilter::new()).await?;
    rows.sort_by_key(|row| row.fence_token);
    Ok(rows.into_iter().map(|row| row.key.to_string()).collect())
}

#[distributed_lock(key = "catalog", shared, on_busy = Ok("busy"), manager = locks)]
async fn reads(locks: &LockManager, all_inside: &Barrier) -> Result<&'static str, LockError> {
    all_inside.wait().await;
    all_inside.wait().await;
    Ok("done")
}

#[distributed_lock(key = "provider", limit = most, on_busy = Ok("busy"), manager = locks)]
async fn charges(locks: &LockManager, most: u32, all_inside: &Barrier) -> Result<&'static str, LockError> {
    all_inside.wait().await;
    all_inside.wait().await;
    Ok("done")
}

#[tokio::test(start_paused = true)]
async fn shared_and_limited_calls_run_beside_each_other() {
    let locks = LockManager::connect("memory:").await.unwrap();
    let all_inside = Barrier::new(3);
    let tried = async {
        all_inside.wait().await;
        let alone = locks.lock("catalog").try_acquire().await.unwrap();
        all_inside.wait().await;
        alone.is_none()
    };
    let (one, two, busy) = tokio::join!(reads(&locks, &all_inside), reads(&locks, &all_inside), tried);
    assert_eq!((one.unwrap(), two.unwrap(), busy), ("done", "done", true));

    let charge = |most| charges(&locks, most, &all_inside);
    let third = async {
        all_inside.wait().await;
        let third = charge(2).await;
        all_inside.wait().await;
        third
    };
    let (one, two, third) = tokio::join!(charge(2), charge(2), third);
    assert_eq!(
        (one.unwrap(), two.unwrap(), third.unwrap()),
        ("done", "done", "busy")
    );
    let refused = charge(0).await.unwrap_err();
    assert!(refused.to_string().contains("limit is 0"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn busy_and_errors_become_what_the_attribute_says() {
    let locks = LockManager::connect("memory:").await.unwrap();
    assert_eq!(skips(&locks).await.unwrap(), "done");
    assert_eq!(tells(&locks).await, "done");
    assert_eq!(answers(&locks).await, "done");

    let guard = locks.lock("job").acquire().await.unwrap();
    assert_eq!(skips(&locks).await.unwrap(), "skipped");
    assert!(tells(&locks).await.contains("is busy"));
    assert_eq!(answers(&locks).await, "busy", "a wait that is over is busy too");
    guard.release().await.unwrap();

    locks.shutdown(Duration::ZERO).await;
    assert!(
        skips(&locks).await.unwrap_err().is_shutdown(),
        "a failure is not busy"
    );
    assert_eq!(answers(&locks).await, "failed");
}

// Not with paused time: the order shows in the tokens, which follow the clock.
#[tokio::test]
async fn stacked_attributes_take_the_outermost_lock_first() {
    let locks = LockManager::connect("memory:").await.unwrap();
    assert_eq!(stacked(&locks, 7).await.unwrap(), ["outer", "inner:7"]);
}
