//! `cargo run --example custom_store`: two managers over a store of one's own, a JSON file.
//!
//! `mod.rs` beside this says how to write a store; `cargo test -p dblock-examples --test custom_store` shows
//! that this one keeps the contract.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use dblock::{LockManager, LockOptions};
use dblock_examples::custom_store::FileStore;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let path = folder.path().join("locks.json");
    // In a program these would be two processes.
    let here = LockManager::builder(FileStore::new(&path)).build().await?;
    let there = LockManager::builder(FileStore::new(&path)).build().await?;

    let options = LockOptions::new()
        .ttl(Duration::from_secs(5))
        .wait(Duration::from_secs(5));
    let report = async |name: &str| {
        println!("{name} is inside");
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("{name} leaves");
    };
    let (one, two) = tokio::join!(
        here.lock("report").options(&options).run(report("here")),
        there.lock("report").options(&options).run(report("there")),
    );
    one?;
    two?;

    let guard = here.lock("report").options(&options).acquire().await?;
    let second = there.lock("report").try_acquire().await?;
    ensure!(second.is_none(), "two owners of one key");
    println!(
        "here has fence token {}; there is told that it is busy",
        guard.fence_token()
    );
    guard.release().await?;
    println!("the file: {}", std::fs::read_to_string(&path)?);
    Ok(())
}
