//! Locks beside a pool of `deadpool-postgres`: one that ends with a transaction, and one whose writes are
//! fenced. `cargo test -p dblock-example-deadpool-postgres` runs them on a server.

use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use dblock_tokio_postgres::fence;
use deadpool_postgres::{Pool, PoolError};

/// Why an order was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OrderError {
    /// The lock was busy or lost, or its store could not be asked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The pool gave no connection.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A statement failed.
    #[error(transparent)]
    Database(#[from] tokio_postgres::Error),
}

/// Orders in the database that keeps the locks.
#[derive(Debug)]
pub struct Orders {
    locks: LockManager,
    pool: Pool,
}

impl Orders {
    /// Orders of `pool`'s database, where `locks` are kept, too.
    pub fn new(locks: LockManager, pool: Pool) -> Self {
        Self { locks, pool }
    }

    /// Adds an item, unless the order has three. The lock ends with the transaction: the commit frees it, and
    /// so does a rollback.
    ///
    /// # Errors
    /// When the lock, the pool or a statement fails. Then nothing was added, unless it was the commit.
    ///
    /// # Cancel safety
    /// Dropping the future rolls back, if it did not commit yet, and frees the lock.
    pub async fn add(&self, order: i64, item: &str) -> Result<bool, OrderError> {
        // A caller that waits here keeps no connection of the pool.
        let guard = self
            .locks
            .lock(format!("order:{order}"))
            .wait(Duration::from_secs(5))
            .acquire()
            .await?;
        let mut client = self.pool.get().await?;
        let tx = client.transaction().await?;
        guard.release_in(&mut fence(&tx)).await?;
        let row = tx
            .query_one("SELECT count(*) FROM item WHERE order_id = $1", &[&order])
            .await?;
        if row.get::<_, i64>(0) >= 3 {
            return Ok(false);
        }
        tx.execute("INSERT INTO item VALUES ($1, $2)", &[&order, &item])
            .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Ships an order: a call to another service, then a write that only the lock's owner can do.
    ///
    /// # Errors
    /// When the lock, the pool or a statement fails, or the lock was lost before the write.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock. The order is marked if the transaction was committed.
    #[distributed_lock(key = "order:{order}", wait = "5s", manager = self.locks)]
    pub async fn ship(&self, order: i64, call: impl Future<Output = ()>) -> Result<(), OrderError> {
        call.await;
        let mut client = self.pool.get().await?;
        let tx = client.transaction().await?;
        if let Some(lock) = dblock::current() {
            // From here to the commit nobody can take the lock over.
            lock.verify_in(&mut fence(&tx)).await?;
        }
        tx.execute("UPDATE item SET shipped = true WHERE order_id = $1", &[&order])
            .await?;
        tx.commit().await?;
        Ok(())
    }
}
