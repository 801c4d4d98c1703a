//! The fence check of [dblock](https://docs.rs/dblock), and a lock that ends with a transaction, over
//! [`tokio_postgres`] and [`deadpool_postgres`](https://docs.rs/deadpool-postgres).
//!
//! ```no_run
//! use dblock::LockManager;
//!
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//! async fn pay(locks: &LockManager, client: &mut tokio_postgres::Client) -> Result<()> {
//!     let guard = locks.lock("order:42").acquire().await?;
//!     let tx = client.transaction().await?;
//!     guard.release_in(&mut dblock_tokio_postgres::fence(&tx)).await?;
//!     tx.execute("UPDATE orders SET paid = true WHERE id = 42", &[]).await?;
//!     tx.commit().await?; // frees the lock, together with the work
//!     Ok(())
//! }
//! ```
//!
//! The same with a pool: a transaction of `deadpool_postgres` is one of `tokio_postgres`.
//!
//! ```no_run
//! use dblock::LockManager;
//!
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//! async fn settle(locks: &LockManager, pool: &deadpool_postgres::Pool) -> Result<()> {
//!     let guard = locks.lock("order:42").acquire().await?;
//!     let mut client = pool.get().await?;
//!     let tx = client.transaction().await?;
//!     guard.verify_in(&mut dblock_tokio_postgres::fence(&tx)).await?;
//!     tx.execute("UPDATE orders SET settled = true WHERE id = 42", &[]).await?;
//!     tx.commit().await?;
//!     guard.release().await?;
//!     Ok(())
//! }
//! ```
//!
//! A statement takes one round trip, and nothing is prepared.

use std::fmt;
use std::ops::Deref;

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
use dblock::store::StoreFuture;
use tokio_postgres::error::Severity;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, Transaction};

/// For `verify_in` and `release_in`: `guard.verify_in(&mut fence(&tx))`.
///
/// It borrows the transaction for the call only. Do not call it inside a savepoint: see
/// [`LockGuard::release_in`](dblock::LockGuard::release_in).
pub fn fence<'t>(transaction: &'t Transaction<'_>) -> Fence<'t> {
    Fence(transaction)
}

/// A transaction in which dblock runs statements. From [`fence`]. It passes as the transaction.
///
/// A function under the attribute takes it as its argument:
///
/// ```no_run
/// use dblock::distributed_lock;
/// use dblock_tokio_postgres::Fence;
///
/// # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// #[distributed_lock(key = "order:{id}", tx = tx)]
/// async fn settle(tx: &mut Fence<'_>, id: i32) -> Result<()> {
///     tx.execute("UPDATE orders SET settled = true WHERE id = $1", &[&id]).await?;
///     Ok(())
/// }
/// ```
pub struct Fence<'t>(&'t Transaction<'t>);

impl<'t> Deref for Fence<'t> {
    type Target = Transaction<'t>;

    fn deref(&self) -> &Transaction<'t> {
        self.0
    }
}

impl fmt::Debug for Fence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}

impl FenceConnection for Fence<'_> {
    fn database(&self) -> Database {
        Database::Postgres
    }

    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
        Box::pin(async move {
            let values = statement.parameters();
            let rows = self.0.query_typed(&statement.sql(), &texts(&values)).await;
            let answers = rows.and_then(|rows| rows.iter().map(|row| row.try_get(0)).collect());
            answers.map_err(failed)
        })
    }

    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move {
            let values = statement.parameters();
            let written = self.0.execute_typed(&statement.sql(), &texts(&values)).await;
            written.map_err(failed)
        })
    }
}

fn texts<'a>(values: &'a [&str]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let text = |value: &'a &str| (value as &(dyn ToSql + Sync), Type::TEXT);
    values.iter().map(text).collect()
}

fn failed(error: Error) -> DriverError {
    let failed = match error.as_db_error() {
        // An error of the two higher severities ends the session, and says nothing of the statement.
        Some(answer) if !matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic)) => {
            DriverError::refused(answer.message()).with_code(answer.code().code())
        }
        _ => DriverError::broken(error.to_string()),
    };
    failed.with_source(error)
}
