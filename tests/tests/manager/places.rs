//! Namespaces and tables keep locks apart, and nothing else does.

use dblock::{InspectFilter, LockError, LockManager};
use dblock_tests::{Backend, on_every_store};

use crate::long;

on_every_store!(namespaces_keep_keys_apart, an_operator_sees_only_its_namespace);
on_every_store!(databases: tables_keep_keys_apart);
on_every_store!(postgres: a_table_can_be_named_with_its_schema);

async fn namespaced(backend: &Backend, namespace: &str) -> LockManager {
    backend.builder().namespace(namespace).build().await.unwrap()
}

async fn namespaces_keep_keys_apart(backend: Backend) {
    let (one, two) = (
        namespaced(&backend, "one").await,
        namespaced(&backend, "two").await,
    );
    let guard = one.lock("key").options(&long()).acquire().await.unwrap();
    assert_eq!((guard.key(), guard.full_key()), ("key", "one:key"));
    assert!(one.admin().is_locked(guard.key()).await.unwrap());
    let inside = guard.enter(async { dblock::current().unwrap().key().to_owned() });
    assert_eq!(inside.await.unwrap(), "key");
    let row = one.admin().get(guard.key()).await.unwrap().unwrap();
    assert_eq!((row.key.as_str(), row.fence_token), ("key", guard.fence_token()));
    assert_eq!(backend.the_row("one:key").await.reentrant_count, 1);
    let _other = two.lock("key").options(&long()).acquire().await.unwrap();
    let same = namespaced(&backend, "one")
        .await
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(&same, LockError::Busy { key, .. } if key.as_str() == "key"),
        "{same:?}"
    );
    let whole = backend
        .manager()
        .await
        .lock("one:key")
        .options(&long())
        .acquire()
        .await;
    assert!(whole.unwrap_err().is_busy(), "the namespace is only a prefix");
    for bad in ["", "a:b", "a\0"] {
        let refused = backend.builder().namespace(bad).build().await;
        assert!(
            matches!(refused, Err(LockError::Invalid { .. })),
            "{bad:?}: {refused:?}"
        );
    }
}

async fn an_operator_sees_only_its_namespace(backend: Backend) {
    let (one, two) = (
        namespaced(&backend, "one").await,
        namespaced(&backend, "two").await,
    );
    let _one = one.lock("key").options(&long()).acquire().await.unwrap();
    let rows = one.admin().list(InspectFilter::new().prefix("k")).await.unwrap();
    assert!(
        matches!(rows.as_slice(), [row] if row.key.as_str() == "key"),
        "{rows:?}"
    );
    let behind = one
        .admin()
        .list(InspectFilter::new().after(rows[0].position()))
        .await;
    assert_eq!(behind.unwrap(), [], "a position is one of this namespace");
    assert_eq!(
        two.admin()
            .list(InspectFilter::new().include_free())
            .await
            .unwrap(),
        []
    );
    assert!(!two.admin().force_release("key").await.unwrap());
    assert!(!two.admin().revoke("key").await.unwrap());
    assert!(one.admin().force_release("key").await.unwrap());
}

async fn tables_keep_keys_apart(backend: Backend) {
    let other = LockManager::builder(backend.source()).table(format!("{}_b", backend.table));
    let other = other.auto_migrate(true).build().await.unwrap();
    let _one = backend
        .manager()
        .await
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    other
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    backend.execute("DROP TABLE {table}_b").await;
    backend.execute("DROP TABLE {table}_b_version").await;
    for bad in ["", "a b", "a;b", "a.b.c", "a\"b", "a`b"] {
        let refused = LockManager::builder(backend.source()).table(bad).build().await;
        assert!(
            matches!(refused, Err(LockError::Invalid { .. })),
            "{bad:?}: {refused:?}"
        );
    }
}

async fn a_table_can_be_named_with_its_schema(backend: Backend) {
    let named = LockManager::builder(backend.source()).table(format!("public.{}", backend.table));
    let named = named.build().await.unwrap();
    let _one = backend
        .manager()
        .await
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    assert!(
        named
            .lock("key")
            .options(&long())
            .acquire()
            .await
            .unwrap_err()
            .is_busy(),
        "it is the same table"
    );
}
