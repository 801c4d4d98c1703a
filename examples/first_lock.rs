//! `cargo run --example first_lock`, in two terminals at once: the lock lets them in one after the other.

use std::error::Error;
use std::process;
use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use tokio::time::sleep;

/// Only one process at a time is in here for a month.
#[distributed_lock(key = "report:{month}", ttl = "30s", wait = "5s")]
async fn write_report(month: &str) -> Result<(), LockError> {
    println!("process {}: begins the report of {month}", process::id());
    sleep(Duration::from_secs(1)).await;
    println!("process {}: is done", process::id());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // The file and its tables are made. With PostgreSQL it is `postgres://user@host/database`.
    let locks = LockManager::connect("sqlite://first_lock.db").await?;
    dblock::install(locks.clone())?;
    for _ in 0..5 {
        write_report("2026-11").await?;
    }
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
