//! A job of tokio-cron-scheduler that each node has on its schedule, and that one of them does.

use std::error::Error;
use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use tokio_cron_scheduler::{Job, JobScheduler};

#[path = "../stop.rs"]
mod stop;

/// The first node does it. The others find the key busy, also those whose clocks are up to a minute late.
#[distributed_lock(key = "clean_up", hold_min = "1m", on_busy = Ok(()), manager = locks)]
async fn clean_up(locks: &LockManager) -> Result<(), LockError> {
    println!("this node cleans up");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::connect("postgres://app@localhost/app").await?;
    let mut scheduler = JobScheduler::new().await?;
    let of_job = locks.clone();
    // Every five minutes: `hold_min` is longer than the clocks differ, and shorter than this.
    let job = Job::new_async("0 */5 * * * *", move |_id, _scheduler| {
        let locks = of_job.clone();
        Box::pin(async move {
            if let Err(error) = clean_up(&locks).await {
                eprintln!("not cleaned up: {error}");
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;
    stop::signal().await?;
    scheduler.shutdown().await?;
    locks.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
