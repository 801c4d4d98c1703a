//! Transactions of the user's that a lock ends with.

use sqlx::{Database, Pool, Transaction};
use tokio::sync::oneshot;

/// Begins a transaction, as `pool.begin()` does, and can be dropped at any point.
///
/// sqlx 0.9.0's own `begin` leaves an open transaction in the pool when its future is dropped in the middle, which the next
/// user of that connection gets. Here a task begins the transaction, and rolls it back if nobody takes it.
///
/// # Errors
/// Those of `pool.begin()`.
///
/// # Cancel safety
/// Dropping the future leaves nothing behind.
///
/// # Panics
/// Outside of a tokio runtime.
///
/// ```no_run
/// # async fn pay(pool: &sqlx::SqlitePool) -> Result<(), sqlx::Error> {
/// let mut tx = dblock::begin(pool).await?;
/// sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *tx).await?;
/// tx.commit().await
/// # }
/// ```
pub async fn begin<DB: Database>(pool: &Pool<DB>) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let pool = pool.clone();
    let (give, take) = oneshot::channel();
    tokio::spawn(async move {
        let begun = pool.begin().await;
        // A transaction that nobody takes is dropped here, and with that rolled back.
        let _ = give.send(begun);
    });
    take.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}
