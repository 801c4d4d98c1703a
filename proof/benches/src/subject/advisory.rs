//! sqlx's `PgAdvisoryLock`: a session lock of PostgreSQL, which occupies a connection while it is held and
//! while it is awaited.

use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool};

use super::guarded::{Guarded, client};
use super::{Client, Step, Subject, Use, pool};

pub(super) const SETTINGS: &str = "a connection for each task, taken from an sqlx pool once and kept; `acquire` and `release_now`; the statement prepared";

pub(super) const SHARED_SETTINGS: &str = "`pg_advisory_lock_shared` and `pg_advisory_unlock_shared`; a connection for each task, taken from an sqlx pool once and kept; the statements prepared";

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

/// The same locks, shared.
pub(super) struct Shared(pub(super) Advisory);

struct SharedTask {
    pool: PgPool,
    key: String,
    connection: Option<PoolConnection<Postgres>>,
}

impl Subject for Shared {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(SharedTask {
            pool: self.0.pool.clone(),
            key: key.to_owned(),
            connection: None,
        })
    }

    fn close(&self) -> Step<'_> {
        self.0.close()
    }
}

impl Guarded for SharedTask {
    type Guard = PoolConnection<Postgres>;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.pool.acquire().await?,
        };
        let lock = sqlx::query("SELECT pg_advisory_lock_shared(hashtext($1))").bind(&self.key);
        lock.execute(&mut *connection).await?;
        Ok(connection)
    }

    async fn release(&mut self, mut connection: Self::Guard) -> anyhow::Result<()> {
        let unlock = sqlx::query("SELECT pg_advisory_unlock_shared(hashtext($1))").bind(&self.key);
        unlock.execute(&mut *connection).await?;
        self.connection = Some(connection);
        Ok(())
    }
}
