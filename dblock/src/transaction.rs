//! Transactions of the user's that a lock ends with.

use std::fmt;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use sqlx::{AssertSqlSafe, Connection as _, Database, Pool, SqlSafeStr as _, Transaction};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::fence::Mark;

/// Begins a transaction, as `pool.begin()` does, but its future can be dropped at any point.
///
/// When the future of sqlx 0.9.0's own `begin` is dropped in the middle, an open transaction stays in the
/// pool, and the next user of that connection gets it. Here a task goes on until the transaction has begun,
/// and rolls it back.
///
/// # Errors
/// Those of `pool.begin()`.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
///
/// # Panics
/// As `pool.begin()`: outside of a tokio runtime.
///
/// ```no_run
/// # async fn pay(pool: &sqlx::SqlitePool) -> Result<(), sqlx::Error> {
/// let mut tx = dblock::begin(pool).await?;
/// sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *tx).await?;
/// tx.commit().await
/// # }
/// ```
pub async fn begin<DB: Database>(pool: &Pool<DB>) -> Result<Transaction<'static, DB>, sqlx::Error> {
    begin_on(connection_of(pool).await?, None).await
}

/// A connection that is in no transaction. Where a transaction was over before its rollback, sqlx 0.9.0 believes on
/// SQLite that it goes on, and would begin and commit nothing but savepoints from then on.
pub(crate) async fn connection_of<DB: Database>(pool: &Pool<DB>) -> Result<PoolConnection<DB>, sqlx::Error> {
    loop {
        let mut connection = pool.acquire().await?;
        if !connection.is_in_transaction() {
            return Ok(connection);
        }
        connection.close_on_drop();
    }
}

/// As [`begin`], by another message than that of the driver. Where it fails, it must leave no transaction open.
pub(crate) async fn begin_on<DB: Database>(
    connection: PoolConnection<DB>,
    statement: Option<String>,
) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let statement = statement.map(|statement| AssertSqlSafe(statement).into_sql_str());
    let mut begins = Begins {
        future: Some(Transaction::begin(connection, statement)),
    };
    let begun = poll_fn(|context| match &mut begins.future {
        Some(future) => future.as_mut().poll(context),
        None => unreachable!("only the drop takes it"),
    })
    .await;
    begins.future = None;
    begun
}

/// A transaction that is about to begin. If this is dropped first, a task waits until it has begun, and rolls it
/// back.
struct Begins<DB: Database> {
    future: Option<BoxFuture<'static, Result<Transaction<'static, DB>, sqlx::Error>>>,
}

impl<DB: Database> Drop for Begins<DB> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take()
            && let Ok(runtime) = Handle::try_current()
        {
            // A transaction that nobody takes is dropped. That rolls it back.
            runtime.spawn(async move { drop(future.await) });
        }
    }
}

/// The transaction of a body under [`LockBuilder::transaction`](crate::LockBuilder::transaction). The call
/// takes it back when the body has dropped it, and commits or rolls back.
///
/// It derefs to sqlx's transaction: `execute(&mut **tx)` runs a statement in it, and `&mut tx` is a
/// `&mut Transaction` for other functions. It borrows nothing, so the call can be spawned as a task.
pub struct LockedTransaction<DB: Database> {
    /// `None` once it was given back.
    parts: Option<Parts<DB>>,
    /// No other transaction has its mark while this one is lent.
    _mark: Option<Arc<Mark>>,
}

type Parts<DB> = (
    Transaction<'static, DB>,
    oneshot::Sender<Transaction<'static, DB>>,
);

impl<DB: Database> LockedTransaction<DB> {
    pub(crate) fn new(
        transaction: Transaction<'static, DB>,
        mark: Option<Arc<Mark>>,
    ) -> (Self, oneshot::Receiver<Transaction<'static, DB>>) {
        let (give_back, back) = oneshot::channel();
        let lent = Self {
            parts: Some((transaction, give_back)),
            _mark: mark,
        };
        (lent, back)
    }
}

const IS_THERE: &str = "it is given back by the drop only";

impl<DB: Database> Deref for LockedTransaction<DB> {
    type Target = Transaction<'static, DB>;

    fn deref(&self) -> &Self::Target {
        &self.parts.as_ref().expect(IS_THERE).0
    }
}

impl<DB: Database> DerefMut for LockedTransaction<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.parts.as_mut().expect(IS_THERE).0
    }
}

impl<DB: Database> Drop for LockedTransaction<DB> {
    fn drop(&mut self) {
        if let Some((transaction, give_back)) = self.parts.take() {
            // If no call takes the transaction, it is dropped. That rolls it back.
            let _ = give_back.send(transaction);
        }
    }
}

impl<DB: Database> fmt::Debug for LockedTransaction<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedTransaction").finish_non_exhaustive()
    }
}
