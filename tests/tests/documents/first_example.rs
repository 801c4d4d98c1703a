//! The two locks of docs/using.md: they compile, and run on PostgreSQL. `cargo xtask book` compares the page
//! with this file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{LockManager, distributed_lock};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::PgPool;

on_every_store!(postgres: vouchers_are_redeemed_and_invoices_written);

/// An application has one of its own.
type OrderError = Box<dyn std::error::Error + Send + Sync>;

/// The work that is no transaction: it sees whether the lock is held.
async fn render_invoice(order_id: i64) -> Result<(), OrderError> {
    let lock = dblock::current().unwrap();
    assert_eq!(lock.key(), format!("invoice:{order_id}"));
    tokio::task::yield_now().await;
    Ok(())
}

struct Orders {
    locks: LockManager,
    db: PgPool,
}

impl Orders {
    /// An order takes three vouchers at most.
    async fn redeem(&self, order_id: i64, voucher: i64) -> Result<bool, OrderError> {
        self.locks
            .lock(format!("order:{order_id}"))
            .wait(Duration::from_secs(5))
            .transaction(&self.db, async |mut tx| {
                // Only one node is here for this order. The commit frees the lock.
                // Nobody else enters before the commit.
                let count = sqlx::query_scalar("SELECT count(*) FROM redeemed WHERE order_id = $1");
                let used: i64 = count.bind(order_id).fetch_one(&mut **tx).await?;
                if used >= 3 {
                    return Ok(false);
                }
                let insert = sqlx::query("INSERT INTO redeemed (order_id, voucher) VALUES ($1, $2)");
                insert.bind(order_id).bind(voucher).execute(&mut **tx).await?;
                Ok(true)
            })
            .await
    }

    #[distributed_lock(key = "invoice:{order_id}", ttl = "30s", wait = "5s", manager = self.locks)]
    async fn write_invoice(&self, order_id: i64) -> Result<(), OrderError> {
        // For work that is no transaction, such as a file. The lease is renewed while the body runs.
        // When the lease is lost, the body is stopped.
        render_invoice(order_id).await
    }
}

async fn vouchers_are_redeemed_and_invoices_written(backend: Backend) {
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("this store alone")
    };
    // The page's table has a plain name, and this is a session's own.
    let db = sqlx::postgres::PgPoolOptions::new()
        .max_connections(1)
        .connect_with((*pool.connect_options()).clone())
        .await
        .unwrap();
    sqlx::raw_sql("CREATE TEMPORARY TABLE redeemed (order_id BIGINT, voucher BIGINT)")
        .execute(&db)
        .await
        .unwrap();
    let orders = Orders {
        locks: backend.manager().await,
        db,
    };
    for voucher in 1..=4 {
        assert_eq!(orders.redeem(42, voucher).await.unwrap(), voucher <= 3);
    }
    orders.write_invoice(42).await.unwrap();
    for key in ["order:42", "invoice:42"] {
        assert!(!orders.locks.admin().is_locked(key).await.unwrap());
    }
}
