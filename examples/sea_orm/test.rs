//! The stock loses nothing and sells nothing twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dblock_example_sea_orm::{StockError, sell, stock};
use sea_orm::{ConnectionTrait as _, Database, EntityTrait as _};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread")]
async fn the_last_pieces_are_sold_once() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("stock.db").display());
    let db = Database::connect(url).await.unwrap();
    for sql in [
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, version INTEGER NOT NULL)",
        "INSERT INTO stock VALUES (1, 25, 0)",
    ] {
        db.execute_unprepared(sql).await.unwrap();
    }
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
    let row = stock::Entity::find_by_id(1).one(&db).await.unwrap().unwrap();
    assert_eq!((row.amount, row.version), (1, 8));
    assert!(matches!(sell(&db, 7, 1).await, Err(StockError::Unknown(7))));
}
