//! The service behind the routes. The method with the attribute is here; `cancel` needs no attribute.

use std::fmt;
use std::sync::Arc;

use dblock::{LockError, LockManager, distributed_lock};
use futures_util::future::BoxFuture;

use super::database::{Database, Order};

/// Writes the invoice of an order: its number and the amount in cents.
///
/// A second one replaces the first: when this process dies between the invoice and the commit, the next settle
/// writes it again. What must not happen twice, such as taking the money, needs `run_once` instead of a lock.
pub type Invoice = Arc<dyn Fn(i64, i64) -> BoxFuture<'static, ()> + Send + Sync>;

/// Orders and how to settle them.
pub struct Shop {
    orders: Database,
    locks: LockManager,
    invoice: Invoice,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShopError {
    /// There is no such order.
    #[error("there is no order {0}")]
    NotFound(i64),
    /// It is settled, so it cannot be cancelled.
    #[error("order {0} is settled already")]
    Settled(i64),
    /// The lock was busy or lost, or its store could not be asked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A statement on the orders failed.
    #[error("the database failed: {0}")]
    Database(#[from] sqlx::Error),
}

impl Shop {
    /// A shop on this database, with its locks there too.
    ///
    /// # Errors
    /// When the tables are not there and cannot be created.
    pub async fn open(orders: Database, invoice: Invoice) -> Result<Self, ShopError> {
        orders.create_tables().await?;
        let locks = orders.lock_manager().await?;
        Ok(Self {
            orders,
            locks,
            invoice,
        })
    }

    /// The manager of the shop's locks.
    pub fn locks(&self) -> &LockManager {
        &self.locks
    }

    /// Takes a new order.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn create(&self, cents: i64) -> Result<Order, ShopError> {
        Ok(self.orders.insert(cents).await?)
    }

    /// Looks an order up.
    ///
    /// # Errors
    /// When it is not there or the database fails.
    pub async fn find(&self, id: i64) -> Result<Order, ShopError> {
        self.orders.find(id).await?.ok_or(ShopError::NotFound(id))
    }

    /// Writes the invoice of an order and settles it. One request at a time is let in; the others are told that
    /// it is busy, for there is no `wait`.
    ///
    /// # Errors
    /// When the order is not there or busy, its lock was lost, or the database fails.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock. The order stays unsettled unless it was committed.
    #[distributed_lock(key = "order:{id}", ttl = "10s", manager = self.locks)]
    pub async fn settle(&self, id: i64) -> Result<Order, ShopError> {
        let order = self.find(id).await?;
        if order.settled_by.is_some() {
            return Ok(order);
        }
        (self.invoice)(order.id, order.cents).await;
        self.orders.settle(order).await
    }

    /// Cancels an order. That is work in the database alone, so the lock ends with its transaction.
    ///
    /// # Errors
    /// When the order is not there, busy or settled, or the database fails.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock. The order stays unless the transaction was committed.
    pub async fn cancel(&self, id: i64) -> Result<(), ShopError> {
        if self.orders.cancel(&self.locks, id).await? {
            return Ok(());
        }
        let order = self.find(id).await?;
        Err(ShopError::Settled(order.id))
    }
}

impl fmt::Debug for Shop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shop")
            .field("locks", &self.locks)
            .finish_non_exhaustive()
    }
}
