//! Rights to connect and to write, and connections that end.

use dblock::store::{Acquire, Outcome, Store, StoreErrorKind};
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, asking, release, token};

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
