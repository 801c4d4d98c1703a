//! `cargo run --example tickets`: a service that answers 202 at once, and a worker in another process that
//! finishes under the lock of the request.
//!
//! ```text
//! curl -i -X POST localhost:3000/orders/42/export    # 202
//! curl -i -X POST localhost:3000/orders/42/export    # 409, until the worker has finished
//! ```
//!
//! The handler and the worker are in `tickets.rs`.

use std::pin::pin;
use std::time::Duration;

use dblock::LockManager;
use dblock_examples::stop;
use dblock_examples::tickets::{Service, create_queue, router};
use sqlx::SqlitePool;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::timeout;

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
    let mut worker = Command::new(std::env::current_exe()?)
        .arg("worker")
        .kill_on_drop(true)
        .spawn()?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!(
        "listening on http://{}; Ctrl-C or SIGTERM stops",
        listener.local_addr()?
    );
    let server = axum::serve(listener, router(service)).with_graceful_shutdown(async {
        if let Err(error) = stop::signal().await {
            tracing::error!(%error, "signals cannot be handled");
        }
    });
    server.await?;
    locks.shutdown(Duration::from_secs(5)).await;
    // A terminal and systemd tell the worker, too. It finishes what it has begun.
    let _ = timeout(Duration::from_secs(10), worker.wait()).await;
    Ok(())
}

/// Until it is asked to stop. Then it finishes what it has begun.
async fn work(service: Service) -> anyhow::Result<()> {
    let mut stops = pin!(stop::signal());
    loop {
        let export = async |key: &str| {
            tracing::info!(key, "exporting");
            tokio::time::sleep(Duration::from_secs(3)).await;
        };
        let exported = service.work(export).await?;
        let pause = if exported.is_some() { 0 } else { 200 };
        tokio::select! {
            biased;
            stop = &mut stops => break stop?,
            () = tokio::time::sleep(Duration::from_millis(pause)) => {}
        }
    }
    service.locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
