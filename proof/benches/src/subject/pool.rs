//! Pools of connections, with the settings that cost a subject least.

use std::time::Duration;

use dblock::LockManager;
use sqlx::pool::PoolOptions;
use sqlx::{Database, Pool};

use super::{Step, TIMEOUT};

/// Connections that stay, and are not pinged before they are used.
pub(super) fn of<DB: Database>(connections: u32) -> PoolOptions<DB> {
    PoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(TIMEOUT)
        .idle_timeout(None::<Duration>)
        .max_lifetime(None::<Duration>)
        .test_before_acquire(false)
}

/// Closes a subject of a pool, and of a manager if it has one.
pub(super) fn close<'a, DB: Database>(pool: &'a Pool<DB>, locks: Option<&'a LockManager>) -> Step<'a> {
    Box::pin(async move {
        if let Some(locks) = locks {
            locks.shutdown(TIMEOUT).await;
        }
        pool.close().await;
        Ok(())
    })
}
