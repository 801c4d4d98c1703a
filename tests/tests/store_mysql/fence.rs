//! The fence check, on a connection of the user's.

use std::time::Duration;

use dblock::LockManager;
use dblock::store::{Outcome, StoreErrorKind};
use sqlx::{Connection as _, MySqlPool};
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, extend, key, kind, one, release, run, token};

#[tokio::test]
async fn the_fence_check_is_right_in_any_session() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    let mut user = place.connection().await;
    for settings in [
        "SET time_zone = '-08:00', sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
        "SET time_zone = '+12:45', sql_mode = ''; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    ] {
        run(&mut user, settings).await;
        run(&mut user, "BEGIN").await;
        let left = store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap();
        let left = left.expect("the lease holds");
        assert!(left <= TTL && left > TTL / 2, "{settings}: {left:?}");
        for (lease, token) in [(Uuid::now_v7(), token), (request.lease_id, token + 1)] {
            assert_eq!(
                store
                    .verify_on(&mut user, &request.key, lease, token)
                    .await
                    .unwrap(),
                None
            );
        }
        assert_eq!(
            store
                .verify_on(&mut user, &key("none"), request.lease_id, token)
                .await
                .unwrap(),
            None
        );
        run(&mut user, "ROLLBACK").await;
    }
    one(&store, release(&request)).await;
    assert_eq!(
        store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_renewal_since_the_users_snapshot_is_never_taken_for_a_loss() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    let mut user = place.connection().await;
    run(
        &mut user,
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    )
    .await;
    // Newer versions of MariaDB refuse to lock a row that changed since the snapshot; MySQL cannot.
    let strict = sqlx::raw_sql("SET SESSION innodb_snapshot_isolation = ON")
        .execute(&mut user)
        .await
        .is_ok();
    run(&mut user, "START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    assert!(matches!(
        one(&store, extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
    let checked = store
        .verify_on(&mut user, &request.key, request.lease_id, token)
        .await;
    if strict {
        assert_eq!(kind(checked).0, StoreErrorKind::Conflict);
    } else {
        assert!(checked.unwrap().is_some());
    }
}

#[tokio::test]
async fn the_clock_does_not_jump_when_daylight_saving_ends() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    // A zone of our own: an hour ahead, two in summer, and summer ends at `end`.
    let end: i64 = 1_761_440_400;
    let mut admin = place.connection().await;
    run(
        &mut admin,
        &format!(
            "INSERT IGNORE INTO mysql.time_zone VALUES (59001, 'N');
             INSERT IGNORE INTO mysql.time_zone_name VALUES ('dblock/Daylight', 59001);
             INSERT IGNORE INTO mysql.time_zone_transition_type VALUES (59001, 0, 3600, 0, 'S'), (59001, 1, 7200, 1, 'D');
             INSERT IGNORE INTO mysql.time_zone_transition VALUES (59001, {}, 1), (59001, {end}, 0)",
            end - 10_000_000
        ),
    )
    .await;
    place
        .run(&format!(
            "UPDATE {} SET expire_at = {}",
            place.table,
            (end + 1_800) * 1_000_000
        ))
        .await;
    let mut user = place.connection().await;
    run(&mut user, "SET time_zone = 'dblock/Daylight'").await;
    for offset in [-1, 1] {
        run(&mut user, &format!("SET timestamp = {}", end + offset)).await;
        let hour: i64 = sqlx::query_scalar("SELECT CAST(HOUR(NOW()) AS SIGNED)")
            .fetch_one(&mut user)
            .await
            .unwrap();
        assert_eq!(hour, 2, "the hour comes twice");
        let left = store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap();
        assert_eq!(
            left,
            Some(Duration::from_secs(u64::try_from(1_800 - offset).unwrap()))
        );
    }
}

/// A manager from a pool learns its database with its first connection, and it starts before that.
#[tokio::test]
async fn the_fence_check_of_a_manager_from_a_pool_names_the_database() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let (database, table) = place.table.split_once('.').unwrap();
    let pool = MySqlPool::connect_lazy_with(place.options().database(database));
    let locks = LockManager::builder(&pool).table(table).build_lazy().unwrap();
    let guard = locks.lock("k").acquire().await.unwrap();
    let mut elsewhere = place.connection().await;
    run(&mut elsewhere, "USE information_schema").await;
    let mut transaction = elsewhere.begin().await.unwrap();
    guard.verify_in(&mut transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    guard.release().await.unwrap();
}
