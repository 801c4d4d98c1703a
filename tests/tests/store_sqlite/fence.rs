//! The fence check, in a transaction of the user's.

use dblock::open::sqlite;
use dblock::store::StoreErrorKind;
use sqlx::Connection;
use uuid::Uuid;

use crate::{File, TTL, acquire, assert_error, execute, granted, one, release};

#[tokio::test]
async fn the_fence_check_passes_for_the_lease_only() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    let mut tx = user.begin().await.unwrap();
    let left = sqlite::verify(&mut tx, &*store, &lease.key, lease.lease_id, token)
        .await
        .unwrap();
    assert!(left.is_some_and(|left| left > TTL / 2 && left <= TTL), "{left:?}");
    for (lease_id, token) in [(Uuid::now_v7(), token), (lease.lease_id, token - 1)] {
        let left = sqlite::verify(&mut tx, &*store, &lease.key, lease_id, token)
            .await
            .unwrap();
        assert_eq!(left, None);
    }
    // Until the commit nobody takes the lock over.
    assert_error(one(&*store, &release(&lease)).await, StoreErrorKind::Conflict, "");
    tx.commit().await.unwrap();

    one(&*store, &release(&lease)).await.unwrap();
    let left = sqlite::verify(&mut user, &*store, &lease.key, lease.lease_id, token)
        .await
        .unwrap();
    assert_eq!(left, None, "the lease was released");
}

#[tokio::test]
async fn the_fence_check_with_a_stale_snapshot_is_a_conflict() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;

    let mut tx = user.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM distributed_lock")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    // Since the snapshot the lock has a new owner. The old row is still what the snapshot shows.
    one(&*store, &release(&lease)).await.unwrap();
    granted(&*store, &acquire("k", TTL)).await;
    let answer = sqlite::verify(&mut tx, &*store, &lease.key, lease.lease_id, token).await;
    assert_error(answer, StoreErrorKind::Conflict, "");
    tx.rollback().await.unwrap();
}

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_keeps_everybody_out() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    execute(&mut user, "BEGIN; SAVEPOINT before_the_check").await;
    let left = sqlite::verify(&mut user, &*store, &lease.key, lease.lease_id, token).await;
    assert!(left.unwrap().is_some());
    execute(&mut user, "ROLLBACK TO before_the_check").await;
    assert_error(one(&*store, &release(&lease)).await, StoreErrorKind::Conflict, "");
    execute(&mut user, "COMMIT").await;
    one(&*store, &release(&lease)).await.unwrap();
}

#[tokio::test]
async fn a_fence_check_that_does_not_find_the_table_says_where_to_begin() {
    let (file, other) = (File::migrated().await, File::new());
    let (store, mut user) = (file.store(), other.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    let answer = sqlite::verify(&mut user, &*store, &lease.key, lease.lease_id, token).await;
    assert_error(
        answer,
        StoreErrorKind::Schema,
        "begin it on the file that keeps the lock",
    );
}
