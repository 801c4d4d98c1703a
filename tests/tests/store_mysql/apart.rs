//! A row that is locked or broken delays no other row.

use std::time::{Duration, Instant};

use dblock::InspectFilter;
use dblock::store::{Outcome, Released, Store, StoreErrorKind};
use sqlx::Connection;

use crate::place::Place;
use crate::{acquire, extend, key, kind, one, release, run, token};

#[tokio::test]
async fn a_row_locked_by_a_users_transaction_stalls_nobody_else() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let held: Vec<_> = (0..20).map(|n| acquire(format!("k{n}"))).collect();
    for answer in store.apply(&held).await {
        token(&answer.unwrap());
    }
    let mut user = place.connection().await;
    let locked = &held[7];
    let fence_token = store.inspect(&InspectFilter::new().prefix("k7")).await.unwrap()[0].fence_token;
    run(&mut user, "BEGIN").await;
    let left = store
        .verify_on(&mut user, &locked.key, locked.lease_id, fence_token)
        .await
        .unwrap();
    assert!(left.is_some());

    let mut fastest = Duration::MAX;
    for round in 0..5 {
        let new = format!("new {round}");
        let started = Instant::now();
        let mut batch: Vec<_> = held.iter().map(|request| extend(request, 1)).collect();
        batch.push(acquire(&new));
        for (request, answer) in batch.iter().zip(store.apply(&batch).await) {
            match answer.unwrap() {
                Outcome::Skipped => assert_eq!(request.key, locked.key),
                Outcome::Extended { .. } => assert_ne!(request.key, locked.key),
                Outcome::Granted { .. } => assert_eq!(request.key, key(&new)),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(one(&store, release(locked)).await, Outcome::Skipped);
        let Outcome::Busy(holder) = one(&store, acquire("k7")).await else {
            panic!("a held key is busy")
        };
        assert_eq!(holder.fence_token, fence_token);
        fastest = fastest.min(started.elapsed());
    }
    // To wait for the lock would take a second in each round.
    assert!(fastest < Duration::from_millis(500), "{fastest:?}");

    run(&mut user, "COMMIT").await;
    assert!(matches!(
        one(&store, release(locked)).await,
        Outcome::Released(Released::Freed)
    ));
}

#[tokio::test]
async fn an_insert_that_waits_holds_back_only_itself() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut other = place.connection().await;
    run(&mut other, "BEGIN").await;
    let insert = format!(
        "INSERT INTO {} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
         wanted_until, acquired_at, holder, revoked) VALUES ('b', '', 0, 0, '', 1, 1, 0, 0, '', 0)",
        place.table
    );
    run(&mut other, &insert).await;
    let batch = [acquire("c"), acquire("b"), acquire("a")];
    let answers = store.apply(&batch).await;
    let outcomes: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert!(matches!(outcomes[0], Outcome::Granted { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Skipped);
    assert!(matches!(outcomes[2], Outcome::Granted { .. }), "{outcomes:?}");
    run(&mut other, "COMMIT").await;
    assert!(matches!(
        one(&store, acquire("b")).await,
        Outcome::Granted { taken_over: None, .. }
    ));
}

#[tokio::test]
async fn a_request_that_the_database_refuses_fails_alone() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let held: Vec<_> = (0..10).map(|n| acquire(format!("k{n}"))).collect();
    for answer in store.apply(&held).await {
        token(&answer.unwrap());
    }
    // More than the column can hold.
    let batch: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(n, request)| extend(request, if n == 4 { u32::MAX } else { 2 }))
        .collect();
    for (n, answer) in store.apply(&batch).await.into_iter().enumerate() {
        match answer {
            Ok(Outcome::Extended { .. }) => assert_ne!(n, 4),
            Err(error) if n == 4 => assert_eq!(error.kind(), StoreErrorKind::Other, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    let rows = store.inspect(&InspectFilter::new()).await.unwrap();
    let counts: Vec<_> = rows.iter().map(|row| row.reentrant_count).collect();
    assert_eq!(counts, [2, 2, 2, 2, 1, 2, 2, 2, 2, 2]);
}

#[tokio::test]
async fn a_table_that_is_being_altered_is_a_conflict_rather_than_a_hang() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    token(&one(&store, acquire("k")).await);
    let mut admin = place.connection().await;
    run(&mut admin, &format!("LOCK TABLES {} WRITE", place.table)).await;
    let started = Instant::now();
    let (kind, _) = kind(store.apply(&[acquire("k"), acquire("l")]).await.pop().unwrap());
    assert_eq!(kind, StoreErrorKind::Conflict);
    assert!(
        started.elapsed() < Duration::from_secs(30),
        "{:?}",
        started.elapsed()
    );
    run(&mut admin, "UNLOCK TABLES").await;
    token(&one(&store, acquire("l")).await);
    admin.close().await.unwrap();
}
