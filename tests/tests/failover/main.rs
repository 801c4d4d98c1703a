//! Several servers in one manager, while they fail over.
//!
//! A process of its own, because the subscriber is global: the engine logs from another thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod galera;
mod moves;
mod mysql;
mod old_primary;
mod postgres;

use std::time::Duration;

use dblock::{LockGuard, LockManager, LockOptions};
use tokio::task::JoinHandle;

/// Longer than any fail-over here takes.
const LONG: Duration = Duration::from_mins(1);

/// A process: its manager, at servers whose tables are there.
async fn process(url: &str) -> LockManager {
    LockManager::connect(url).await.unwrap()
}

fn patient() -> LockOptions {
    LockOptions::new().wait(LONG)
}

/// A caller that waits; it is at it when this returns.
async fn waiting(locks: &LockManager, key: &'static str) -> JoinHandle<LockGuard> {
    let locks = locks.clone();
    let (started, has_started) = tokio::sync::oneshot::channel();
    let call = tokio::spawn(async move {
        started.send(()).unwrap();
        locks.lock(key).options(&patient()).acquire().await.unwrap()
    });
    has_started.await.unwrap();
    call
}
