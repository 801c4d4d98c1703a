//! Changes by version, without a lock: read, change, write if nobody else wrote meanwhile, and start over if
//! somebody did.
//!
//! Each row has a `version` column. A body reads the row, and writes it with
//! `… SET version = version + 1 … WHERE id = $1 AND version = $2`. If no row has changed, another transaction
//! came first: [`expect_version`](ExpectVersion::expect_version) makes that a [`StaleVersion`] error, and
//! [`macro@crate::optimistic_retry`] or [`retry`] runs the body again, with what the database has now.
//! Serialization failures and deadlocks of the database are [conflicts](Conflict) too.
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")]
//! # mod stock {
//! use dblock::optimistic::{Conflict, ExpectVersion, StaleVersion};
//! use dblock::optimistic_retry;
//!
//! #[derive(Debug, thiserror::Error)]
//! enum StockError {
//!     #[error(transparent)]
//!     Stale(#[from] StaleVersion),
//!     #[error(transparent)]
//!     Database(#[from] sqlx::Error),
//!     #[error("there is nothing left")]
//!     SoldOut,
//! }
//!
//! impl Conflict for StockError {
//!     fn is_conflict(&self) -> bool {
//!         match self {
//!             Self::Stale(error) => error.is_conflict(),
//!             Self::Database(error) => error.is_conflict(),
//!             Self::SoldOut => false,
//!         }
//!     }
//! }
//!
//! #[optimistic_retry(times = 5, backoff = "10ms..200ms", within = "2s")]
//! async fn sell(db: &sqlx::SqlitePool, id: i64) -> Result<i64, StockError> {
//!     let mut tx = dblock::begin(db).await?;
//!     let (left, version): (i64, i64) = sqlx::query_as("SELECT amount, version FROM stock WHERE id = ?")
//!         .bind(id)
//!         .fetch_one(&mut *tx)
//!         .await?;
//!     if left == 0 {
//!         return Err(StockError::SoldOut);
//!     }
//!     sqlx::query("UPDATE stock SET amount = ?, version = version + 1 WHERE id = ? AND version = ?")
//!         .bind(left - 1)
//!         .bind(id)
//!         .bind(version)
//!         .execute(&mut *tx)
//!         .await?
//!         .expect_version("stock", id, version)?;
//!     tx.commit().await?;
//!     Ok(left - 1)
//! }
//! # }
//! ```
//!
//! # What a body must keep
//! The body runs again from its start. So its work from before a conflict must be undone with its
//! transaction, or do no harm when it is done twice. Begin one transaction in the body, and call other
//! services after the body, not in it.
//!
//! A conflict ends the transaction in which it happens, so the next run needs a new one. Return the error
//! from the body: then the old transaction is dropped, which rolls it back.

pub(crate) mod attribute;
mod conflict;
mod retry;
mod version;

pub use conflict::Conflict;
pub use retry::{RetryOptions, retry};
pub use version::{ExpectVersion, StaleVersion};
