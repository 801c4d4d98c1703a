//! What an error says beyond its kind, where only a server can bring it about.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::error::Error as _;

use dblock::{LockError, LockOptions};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};

on_every_store!(servers: a_release_under_an_open_transaction_asks_about_it);

async fn a_release_under_an_open_transaction_asks_about_it(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.acquire("key", LockOptions::new()).await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    let unconfirmed = guard.release().await.unwrap_err();
    transaction.commit().await;
    assert!(matches!(unconfirmed, LockError::Store { .. }), "{unconfirmed:?}");
    let text = unconfirmed.source().unwrap().to_string();
    assert!(
        text.ends_with("is a transaction that called `verify_in` still open?"),
        "{text}"
    );
}
