//! Several managers of one process over the same handle.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::Store;
use dblock::{InspectFilter, LockGuard, LockManager, StoreSource};

use super::AnyFixture;
use super::setup::{LONG, Setup};

/// After the end of a manager the others use the same handle as before: their locks go on, are passed on, and
/// are taken. After the end of the last one a new manager can use it.
pub async fn a_manager_that_ends_leaves_the_store_to_others(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let store = fixture.store().await;
    let manager = async |namespace: &str| {
        let source = StoreSource::from(Arc::clone(&store) as Arc<dyn Store>);
        let built = LockManager::builder(source).namespace(namespace).build().await;
        built.unwrap_or_else(|error| panic!("no manager over the store: {error}"))
    };
    for _ in 0..2 {
        let (first, second) = (manager("first").await, manager("second").await);
        let guard = first.lock("key").acquire().await.unwrap();
        guard.release().await.unwrap();
        let held = second.lock("key").acquire().await.unwrap();
        keys_are_those_that_were_typed(&second, &held).await;
        // A caller of another process waits, so the second manager's end of the lock has something to pass on.
        let other = LockManager::builder(fixture.store().await)
            .namespace("second")
            .build()
            .await;
        let other = other.unwrap();
        let waiter =
            tokio::spawn(async move { other.lock("key").wait(LONG).acquire().await?.release().await });
        first.shutdown(Duration::ZERO).await;

        second
            .lock("other")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        held.extend(LONG).await.unwrap();
        held.release().await.unwrap();
        waiter.await.unwrap().unwrap();
        assert!(
            second
                .admin()
                .get("other")
                .await
                .unwrap()
                .is_none_or(|row| !row.is_held())
        );
        second.shutdown(Duration::ZERO).await;
    }
    // The handle itself too.
    setup.until_free("second:key").await;
}

/// The namespace is the store's, and shows in no key that a manager gives.
async fn keys_are_those_that_were_typed(locks: &LockManager, held: &LockGuard) {
    assert_eq!((held.key(), held.full_key()), ("key", "second:key"));
    assert!(locks.admin().is_locked(held.key()).await.unwrap());
    let inside = held.enter(async { dblock::current().map(|lock| lock.key().to_owned()) });
    assert_eq!(inside.await.unwrap().as_deref(), Some("key"));
    let rows = locks.admin().list(InspectFilter::new()).await.unwrap();
    assert!(rows.iter().any(|row| row.key.as_str() == "key"), "{rows:?}");
    let busy = locks.lock("key").acquire().await.unwrap_err();
    assert_eq!(busy.key().map(dblock::Key::as_str), Some("key"));
    assert!(!busy.to_string().contains("second"), "{busy}");
}
