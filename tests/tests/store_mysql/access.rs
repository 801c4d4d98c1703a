//! Rights to connect and to write, and connections that end.

use std::sync::Arc;

use dblock::store::{Acquire, Outcome, Records, Released, Store, StoreError, StoreErrorKind};
use dblock::{LockError, LockManager};
use sqlx::Connection as _;
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, asking, key, release, run, token};

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
            matches!(released, Outcome::Released(Released::Freed)),
            "{released:?}"
        );
    }
}

/// The server's own message names one right, and who is told to grant that meets the next one.
#[tokio::test]
async fn a_refusal_names_all_rights_that_its_statement_needs() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let user = "dblock_reader";
    place.user(user, "SELECT").await;
    let store = place.store_as(user, "pw");
    let names = |error: StoreError, rights: &str| {
        let text = error.to_string();
        let refused = error.kind() == StoreErrorKind::Refused && text.contains("denied");
        assert!(refused && text.contains(rights), "{rights}: {error:?}");
        let migrates = text.contains("CREATE") && text.contains("ALTER");
        assert_eq!(migrates, rights.contains("CREATE"), "{text}");
    };
    let answers = store.apply(&[acquire("k")]).await;
    let locks = "SELECT, INSERT, UPDATE and DELETE on the lock table, and SELECT on its version table";
    names(answers.into_iter().next().unwrap().unwrap_err(), locks);
    let records = "SELECT, INSERT, UPDATE and DELETE on the lock table and on the table of records";
    names(Records::read(&store, &key("k")).await.unwrap_err(), records);

    // It may use the database of the tables, and not the one of the URL.
    let url = format!("mysql://{user}:pw@{}", place.address());
    let mut transaction = MySqlConnection::connect(&url).await.unwrap();
    let manager = LockManager::builder(Arc::new(place.store()) as Arc<dyn Store>);
    let guard = manager.build_lazy().unwrap().lock("k").acquire().await.unwrap();
    run(&mut transaction, "BEGIN").await;
    let Err(LockError::Store { source, .. }) = guard.release_in(&mut transaction).await else {
        panic!("the transaction may only read");
    };
    names(source, "SELECT and UPDATE on the lock table");

    place
        .run(&format!("UPDATE {}_version SET version = 1", place.table))
        .await;
    let migration = "CREATE, ALTER, SELECT, INSERT and UPDATE on the database";
    names(store.migrate().await.unwrap_err(), migration);
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
