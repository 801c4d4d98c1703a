//! The rule holds with many callers, and a lock that was lost writes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::LockManager;
use dblock_example_deadpool_postgres::{OrderError, Orders};
use dblock_tests::{Backend, Kind};
use deadpool_postgres::{Manager, Pool};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

/// A pool of one connection, which has a table of its own, and locks beside it. `None` without a server.
async fn place() -> Option<(Pool, LockManager)> {
    let backend = Backend::new(Kind::Postgres).await?;
    let manager = Manager::new(backend.url().unwrap().parse().unwrap(), NoTls);
    let pool = Pool::builder(manager).max_size(1).build().unwrap();
    let table = "CREATE TEMPORARY TABLE item (order_id BIGINT, name TEXT, shipped BOOLEAN DEFAULT false)";
    pool.get().await.unwrap().batch_execute(table).await.unwrap();
    Some((pool, backend.manager().await))
}

async fn count(pool: &Pool, what: &str) -> i64 {
    let client = pool.get().await.unwrap();
    let sql = format!("SELECT count(*) FROM item WHERE {what}");
    client.query_one(&sql, &[]).await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_takes_three_items_and_waiting_takes_no_connection() {
    let Some((pool, locks)) = place().await else {
        return;
    };
    let orders = Arc::new(Orders::new(locks.clone(), pool.clone()));
    let mut callers = JoinSet::new();
    for item in 0..10 {
        let orders = Arc::clone(&orders);
        callers.spawn(async move { orders.add(7, &format!("item {item}")).await.unwrap() });
    }
    let added = callers.join_all().await;
    assert_eq!(added.iter().filter(|added| **added).count(), 3);
    assert_eq!(count(&pool, "order_id = 7").await, 3);
    // The last ones were rolled back, which the manager clears up.
    let guard = locks.lock("order:7").wait_forever().acquire().await;
    guard.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_was_lost_ships_nothing() {
    let Some((pool, locks)) = place().await else {
        return;
    };
    let orders = Orders::new(locks.clone(), pool.clone());
    assert!(orders.add(7, "book").await.unwrap());
    let lose = async {
        assert!(locks.admin().force_release("order:7").await.unwrap());
    };
    let refused = orders.ship(7, lose).await.unwrap_err();
    assert!(
        matches!(&refused, OrderError::Lock(error) if error.is_lost()),
        "{refused}"
    );
    assert_eq!(count(&pool, "shipped").await, 0);
    orders.ship(7, async {}).await.unwrap();
    assert_eq!(count(&pool, "shipped").await, 1);
}
