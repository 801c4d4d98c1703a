//! Who may connect and do what, and connections that end.

use dblock::store::{Acquire, MySqlStore, Outcome, Store, StoreErrorKind};
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, asking, extend, kind, one, release, token};

#[tokio::test]
async fn connections_that_the_server_closed_while_idle_are_replaced() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    place.user("dblock_idle", "SELECT, INSERT, UPDATE, DELETE").await;
    let store = place.store_as("dblock_idle", "pw");
    let held = [acquire("k"), acquire("l")];
    for answer in store.apply(&held).await {
        token(&answer.unwrap());
    }
    place.kill_connections_of("dblock_idle").await;
    for answer in store.apply(&held.each_ref().map(release)).await {
        let released = answer.unwrap();
        assert!(
            matches!(released, Outcome::Released { freed: true, .. }),
            "{released:?}"
        );
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_refusal_and_never_shown() {
    let Some(place) = Place::bare().await else { return };
    place.user("dblock_known", "").await;
    let store = place.store_as("dblock_known", "hunter2");
    let error = store.apply(&[acquire("k")]).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("check the user name"), "{error}");
    assert!(!format!("{error:?} {store:?}").contains("hunter2"));
}

#[tokio::test]
async fn four_rights_are_enough_once_the_tables_are_there() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    place.user("dblock_plain", "SELECT, INSERT, UPDATE, DELETE").await;
    let store = place.store_as("dblock_plain", "pw");
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    let request = acquire("k");
    token(&one(&store, request.clone()).await);
    assert!(store.revoke(&request.key).await.unwrap());
    assert!(matches!(
        one(&store, extend(&request, 1)).await,
        Outcome::Extended { revoked: true, .. }
    ));
    assert!(store.force_release(&request.key).await.unwrap());
    assert!(!store.force_release(&request.key).await.unwrap());
    assert_eq!(one(&store, release(&request)).await, Outcome::Lost);

    place.user("dblock_reader", "SELECT").await;
    let reader = place.store_as("dblock_reader", "pw");
    let (kind, text) = kind(reader.apply(&[acquire("k")]).await.pop().unwrap());
    assert_eq!(kind, StoreErrorKind::Refused);
    assert!(text.contains("grant SELECT, INSERT, UPDATE and DELETE"), "{text}");
}

#[tokio::test]
async fn no_server_is_unreachable() {
    let store = MySqlStore::open("mysql://root@127.0.0.1:1/x", "locks").unwrap();
    let answers = store.apply(&[acquire("a"), acquire("b")]).await;
    for answer in answers {
        assert_eq!(kind(answer).0, StoreErrorKind::Unreachable);
    }
}

/// A table that was made by hand.
#[tokio::test]
async fn a_holder_that_the_table_cannot_keep_names_the_remedy() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let table = &place.table;
    place
        .run(&format!(
            "ALTER TABLE {table} MODIFY holder VARCHAR(255) CHARACTER SET latin1 NOT NULL"
        ))
        .await;
    let request = asking("k", Acquire::new(Uuid::now_v7(), TTL, "host/1 \u{1f512}"));
    let error = place.store().apply(&[request]).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
    assert!(error.to_string().contains("utf8mb4"), "{error}");
}
