//! The messages of errors that only a server can bring about.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dblock::LockError;
use dblock::store::StoreErrorKind;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, Kind, on_every_store};

on_every_store!(servers: a_release_under_an_open_transaction_asks_about_it);
on_every_store!(databases: a_fence_check_that_does_not_find_the_table_says_where_to_begin);

async fn a_release_under_an_open_transaction_asks_about_it(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    let unconfirmed = guard.release().await.unwrap_err();
    transaction.commit().await;
    assert!(
        matches!(unconfirmed, LockError::Unconfirmed { .. }),
        "{unconfirmed:?}"
    );
    let text = unconfirmed.to_string();
    assert!(
        text.ends_with("is a transaction that called `verify_in` still open?"),
        "{text}"
    );
}

/// As when the transaction is on another database, or looks in other schemas.
async fn a_fence_check_that_does_not_find_the_table_says_where_to_begin(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    backend.execute("DROP TABLE {table}").await;
    let mut transaction = Transaction::begin(&backend).await;
    let LockError::Store { source, .. } = transaction.verify(&guard).await.unwrap_err() else {
        panic!("a table that is not there says nothing of the lease");
    };
    assert_eq!(source.kind(), StoreErrorKind::Schema, "{source}");
    let remedy = match backend.kind() {
        Kind::Postgres => "name the table with its schema",
        Kind::MySql => "name the table with its database",
        _ => "begin it on the file that keeps the lock",
    };
    assert!(source.to_string().contains(remedy), "{source}");
    transaction.rollback().await;
}
