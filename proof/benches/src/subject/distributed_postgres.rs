//! distributed-lock-postgres: a session lock of PostgreSQL on a connection of a pool.

use std::time::Duration;

use anyhow::Context as _;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use distributed_lock_postgres::lock::PostgresDistributedLock;
use sqlx_of_peers::postgres::{PgPool, PgPoolOptions};

use super::guarded::{Guarded, client};
use super::{Client, Step, Subject, TIMEOUT, Use};

pub(super) const SETTINGS: &str = "a pool of the size that is fastest here (with contention a connection for each task), with \
     `test_before_acquire(false)`; `acquire` with a wait, as its documentation begins, and `release`";

pub(super) const TRY_SETTINGS: &str =
    "the same pool; `try_acquire`, which does not wait and takes 2 statements a pair instead of 6";

pub(super) struct Distributed {
    provider: PostgresLockProvider,
    pool: PgPool,
    waits: bool,
}

struct Task {
    lock: PostgresDistributedLock,
    waits: bool,
}

pub(super) async fn open(url: &str, plan: Use, waits: bool) -> anyhow::Result<Distributed> {
    // Its documentation gives a URL or a pool. With a URL the pool has 10 connections and pings each before
    // use: slower. A waiter under contention needs a connection of its own.
    let pool = PgPoolOptions::new()
        .max_connections(plan.session_connections()?)
        .acquire_timeout(TIMEOUT)
        .idle_timeout(None::<Duration>)
        .max_lifetime(None::<Duration>)
        .test_before_acquire(false)
        .connect(url)
        .await?;
    let provider = PostgresLockProvider::builder().pool(pool.clone()).build().await?;
    Ok(Distributed {
        provider,
        pool,
        waits,
    })
}

impl Subject for Distributed {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            lock: self.provider.create_lock(key),
            waits: self.waits,
        })
    }

    fn close(&self) -> Step<'_> {
        Box::pin(async {
            self.pool.close().await;
            Ok(())
        })
    }
}

impl Guarded for Task {
    type Guard = PostgresLockHandle;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        if self.waits {
            return Ok(self.lock.acquire(Some(TIMEOUT)).await?);
        }
        self.lock
            .try_acquire()
            .await?
            .context("nobody else wants the key")
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(guard.release().await?)
    }
}
