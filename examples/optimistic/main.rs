//! `cargo run --example optimistic`: ten callers take from one stock by version, without a lock.

use anyhow::{Context as _, ensure};
use dblock_examples::optimistic::{StockError, create, sell};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // RUST_LOG=dblock=debug shows each conflict.
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let file = folder.path().join("stock.db");
    let db =
        SqlitePool::connect_with(SqliteConnectOptions::new().filename(file).create_if_missing(true)).await?;
    create(&db, 25).await?;

    let mut callers = JoinSet::new();
    for _ in 0..10 {
        let db = db.clone();
        callers.spawn(async move { sell(&db, 1, 3).await });
    }
    let mut sold = 0;
    while let Some(answer) = callers.join_next().await {
        match answer? {
            Ok(left) => {
                sold += 3;
                println!("sold 3, {left} left");
            }
            Err(StockError::SoldOut(left)) => println!("wanted 3, but only {left} left"),
            Err(error) => return Err(error).context("cannot sell"),
        }
    }
    ensure!(
        sold == 24,
        "25 pieces are enough for eight callers, and {sold} were sold"
    );
    println!("sold {sold} of 25, none of them twice");
    Ok(())
}
