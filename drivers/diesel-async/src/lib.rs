//! The fence check of [dblock](https://docs.rs/dblock), and a lock that ends with a transaction, over
//! [`diesel_async`].
//!
//! ```no_run
//! # #[cfg(feature = "postgres")] mod example {
//! use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl};
//! use dblock::LockManager;
//!
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
//! async fn pay(locks: &LockManager, connection: &mut AsyncPgConnection) -> Result<()> {
//!     let guard = locks.lock("order:42").acquire().await?;
//!     // The commit frees the lock, together with the work.
//!     connection.transaction(async |tx| {
//!         guard.release_in(&mut dblock_diesel_async::fence(tx)).await?;
//!         diesel::sql_query("UPDATE orders SET paid = true WHERE id = 42").execute(tx).await?;
//!         Ok(())
//!     }).await
//! }
//! # }
//! ```
//!
//! Turn on the feature of your database: `postgres` or `mysql`. No client library is linked. Pass a
//! connection of a pool as `fence(&mut **tx)`. On PostgreSQL a statement takes two round trips, like every
//! statement that Diesel sends for the first time.
//!
//! # Errors
//! Diesel does not pass on the database's error code. This crate knows what can be tried again (deadlocks,
//! serialization failures, timeouts) from Diesel's kind of the error, and from the text of the message where
//! the kind says nothing. On a server whose `lc_messages` is not English such an error is reported as final.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(any(feature = "postgres", feature = "mysql"))]
mod carry;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod code;

use std::fmt;
use std::ops::{Deref, DerefMut};

/// For `verify_in` and `release_in`: `guard.verify_in(&mut fence(tx))`, inside
/// [`transaction`](diesel_async::AsyncConnection::transaction).
///
/// Outside of a transaction a statement takes effect at once, and a lock is not kept. A transaction inside
/// another one is a savepoint: see [`LockGuard::release_in`](dblock::LockGuard::release_in).
pub fn fence<C>(connection: &mut C) -> Fence<'_, C> {
    Fence(connection)
}

/// A connection, with its transaction, in which dblock runs statements. From [`fence`]. It derefs to
/// the connection.
///
/// A function under the attribute takes it as its argument:
///
/// ```no_run
/// # #[cfg(feature = "postgres")] mod example {
/// use diesel_async::{AsyncPgConnection, RunQueryDsl};
/// use dblock::distributed_lock;
/// use dblock_diesel_async::Fence;
///
/// # type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
/// #[distributed_lock(key = "order:{id}", tx = tx)]
/// async fn settle(tx: &mut Fence<'_, AsyncPgConnection>, id: i32) -> Result<()> {
///     diesel::sql_query("UPDATE orders SET settled = true WHERE id = 42").execute(&mut **tx).await?;
///     Ok(())
/// }
/// # }
/// ```
pub struct Fence<'t, C>(&'t mut C);

impl<C> Deref for Fence<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        self.0
    }
}

impl<C> DerefMut for Fence<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.0
    }
}

impl<C> fmt::Debug for Fence<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}
