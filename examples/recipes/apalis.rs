//! A worker of apalis whose jobs run under a lock. A queue delivers a job again when it takes a slow worker for a
//! dead one, and then the lock keeps the two apart.

use std::error::Error;
use std::time::Duration;

use apalis::prelude::{Data, MemoryStorage, TaskSink as _, WorkerBuilder};
use dblock::{LockError, LockManager, distributed_lock};

#[path = "../stop.rs"]
mod stop;

#[derive(Debug, Clone)]
struct Export {
    order: i64,
}

/// The second delivery waits for the first to end, and fails after a minute: let `wait` be longer than a job. If the first
/// one's process has died, the key is free after one `ttl`.
#[distributed_lock(key = "export:{job.order}", ttl = "30s", wait = "1m", manager = locks)]
async fn export(job: Export, locks: Data<LockManager>) -> Result<(), LockError> {
    // … return here if the export is there already: the lock does not remember that it is done …
    println!("order {} is exported", job.order);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = LockManager::connect("postgres://app@localhost/app").await?;
    // A service has apalis-postgres or apalis-redis here, whose jobs all nodes share.
    let mut jobs = MemoryStorage::new();
    jobs.push(Export { order: 42 }).await?;
    WorkerBuilder::new("exports")
        .backend(jobs)
        .data(locks.clone())
        .build(export)
        .run_until(stop::signal())
        .await?;
    locks.shutdown(Duration::from_secs(10)).await;
    Ok(())
}
