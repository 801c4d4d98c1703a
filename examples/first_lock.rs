//! Run two of these beside each other: the lock lets them in one after the other.

use std::error::Error;
use std::process;
use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use tokio::time::sleep;

/// Of all processes, only one at a time is in here for a month.
#[distributed_lock(key = "report:{month}", ttl = "30s", wait = "5s")]
async fn write_report(month: &str) -> Result<(), LockError> {
    println!("process {}: begins the report of {month}", process::id());
    sleep(Duration::from_secs(1)).await;
    println!("process {}: is done", process::id());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // This makes the file and its tables. For PostgreSQL write `postgres://user@host/database`.
    let locks = LockManager::connect("sqlite://first_lock.db").await?;
    dblock::install(locks.clone())?;
    for _ in 0..20 {
        write_report("2026-11").await?;
    }
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
