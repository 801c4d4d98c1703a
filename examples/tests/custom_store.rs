//! The store of `examples/custom_store` keeps the contract, which one line shows, and works through a manager.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use dblock::store::Store;
use dblock::{LockManager, current};
use dblock_conformance::Fixture;
use dblock_examples::custom_store::FileStore;
use tempfile::TempDir;

struct InAFolder(TempDir);

impl Fixture for InAFolder {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(FileStore::new(self.0.path().join("locks.json")))
    }
}

dblock_conformance::store_conformance!(Some(InAFolder(tempfile::tempdir().unwrap())));

/// A lock is taken, waited for, taken again inside, lost and released.
#[tokio::test]
async fn a_lock_goes_from_one_manager_to_another() {
    const WAIT: Duration = Duration::from_mins(1);
    let folder = tempfile::tempdir().unwrap();
    let store = || FileStore::new(folder.path().join("locks.json"));
    // In a program these would be two processes.
    let here = LockManager::builder(store()).build().await.unwrap();
    let there = LockManager::builder(store()).build().await.unwrap();

    let guard = here.lock("key").acquire().await.unwrap();
    assert!(there.lock("key").try_acquire().await.unwrap().is_none());
    let (next, released) = tokio::join!(there.lock("key").wait(WAIT).acquire(), guard.release());
    released.unwrap();
    let next = next.unwrap();
    let inside = there.lock("key").run(async { current().unwrap().hold_count() });
    assert_eq!(next.enter(inside).await.unwrap().unwrap(), 2);

    here.admin().force_release("key").await.unwrap();
    let last = here.lock("key").acquire().await.unwrap();
    assert!(last.fence_token() > next.fence_token());
    assert!(next.release().await.unwrap_err().is_lost());
    last.release().await.unwrap();
    assert!(!here.admin().is_locked("key").await.unwrap());
}
