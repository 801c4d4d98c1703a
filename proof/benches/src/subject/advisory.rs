//! sqlx's `PgAdvisoryLock`: a session lock of PostgreSQL, which occupies a connection while it is held and
//! while it is awaited.

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool};

use super::guarded::{Guarded, client};
use super::{Client, Step, Subject, Use, pool};

pub(super) const SETTINGS: &str = "a connection for each task, taken from an sqlx pool once and kept; `acquire` and `release_now`; the statement prepared";

pub(super) struct Advisory {
    pool: PgPool,
}

struct Task {
    pool: PgPool,
    lock: PgAdvisoryLock,
    // Kept between the pairs: giving it back to the pool would cost a ping each time.
    connection: Option<PoolConnection<Postgres>>,
}

pub(super) async fn open(url: &str, plan: Use) -> anyhow::Result<Advisory> {
    let pool = pool::of(u32::try_from(plan.tasks)?).connect(url).await?;
    Ok(Advisory { pool })
}

impl Subject for Advisory {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            pool: self.pool.clone(),
            lock: PgAdvisoryLock::new(key),
            connection: None,
        })
    }

    fn close(&self) -> Step<'_> {
        pool::close(&self.pool, None)
    }
}

impl Guarded for Task {
    type Guard = PgAdvisoryLockGuard<PoolConnection<Postgres>>;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.pool.acquire().await?,
        };
        Ok(self.lock.acquire(connection).await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        self.connection = Some(guard.release_now().await?);
        Ok(())
    }
}
