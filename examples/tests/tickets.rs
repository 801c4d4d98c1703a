//! The order of `examples/tickets` is busy from the request until the worker of another process has finished.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dblock::LockManager;
use dblock_examples::tickets::{Service, create_queue};
use sqlx::SqlitePool;

async fn service(url: &str) -> Service {
    let pool = SqlitePool::connect(url).await.unwrap();
    create_queue(&pool).await.unwrap();
    let builder = LockManager::builder_for_url(url).unwrap().auto_migrate(true);
    let locks = builder.build().await.unwrap();
    Service { locks, pool }
}

#[tokio::test]
async fn an_order_is_busy_until_the_worker_has_finished() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("shop.db").display());
    let (handler, worker) = (service(&url).await, service(&url).await);
    handler.queue(42).await.unwrap();
    assert!(handler.queue(42).await.is_err(), "it is queued");
    handler.queue(43).await.unwrap();
    let again = async || handler.queue(42).await.is_err();
    let done = worker
        .work(async |_| assert!(again().await, "it is exported"))
        .await;
    assert_eq!(done.unwrap().as_deref(), Some("order:42"));
    handler.queue(42).await.unwrap();
    // An operator frees the order: the worker leaves the export out.
    assert!(handler.locks.admin().force_release("order:43").await.unwrap());
    assert_eq!(worker.work(async |_| ()).await.unwrap(), None);
    let done = worker.work(async |_| ()).await;
    assert_eq!(done.unwrap().as_deref(), Some("order:42"));
}
