//! distributed-lock-postgres: a session lock of PostgreSQL on a connection of a pool.

use std::time::Duration;

use anyhow::Context as _;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_postgres::PostgresLockProvider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use distributed_lock_postgres::lock::PostgresDistributedLock;
use sqlx_of_peers::postgres::{PgPool, PgPoolOptions};

use super::{Client, PATIENCE, Step, Subject, Use};

pub(super) const SETTINGS: &str = "a pool of the size that is fastest here, with `test_before_acquire(false)`; without contention `try_acquire`, which \
     takes 2 statements (`acquire` takes 6), else `acquire` with a connection for each task; `release`";

pub(super) const QUICK_START_SETTINGS: &str = "as its quick start shows it: a URL, so a pool of 10 connections that pings before use; `acquire` and `release`";

pub(super) struct Distributed {
    provider: PostgresLockProvider,
    /// Where it is ours to close; a pool of its own closes with the last lock.
    pool: Option<PgPool>,
    waits: bool,
}

struct Task {
    lock: PostgresDistributedLock,
    waits: bool,
    handle: Option<PostgresLockHandle>,
}

pub(super) async fn open(url: &str, plan: Use) -> anyhow::Result<Distributed> {
    // Its documentation gives a URL or a pool. With a URL the pool has 10 connections and pings each before
    // use: slower. A waiter under contention needs a connection of its own.
    let pool = PgPoolOptions::new()
        .max_connections(plan.session_connections()?)
        .acquire_timeout(PATIENCE)
        .idle_timeout(None::<Duration>)
        .max_lifetime(None::<Duration>)
        .test_before_acquire(false)
        .connect(url)
        .await?;
    let provider = PostgresLockProvider::builder().pool(pool.clone()).build().await?;
    Ok(Distributed {
        provider,
        pool: Some(pool),
        waits: plan.contended,
    })
}

pub(super) async fn quick_start(url: &str) -> anyhow::Result<Distributed> {
    Ok(Distributed {
        provider: PostgresLockProvider::builder()
            .connection_string(url)
            .build()
            .await?,
        pool: None,
        waits: true,
    })
}

impl Subject for Distributed {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Task {
            lock: self.provider.create_lock(key),
            waits: self.waits,
            handle: None,
        })
    }

    fn close(&self) -> Step<'_> {
        Box::pin(async {
            if let Some(pool) = &self.pool {
                pool.close().await;
            }
            Ok(())
        })
    }
}

impl Client for Task {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            self.handle = if self.waits {
                Some(self.lock.acquire(Some(PATIENCE)).await?)
            } else {
                self.lock.try_acquire().await?
            };
            self.handle.as_ref().context("nobody else wants the key")?;
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            let handle = self.handle.take().context("locked before")?;
            Ok(handle.release().await?)
        })
    }
}
