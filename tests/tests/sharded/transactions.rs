//! Fence checks on shards: on the database of the key's own shard.

use std::sync::Arc;

use dblock::store::{Store, StoreErrorKind};
use dblock::{LockError, LockManager};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, Kind, on_every_store};

use crate::{key_of, long, shards};
use dblock_conformance::Fixture as _;

on_every_store!(databases: a_check_is_on_the_shard_of_the_key);

async fn a_check_is_on_the_shard_of_the_key(a: Backend) {
    let b = Backend::new(a.kind()).await.unwrap();
    let stores = [a.store().await, b.store().await];
    let store = shards([("a", &stores[0]), ("b", &stores[1])]);
    assert!(store.capabilities().verify_in);
    let (of_a, of_b) = (key_of(&store, "a"), key_of(&store, "b"));
    let locks = LockManager::builder(store).build_lazy().unwrap();
    for (key, backend) in [(&of_a, &a), (&of_b, &b)] {
        let guard = locks.lock(key.as_str()).options(&long()).acquire().await.unwrap();
        let mut transaction = Transaction::begin(backend).await;
        transaction.verify(&guard).await.unwrap();
        transaction.commit().await;
        guard.release().await.unwrap();
    }
}

/// While a key moves one row is not enough; a key that stays is checked as ever.
#[tokio::test]
async fn a_key_that_moves_is_not_checked() {
    let Some(a) = Backend::new(Kind::Sqlite).await else {
        return;
    };
    let (one, other): (Arc<dyn Store>, Arc<dyn Store>) = (a.store().await, a.store().await);
    let old = shards([("a", &one)]);
    let new = shards([("a", &one), ("b", &other)]);
    let stays = key_of(&new, "a");
    let store = old.moving_to(new).unwrap();
    assert!(!store.capabilities().verify_in);
    let locks = LockManager::builder(store).build_lazy().unwrap();
    let guard = locks
        .lock(stays.as_str())
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let mut transaction = Transaction::begin(&a).await;
    transaction.verify(&guard).await.unwrap();
    transaction.commit().await;
    guard.release().await.unwrap();

    let [b, c] = [
        Backend::new(Kind::Sqlite).await.unwrap(),
        Backend::new(Kind::Sqlite).await.unwrap(),
    ];
    let stores = [b.store().await, c.store().await];
    let store = shards([("b", &stores[0])])
        .moving_to(shards([("c", &stores[1])]))
        .unwrap();
    let locks = LockManager::builder(store).build_lazy().unwrap();
    let guard = locks.lock("k").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&c).await;
    match transaction.verify(&guard).await {
        Err(LockError::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
            assert!(source.to_string().contains("moving"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    transaction.commit().await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}
