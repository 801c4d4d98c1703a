//! `cargo run --example tickets`: a service that answers 202 at once, and a worker in another process that
//! finishes under the lock of the request.
//!
//! ```text
//! curl -i -X POST localhost:3000/orders/42/export    # 202
//! curl -i -X POST localhost:3000/orders/42/export    # 409, until the worker has finished
//! ```
//!
//! The handler and the worker are in `tickets/mod.rs`.

use std::time::Duration;

use dblock::LockManager;
use dblock_examples::stop;
use dblock_examples::tickets::{Service, create_queue, router};
use sqlx::SqlitePool;
use tokio::net::TcpListener;
use tokio::process::Command;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_env_filter("info").init();
    let file = std::env::temp_dir().join("dblock-example-tickets.db");
    let url = format!("sqlite://{}?mode=rwc", file.display());
    let pool = SqlitePool::connect(&url).await?;
    create_queue(&pool).await?;
    let locks = LockManager::builder_for_url(&url)?
        .auto_migrate(true)
        .build()
        .await?;
    let service = Service {
        locks: locks.clone(),
        pool,
    };
    if std::env::args().nth(1).as_deref() == Some("worker") {
        return work(service).await;
    }
    let _worker = Command::new(std::env::current_exe()?)
        .arg("worker")
        .kill_on_drop(true)
        .spawn()?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!(
        "listening on http://{}; Ctrl-C or SIGTERM stops",
        listener.local_addr()?
    );
    tokio::select! {
        served = axum::serve(listener, router(service)).into_future() => served?,
        stop = stop::signal() => stop?,
    }
    locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

async fn work(service: Service) -> anyhow::Result<()> {
    loop {
        let export = async |key: &str| {
            tracing::info!(key, "exporting");
            tokio::time::sleep(Duration::from_secs(3)).await;
        };
        if let Some(key) = service.work(export).await? {
            tracing::info!(key, "exported");
        } else {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
