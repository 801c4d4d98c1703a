//! distributed-lock-mysql: `GET_LOCK`, which MariaDB keeps in memory, on a connection of a pool.

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_mysql::lock::MySqlDistributedLock;
use distributed_lock_mysql::{MySqlLockHandle, MySqlLockProvider};
use sqlx_of_peers::mysql::{MySqlPool, MySqlPoolOptions};

use super::guarded::{Guarded, client};
use super::{Client, Step, Subject, TIMEOUT, Use};

pub(super) const SETTINGS: &str = "a pool of the size that is fastest here, with `test_before_acquire(false)`, no \
     keep-alive; `acquire` and `release`";

pub(super) struct Distributed {
    provider: MySqlLockProvider,
    pool: MySqlPool,
}

struct Task {
    lock: MySqlDistributedLock,
}

pub(super) async fn open(url: &str, plan: Use) -> anyhow::Result<Distributed> {
    let pool = MySqlPoolOptions::new()
        .max_connections(plan.session_connections()?)
        .acquire_timeout(TIMEOUT)
        .idle_timeout(None::<Duration>)
        .max_lifetime(None::<Duration>)
        .test_before_acquire(false)
        .connect(url)
        .await?;
    let provider = MySqlLockProvider::builder().pool(pool.clone()).build().await?;
    Ok(Distributed { provider, pool })
}

impl Subject for Distributed {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            lock: self.provider.create_lock(key),
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
    type Guard = MySqlLockHandle;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        Ok(self.lock.acquire(Some(TIMEOUT)).await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(guard.release().await?)
    }
}
