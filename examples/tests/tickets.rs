//! The order of `examples/tickets` is busy from the request until the worker of another process has finished.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use dblock::LockManager;
use dblock_examples::tickets::{Service, create_queue, router};
use sqlx::SqlitePool;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tokio::time::{sleep, timeout};

/// The variable that tells a worker its database.
const DATABASE: &str = "DBLOCK_TICKETS_TEST_DATABASE";

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

/// Asks for an export. Returns the status.
async fn post(address: SocketAddr, order: u32) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("POST /orders/{order}/export HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_request_is_answered_at_once_and_another_process_finishes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("shop.db").display());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let handler = service(&url).await;
    tokio::spawn(async { axum::serve(listener, router(handler)).await });
    assert_eq!(post(address, 42).await, 202);
    assert_eq!(post(address, 42).await, 409, "it is queued");

    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["worker", "--exact", "--ignored", "--nocapture"])
        .env(DATABASE, &url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut told = BufReader::new(worker.stdout.take().unwrap()).lines();
    while !told
        .next_line()
        .await
        .unwrap()
        .unwrap()
        .ends_with("exporting order:42")
    {}
    assert_eq!(post(address, 42).await, 409, "it is exported");
    worker.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    assert!(worker.wait().await.unwrap().success());
    assert_eq!(post(address, 42).await, 202);
}

/// Does one job, in a process of its own. It finishes when it is told to.
#[tokio::test]
#[ignore = "it is the other process of a test"]
async fn worker() {
    let worker = service(&std::env::var(DATABASE).unwrap()).await;
    let export = async |key: &str| {
        println!("exporting {key}");
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        lines.next_line().await.unwrap();
    };
    let work = async {
        while worker.work(export).await.unwrap().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_mins(1), work).await.unwrap();
}
