//! Keys reach the store as they are.

use super::site::{Site, long};
use crate::Fixture;
use crate::keys::look_alikes;

/// Two keys of 255 bytes that differ in the last character are two locks.
pub async fn the_longest_key_works(fixture: &impl Fixture) {
    let site = Site::new(fixture).await;
    let locks = site.manager().await;
    let key = format!("{}é", "k".repeat(253));
    assert_eq!(key.len(), 255);
    let almost = format!("{}è", "k".repeat(253));
    let _guard = locks.lock(&key).options(&long()).acquire().await.unwrap();
    locks
        .lock(&almost)
        .options(&long())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(site.the_row(&key).await.reentrant_count, 1, "whole, not cut off");
}

/// Keys that some database, collation or driver takes for one another are locks of their own, all held at
/// once.
pub async fn keys_that_look_alike_are_locks_of_their_own(fixture: &impl Fixture) {
    let site = Site::new(fixture).await;
    let (locks, other) = (site.manager().await, site.manager().await);
    let mut guards = Vec::new();
    for key in look_alikes() {
        let guard = locks.lock(&key).options(&long()).acquire().await;
        guards.push(guard.unwrap_or_else(|error| panic!("{key:?}: {error}")));
    }
    for guard in guards {
        let refused = other.lock(guard.key()).options(&long()).acquire().await;
        assert!(
            refused.is_err_and(|error| error.is_busy()),
            "{:?} is held",
            guard.key()
        );
        let row = site.the_row(guard.key()).await;
        assert_eq!((row.owner, row.fence_token), (guard.owner(), guard.fence_token()));
        let key = guard.key().to_owned();
        guard.release().await.unwrap();
        assert!(site.is_free(&key).await);
        other
            .lock(&key)
            .options(&long())
            .try_acquire()
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}
