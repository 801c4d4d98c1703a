//! README.md's first example: it compiles, it runs on PostgreSQL, and it is what the README shows.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{LockManager, LockOptions, distributed_lock};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::PgPool;

on_every_store!(postgres: orders_are_settled_and_shipped);

/// An application has one of its own.
type OrderError = Box<dyn std::error::Error + Send + Sync>;

/// The other service: it sees whether the lock is held.
async fn book_a_parcel(order_id: i64) -> Result<(), OrderError> {
    let lock = dblock::current().unwrap();
    assert_eq!(lock.key(), format!("order:{order_id}"));
    tokio::task::yield_now().await;
    Ok(())
}

struct Orders {
    locks: LockManager,
    db: PgPool,
}

impl Orders {
    async fn settle(&self, order_id: i64) -> Result<(), OrderError> {
        let key = format!("order:{order_id}");
        let options = LockOptions::new().wait(Duration::from_secs(5));
        let settled = self.locks.transaction(&self.db, key, options, async |mut tx| {
            // Only one node is here for this order. The commit frees the lock: nobody enters before it.
            let update = sqlx::query("UPDATE orders SET settled = true WHERE id = $1");
            update.bind(order_id).execute(&mut **tx).await?;
            Ok(())
        });
        settled.await
    }

    #[distributed_lock(key = "order:{order_id}", ttl = "30s", wait = "5s", manager = self.locks)]
    async fn ship(&self, order_id: i64) -> Result<(), OrderError> {
        // The same for work that is no transaction, such as a call to another service. The lease is renewed
        // while the body runs, and the body is stopped when the lease is lost.
        book_a_parcel(order_id).await
    }
}

async fn orders_are_settled_and_shipped(backend: Backend) {
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    // The README's table has a plain name, and this is a session's own.
    let db = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_with((*pool.connect_options()).clone())
        .await
        .unwrap();
    sqlx::raw_sql(
        "CREATE TEMPORARY TABLE orders (id BIGINT, settled BOOLEAN); INSERT INTO orders VALUES (42, false)",
    )
    .execute(&db)
    .await
    .unwrap();
    let orders = Orders {
        locks: backend.manager().await,
        db,
    };
    orders.settle(42).await.unwrap();
    orders.ship(42).await.unwrap();
    let settled: bool = sqlx::query_scalar("SELECT settled FROM orders")
        .fetch_one(&orders.db)
        .await
        .unwrap();
    assert!(settled && !orders.locks.is_locked("order:42").await.unwrap());
}

#[test]
fn the_readme_shows_it() {
    let readme = include_str!("../../../README.md");
    let this = include_str!("first_example.rs");
    let from = this.find("struct Orders {").unwrap();
    let to = this.find("async fn orders_are_settled").unwrap();
    let example = this[from..to].trim();
    assert!(readme.contains(example), "README.md does not show:\n{example}");
}
