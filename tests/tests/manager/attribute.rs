//! The attribute does what [`locks.lock(key).run(body)`] does, on every store.

use std::num::ParseIntError;
use std::panic::AssertUnwindSafe;

use dblock::{LockError, LockManager, current, distributed_lock};
use dblock_tests::{Backend, Row, on_every_store};
use futures_util::FutureExt;

use crate::long;

on_every_store!(
    the_key_is_made_of_the_arguments,
    returns_failures_and_panics_release,
    methods_reenter_each_other,
    busy_becomes_the_methods_error,
    a_scope_names_the_manager,
);

struct Order {
    id: u32,
    shop: &'static str,
}

/// The error of a method under a lock.
#[derive(Debug)]
enum OrderError {
    Lock(LockError),
    NotANumber,
}

impl From<LockError> for OrderError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<ParseIntError> for OrderError {
    fn from(_: ParseIntError) -> Self {
        Self::NotANumber
    }
}

struct Shop {
    locks: LockManager,
    backend: Backend,
}

impl Shop {
    #[distributed_lock(key = "{order.shop}:order:{order.id:03}", ttl = "30s", wait = "5s", manager = self.locks)]
    async fn settle(&self, order: &Order) -> Result<Row, OrderError> {
        let key = current().unwrap().key().to_owned();
        Ok(self.backend.the_row(&key).await)
    }

    #[distributed_lock(key = "number", manager = self.locks)]
    async fn parse(&self, text: &str, early: bool) -> Result<i32, OrderError> {
        if early {
            return Ok(0);
        }
        let number = text.parse()?;
        assert!(number < 100, "too large");
        Ok(number)
    }

    #[distributed_lock(key = "nested", manager = self.locks)]
    async fn outer(&self) -> Result<(i32, i32), OrderError> {
        let inner = self.inner().await?;
        Ok((inner, self.backend.the_row("nested").await.reentrant_count))
    }

    #[distributed_lock(key = "nested", manager = self.locks)]
    async fn inner(&self) -> Result<i32, OrderError> {
        Ok(self.backend.the_row("nested").await.reentrant_count)
    }
}

async fn shop(backend: &Backend) -> Shop {
    Shop {
        locks: backend.manager().await,
        backend: backend.clone(),
    }
}

async fn the_key_is_made_of_the_arguments(backend: Backend) {
    let shop = shop(&backend).await;
    let row = shop.settle(&Order { id: 7, shop: "north" }).await.unwrap();
    assert_eq!(row.reentrant_count, 1);
    assert!(row.holder.contains("settle"), "{}", row.holder);
    assert!(row.expire_at - row.acquired_at >= 30_000_000);
    assert!(backend.the_row("north:order:007").await.is_free());
}

async fn returns_failures_and_panics_release(backend: Backend) {
    let shop = shop(&backend).await;
    let free = async || backend.the_row("number").await.is_free();
    assert_eq!(shop.parse("1", true).await.unwrap(), 0);
    assert!(free().await);
    assert_eq!(shop.parse("1", false).await.unwrap(), 1);
    assert!(free().await);
    let failed = shop.parse("one", false).await;
    assert!(free().await);
    assert!(matches!(failed, Err(OrderError::NotANumber)), "{failed:?}");
    let panicked = AssertUnwindSafe(shop.parse("100", false)).catch_unwind().await;
    assert!(free().await, "straight after the panic");
    assert!(panicked.is_err());
}

async fn methods_reenter_each_other(backend: Backend) {
    let shop = shop(&backend).await;
    assert_eq!(shop.outer().await.unwrap(), (2, 1));
    assert!(backend.the_row("nested").await.is_free());
}

async fn busy_becomes_the_methods_error(backend: Backend) {
    let shop = shop(&backend).await;
    let _guard = backend
        .manager()
        .await
        .lock("number")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    match shop.parse("1", false).await {
        Err(OrderError::Lock(LockError::Busy { key, .. })) => assert_eq!(key.as_str(), "number"),
        other => panic!("{other:?}"),
    }
}

#[distributed_lock(key = format!("free:{}", name.len()))]
async fn free_function(name: String, backend: &Backend) -> Result<(String, i32), LockError> {
    let key = current().unwrap().key().to_owned();
    Ok((name, backend.the_row(&key).await.reentrant_count))
}

async fn a_scope_names_the_manager(backend: Backend) {
    let locks = backend.manager().await;
    let outside = free_function("abc".into(), &backend).await;
    assert!(matches!(outside, Err(LockError::NoManager)), "{outside:?}");
    let inside = locks.scope(free_function("abc".into(), &backend)).await.unwrap();
    assert_eq!(inside, ("abc".to_owned(), 1));
    assert!(backend.the_row("free:3").await.is_free());
    // The innermost scope counts.
    let namespaced = backend.builder().namespace("inner").build().await.unwrap();
    locks
        .scope(namespaced.scope(free_function("abc".into(), &backend)))
        .await
        .unwrap();
    assert!(backend.row("inner:free:3").await.is_some());
    let spawned = locks.scope(async {
        let backend = backend.clone();
        tokio::spawn(async move { free_function("abc".into(), &backend).await })
    });
    let spawned = spawned.await.await.unwrap();
    assert!(
        matches!(spawned, Err(LockError::NoManager)),
        "a spawned task is in no scope: {spawned:?}"
    );
}
