//! The recipe of docs/using.md for unit tests runs. `cargo xtask book` compares the page with this file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{LockManager, store::MemoryStore};

#[tokio::test(start_paused = true)]
async fn another_node_takes_over_when_the_lease_has_expired() {
    let store = MemoryStore::new();
    let one = LockManager::builder(store.clone()).build().await.unwrap();
    let other = LockManager::builder(store).build().await.unwrap();
    let guard = one.lock("order:42").renew(false).acquire().await.unwrap();
    let busy = other.lock("order:42").acquire().await;
    assert!(busy.unwrap_err().is_busy());
    tokio::time::sleep(Duration::from_secs(30)).await; // takes no time
    assert!(guard.is_lost());
    assert!(other.lock("order:42").acquire().await.is_ok());
}
