//! Keys reach the store unchanged.

use dblock_conformance::look_alikes;

use super::AnyFixture;
use super::setup::Setup;

/// Two keys of 255 bytes that differ in the last character are two locks.
pub async fn the_longest_key_works(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let key = format!("{}é", "k".repeat(253));
    assert_eq!(key.len(), 255);
    let almost = format!("{}è", "k".repeat(253));
    let _guard = locks.lock(&key).acquire().await.unwrap();
    locks
        .lock(&almost)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(setup.the_row(&key).await.reentrant_count, 1, "whole, not cut off");
}

/// Keys that some database, collation or driver takes for each other are different locks, all held at once.
pub async fn keys_that_look_alike_are_locks_of_their_own(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let mut guards = Vec::new();
    for key in look_alikes() {
        let guard = locks.lock(&key).acquire().await;
        guards.push(guard.unwrap_or_else(|error| panic!("{key:?}: {error}")));
    }
    for guard in guards {
        let refused = other.lock(guard.key()).acquire().await;
        assert!(
            refused.is_err_and(|error| error.is_busy()),
            "{:?} is held",
            guard.key()
        );
        let row = setup.the_row(guard.key()).await;
        assert_eq!((row.owner, row.fence_token), (guard.owner(), guard.fence_token()));
        let key = guard.key().to_owned();
        guard.release().await.unwrap();
        assert!(setup.is_free(&key).await);
        other
            .lock(&key)
            .try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}
