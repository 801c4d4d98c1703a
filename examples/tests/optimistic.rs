//! The stock of `examples/optimistic` loses nothing and sells nothing twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dblock_examples::optimistic::{StockError, create, sell};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn the_last_pieces_are_sold_once() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("stock.db"))
        .create_if_missing(true);
    let db = SqlitePool::connect_with(options).await.unwrap();
    create(&db, 25).await.unwrap();
    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let db = db.clone();
        callers.spawn(async move { sell(&db, 1, 3).await });
    }
    let answers = callers.join_all().await;
    let sold = answers.iter().filter(|answer| answer.is_ok()).count();
    let refused = answers
        .iter()
        .filter(|answer| matches!(answer, Err(StockError::SoldOut(1))));
    assert_eq!((sold, refused.count()), (8, 2), "{answers:?}");
    let row: (i64, i64) = sqlx::query_as("SELECT amount, version FROM stock")
        .fetch_one(&db)
        .await
        .unwrap();
    assert_eq!(row, (1, 8));
}
