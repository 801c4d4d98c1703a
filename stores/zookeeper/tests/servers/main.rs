//! Servers that are killed, stopped and restarted, alone and as an ensemble; and what they refuse.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ensemble;
mod single;

use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError};
use dblock::{Key, LockOptions};
use dblock_servers::{Kind, is_installed};
use dblock_zookeeper::ZookeeperStore;
use uuid::Uuid;

/// Whether a test can have servers of its own; it says so if not.
fn installed() -> bool {
    let installed = is_installed(Kind::ZooKeeper);
    if !installed {
        dblock_tests::left_out("ZooKeeper servers of its own", "install zookeeper");
    }
    installed
}

fn acquire(key: &str) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask))
}

/// Asks to be the successor.
fn queue(key: &str) -> Request {
    let mut request = acquire(key);
    if let Action::Acquire(ask) = &mut request.action {
        ask.wanted_for = Some(Duration::from_secs(3));
        ask.queue = Some(Duration::ZERO);
    }
    request
}

async fn one(store: &ZookeeperStore, request: Request) -> Result<Outcome, StoreError> {
    store.apply(&[request]).await.remove(0)
}

/// Asks until it is answered: the first connections may still be broken ones.
async fn again(store: &ZookeeperStore, request: Request) -> Outcome {
    loop {
        match one(store, request.clone()).await {
            Ok(outcome) => return outcome,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        // An error that comes without a look at the server would keep a time limit from being noticed.
        tokio::task::yield_now().await;
    }
}

fn options() -> LockOptions {
    LockOptions::new().wait(Duration::from_secs(20))
}
