//! `cargo run --example guard`: a lock taken by hand, for code that the attribute does not fit.
//!
//! A guard is released by `release`, which waits and says how it went, or when it is dropped, which does
//! neither. Prefer the attribute or `locks.lock(key).run(body)`: they also stop the work when the lock is lost.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use dblock::LockManager;
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let file = folder.path().join("guard.db");
    let pool =
        SqlitePool::connect_with(SqliteConnectOptions::new().filename(file).create_if_missing(true)).await?;
    sqlx::query("CREATE TABLE report (month TEXT PRIMARY KEY, fence_token INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    // One manager a process. It uses the pool's options, not its connections.
    let locks = LockManager::builder(&pool).auto_migrate(true).build().await?;

    let guard = locks
        .lock("report:2026-11")
        .ttl(Duration::from_secs(5))
        .wait(Duration::from_secs(2))
        .acquire()
        .await?;
    println!("holding {} with fence token {}", guard.key(), guard.fence_token());

    // A guard is no part of the call chain: whoever else asks, even here, is told that it is busy.
    let second = locks.lock("report:2026-11").try_acquire().await?;
    ensure!(second.is_none(), "two guards for one key");
    println!("nobody else gets it: try_acquire returned None");

    // `enter` stops the work when the lock is lost. The transaction commits only while the lock holds.
    guard
        .enter(async {
            let mut tx = dblock::begin(&pool).await?;
            guard.verify_in(&mut tx).await?;
            sqlx::query("INSERT INTO report VALUES ('2026-11', $1)")
                .bind(guard.fence_token())
                .execute(&mut *tx)
                .await?;
            tx.commit().await.context("cannot commit")
        })
        .await
        .context("lost the lock while writing the report")??;
    println!("wrote the report, {:?} were left of the lease", guard.remaining());

    // Waits for the database's answer: afterwards the row is free, or there is an error.
    let former = guard.fence_token();
    guard.release().await?;

    let next = locks
        .lock("report:2026-11")
        .try_acquire()
        .await?
        .context("the lock is not free after its release")?;
    println!("free again; the next token is larger: {}", next.fence_token());
    ensure!(next.fence_token() > former, "fence tokens must grow");
    next.release().await?;

    locks.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
