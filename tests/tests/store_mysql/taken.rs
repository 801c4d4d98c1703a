//! The statements that take a key in a user's transaction, and what they leave locked.

use dblock::fence::take_on;
use dblock::store::rules::{Sees, Take};
use dblock::store::{MySqlStore, Outcome, Released, StoreError, StoreErrorKind};
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

use crate::place::Place;
use crate::{acquire, insist, key, kind, one, release, row, run, token};

/// A key that was used, and is free.
async fn free(store: &MySqlStore, name: &str) {
    let request = acquire(name);
    token(&one(store, request.clone()).await);
    assert_eq!(
        insist(store, release(&request)).await,
        Outcome::Released(Released::Freed)
    );
}

async fn begin(user: &mut MySqlConnection, isolation: &str) {
    run(
        user,
        &format!("SET SESSION TRANSACTION ISOLATION LEVEL {isolation}; BEGIN"),
    )
    .await;
}

/// The answer in words.
async fn try_take(store: &MySqlStore, user: &mut MySqlConnection, name: &str) -> Result<String, StoreError> {
    let ask = Take {
        lease_id: Uuid::now_v7(),
        owner: Uuid::now_v7(),
        holder: "a test's ü".into(),
        sees: Sees::FirstSeen,
    };
    let took = take_on(store, user, &key(name), &ask, true).await?;
    Ok(format!("{took:?}"))
}

async fn take(store: &MySqlStore, user: &mut MySqlConnection, name: &str) -> String {
    try_take(store, user, name).await.unwrap()
}

/// A lock on a gap would keep out every new key that lies there; one on a row, its holder.
#[tokio::test]
async fn a_take_that_takes_nothing_locks_nothing() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    free(&store, "ahead").await;
    let ahead = format!(
        "UPDATE {} SET fence_ceiling = fence_ceiling + 3600000000",
        place.table
    );
    run(&mut place.connection().await, &ahead).await;
    let held = acquire("held");
    token(&one(&store, held.clone()).await);
    for (at, isolation) in ["REPEATABLE READ", "READ COMMITTED", "SERIALIZABLE"]
        .into_iter()
        .enumerate()
    {
        let mut user = place.connection().await;
        begin(&mut user, isolation).await;
        let nothing = if isolation == "SERIALIZABLE" {
            "Absent"
        } else {
            "Held"
        };
        assert_eq!(take(&store, &mut user, "held").await, nothing);
        assert_eq!(take(&store, &mut user, "none").await, "Absent");
        let answer = take(&store, &mut user, "ahead").await;
        assert!(
            isolation == "SERIALIZABLE" || answer.starts_with("Ahead"),
            "{answer}"
        );
        // Before, between and after the others.
        for name in ["a", "b", "i", "n", "nona", "nonf", "z"] {
            let new = acquire(format!("{name}{at}"));
            let granted = one(&store, new).await;
            assert!(
                matches!(granted, Outcome::Granted { .. }),
                "{isolation} {name}: {granted:?}"
            );
        }
        let renewed = one(&store, crate::extend(&held, 1)).await;
        assert!(
            matches!(renewed, Outcome::Extended { .. }),
            "{isolation}: {renewed:?}"
        );
        run(&mut user, "ROLLBACK").await;
    }
}

/// Somebody has entered and left since the transaction first read.
#[tokio::test]
async fn an_old_snapshot_takes_nothing() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    for (isolation, answer) in [
        ("REPEATABLE READ", "Locked"),
        ("READ COMMITTED", "Taken"),
        ("SERIALIZABLE", "Absent"),
    ] {
        free(&store, "key").await;
        let before = row(&store, "key").await.fence_token;
        let mut user = place.connection().await;
        begin(&mut user, isolation).await;
        run(&mut user, &format!("SELECT * FROM {}_version", place.table)).await;
        free(&store, "key").await;
        // As a clock would do that was set back.
        let same = format!(
            "UPDATE {} SET fence_token = {before}, fence_ceiling = {before}",
            place.table
        );
        run(&mut place.connection().await, &same).await;
        let took = take(&store, &mut user, "key").await;
        assert!(took.starts_with(answer), "{isolation}: {took}");
        run(&mut user, "ROLLBACK").await;
    }
}

/// MariaDB refuses by itself.
#[tokio::test]
async fn an_old_snapshot_is_a_conflict_where_the_server_sees_it() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    free(&store, "key").await;
    let mut user = place.connection().await;
    let has = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'";
    if sqlx::raw_sql(has)
        .fetch_optional(&mut user)
        .await
        .unwrap()
        .is_none()
    {
        return;
    }
    run(&mut user, "SET innodb_snapshot_isolation = ON").await;
    begin(&mut user, "REPEATABLE READ").await;
    run(&mut user, &format!("SELECT * FROM {}_version", place.table)).await;
    free(&store, "key").await;
    let (refused, _) = kind(try_take(&store, &mut user, "key").await);
    assert_eq!(refused, StoreErrorKind::Conflict);
}

#[tokio::test]
async fn what_another_transaction_has_taken_is_skipped() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    free(&store, "key").await;
    let before = row(&store, "key").await;
    for isolation in ["REPEATABLE READ", "READ COMMITTED"] {
        let (mut one_user, mut other) = (place.connection().await, place.connection().await);
        begin(&mut one_user, isolation).await;
        begin(&mut other, isolation).await;
        let took = take(&store, &mut one_user, "key").await;
        assert!(took.starts_with("Taken"), "{took}");
        assert_eq!(take(&store, &mut other, "key").await, "Skipped");
        assert_eq!(one(&store, acquire("key")).await, Outcome::Skipped);
        run(&mut one_user, "ROLLBACK").await;
        assert_eq!(row(&store, "key").await.lease_id, before.lease_id);
        let took = take(&store, &mut other, "key").await;
        assert!(took.starts_with("Taken"), "{took}");
        run(&mut other, "ROLLBACK").await;
    }
}

/// As the rules say; the server's own clock gives the token.
#[tokio::test]
async fn a_taken_row_is_free_and_names_its_last_owner() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    free(&store, "key").await;
    let change = format!(
        "UPDATE {} SET revoked = TRUE, next_lease = lease_id, next_owner = lock_owner, next_holder = 'next', next_ttl = 1, \
         next_spare = 0, next_since = 1, next_until = 1",
        place.table
    );
    let mut user = place.connection().await;
    run(&mut user, &change).await;
    let before = row(&store, "key").await;
    run(&mut user, "BEGIN").await;
    let took = take(&store, &mut user, "key").await;
    assert!(took.starts_with("Taken"), "{took}");
    run(&mut user, "COMMIT").await;
    let row = row(&store, "key").await;
    assert!(took.contains(&row.fence_token.to_string()), "{took} {row:?}");
    assert!(row.fence_token > before.fence_ceiling && row.fence_token <= row.now.as_micros());
    assert_eq!(row.fence_ceiling, row.fence_token);
    assert_eq!(row.acquired_at.as_micros(), row.fence_token);
    assert_eq!(row.expire_at.as_micros(), row.fence_token);
    assert_eq!(
        (row.reentrant_count, row.revoked, row.next.is_none()),
        (0, false, true)
    );
    assert_eq!(row.holder, "a test's ü");
    assert_ne!((row.lease_id, row.owner), (before.lease_id, before.owner));
}
