//! `cargo run --example jobs`: a job that runs every five seconds, on one of the processes that run this.
//! Start it twice, and stop the one that works with Ctrl-C or SIGTERM, or kill it: the other goes on.
//!
//! The schedule is in `jobs.rs`.

use std::time::Duration;

use dblock::LockManager;
use dblock_examples::jobs::Schedule;
use dblock_examples::stop;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("info").init();
    let file = std::env::temp_dir().join("dblock-example-jobs.db");
    let url = format!("sqlite://{}?mode=rwc", file.display());
    let locks = LockManager::builder_for_url(&url)?
        .auto_migrate(true)
        .build()
        .await?;
    let report = Schedule::new(locks.clone(), "report", Duration::from_secs(5));
    let work = report.run(async |slot| {
        tracing::info!(slot, "writing the report");
        tokio::time::sleep(Duration::from_secs(2)).await;
        Ok(())
    });
    let end = async {
        let listened = stop::signal().await;
        // A report that is being written may be finished.
        locks.shutdown(Duration::from_secs(10)).await;
        listened
    };
    let ((), listened) = tokio::join!(work, end);
    Ok(listened?)
}
