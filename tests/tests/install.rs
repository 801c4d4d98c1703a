//! The installed manager: one for a process, so this test has a process of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dblock::{LockError, LockManager, current, distributed_lock};

#[distributed_lock(key = "key")]
async fn inside() -> Result<String, LockError> {
    Ok(current().unwrap().key().to_owned())
}

#[tokio::test]
async fn the_installed_manager_is_the_last_resort() {
    let before = inside().await;
    assert!(matches!(before, Err(LockError::NoManager)), "{before:?}");
    assert!(before.unwrap_err().to_string().contains("install"));

    let locks = LockManager::connect("memory:").await.unwrap();
    dblock::install(locks.clone()).unwrap();
    assert_eq!(inside().await.unwrap(), "key");
    let spawned = tokio::spawn(inside()).await.unwrap();
    assert_eq!(spawned.unwrap(), "key", "spawned tasks see it");

    let _guard = locks.lock("key").acquire().await.unwrap();
    assert!(inside().await.unwrap_err().is_busy(), "it is this manager");
    let other = LockManager::connect("memory:").await.unwrap();
    assert_eq!(other.scope(inside()).await.unwrap(), "key", "a scope comes first");
    let again: dblock::AlreadyInstalled = dblock::install(other).unwrap_err();
    assert!(again.to_string().contains("`LockManager::scope`"), "{again}");
    assert!(matches!(again.into(), LockError::Invalid { .. }));
    assert!(inside().await.unwrap_err().is_busy(), "the first one stays");
}
