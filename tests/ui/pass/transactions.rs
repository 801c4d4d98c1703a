use std::fmt::Display;

use async_trait::async_trait;
use dblock::fence::FenceConnection;
use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::{OrderError, send};
use sqlx::{Database, Executor, PgConnection, Postgres, Transaction};

type Tx<'t> = Transaction<'t, Postgres>;

pub struct Service {
    locks: LockManager,
}

async fn settle(tx: &mut Tx<'_>, id: u64) -> Result<u64, OrderError> {
    let update = sqlx::query("UPDATE orders SET settled = true").execute(&mut **tx).await;
    update.map(|_| id).map_err(|_| OrderError::Unknown(id))
}

impl Service {
    #[distributed_lock(key = "order:{id}", wait = "5s", manager = self.locks, tx = tx)]
    pub async fn settle(&self, tx: &mut Tx<'_>, id: u64) -> Result<u64, OrderError> {
        settle(tx, id).await
    }

    #[distributed_lock(key = "order:{id}", tx = tx, on_busy = Ok(0))]
    pub async fn or_nothing(&self, tx: &mut Tx<'_>, id: u64) -> Result<u64, OrderError> {
        let _ = settle(tx, id).await?;
        settle(tx, id + 1).await
    }

    #[distributed_lock(key = "order:{id}", tx = tx, on_error = |_| 0)]
    pub async fn never_fails(&self, tx: &mut Tx<'_>, id: u64) -> u64 {
        settle(tx, id).await.unwrap_or(id)
    }

    // The guard's lock and the transaction's, and two that end with one transaction.
    #[distributed_lock(key = "shop", manager = self.locks)]
    #[distributed_lock(key = "from:{from}", wait = "1s", manager = self.locks, tx = tx)]
    #[distributed_lock(key = "to:{to}", wait = "1s", manager = self.locks, tx = tx, on_busy = Ok(()))]
    pub async fn transfer(&self, from: u64, to: u64, tx: &mut Tx<'_>) -> Result<(), OrderError> {
        let _ = settle(tx, from).await?;
        let _ = settle(&mut *tx, to).await?;
        Ok(())
    }
}

#[distributed_lock(key = "{key}", tx = tx)]
pub async fn generic<K: Display, DB>(key: K, tx: &mut Transaction<'static, DB>) -> Result<u64, OrderError>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let done = sqlx::raw_sql("UPDATE orders SET settled = true").execute(&mut **tx).await;
    done.map(|_| 0).map_err(|_| OrderError::Unknown(0))
}

// The transaction of any driver.
#[distributed_lock(key = "order", tx = fence)]
pub async fn any_driver<C: FenceConnection>(fence: &mut C) -> Result<bool, OrderError> {
    Ok(fence.database() == dblock::fence::Database::Postgres)
}

#[distributed_lock(key = "order", tx = connection)]
pub async fn connection(connection: &mut PgConnection) -> Result<(), OrderError> {
    let done = sqlx::query("UPDATE orders SET settled = true").execute(connection).await;
    done.map(drop).map_err(|_| OrderError::Unknown(0))
}

#[async_trait]
pub trait Settle: Send + Sync {
    async fn settle_all(&self, tx: &mut Tx<'_>, ids: &[u64]) -> Result<u64, OrderError>;
}

#[async_trait]
impl Settle for Service {
    #[distributed_lock(key = "orders", manager = self.locks, tx = tx)]
    async fn settle_all(&self, tx: &mut Tx<'_>, ids: &[u64]) -> Result<u64, OrderError> {
        let mut last = 0;
        for id in ids {
            last = settle(tx, *id).await?;
        }
        Ok(last)
    }
}

pub fn is_send(service: &Service, tx: &mut Tx<'_>) {
    drop(send(service.settle(tx, 1)));
    drop(send(service.transfer(1, 2, tx)));
    drop(send(service.settle_all(tx, &[1])));
}

// The compiler judges what a name stands for.
type Lent<'t, 'c> = &'t mut Transaction<'c, Postgres>;

#[distributed_lock(key = "order", tx = tx)]
pub async fn alias(tx: Lent<'_, '_>) -> Result<u64, OrderError> {
    settle(tx, 1).await
}

#[distributed_lock(key = "remote", tx = tx)]
pub async fn only_the_lock_uses_it(tx: &mut Tx<'_>) -> Result<(), OrderError> {
    Ok(())
}

async fn by(tx: &mut &mut Tx<'_>) -> Result<u64, OrderError> {
    settle(tx, 1).await
}

#[distributed_lock(key = "order", tx = tx)]
pub async fn mutable(mut tx: &mut Tx<'_>) -> Result<u64, OrderError> {
    by(&mut tx).await
}
