//! A stock that many callers take from without a lock: a change by version, which starts over when somebody
//! else was faster.
//!
//! The same with `SeaORM` is in `examples/sea_orm`.

use dblock::optimistic::{Conflict, ExpectVersion as _, StaleVersion};
use dblock::optimistic_retry;
use sqlx::SqlitePool;

/// Why nothing was sold.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// Somebody else has changed the row in the meantime.
    #[error(transparent)]
    Stale(#[from] StaleVersion),
    /// The database refused, or could not be asked.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    /// There is not so much left.
    #[error("only {0} left")]
    SoldOut(i64),
}

impl Conflict for StockError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Stale(error) => error.is_conflict(),
            Self::Database(error) => error.is_conflict(),
            Self::SoldOut(_) => false,
        }
    }
}

/// Creates the table, with `amount` pieces of the article 1.
///
/// # Errors
/// Those of the database.
pub async fn create(db: &SqlitePool, amount: i64) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, amount INTEGER NOT NULL, version INTEGER NOT NULL)",
    )
    .execute(db)
    .await?;
    sqlx::query("INSERT INTO stock VALUES (1, $1, 0)")
        .bind(amount)
        .execute(db)
        .await?;
    Ok(())
}

/// Takes `pieces` of an article. Returns how many are left.
///
/// The body reads, decides and writes in one transaction. After a conflict it starts over with a new one.
///
/// # Errors
/// [`StockError::SoldOut`] at once; a conflict that is still there after 20 runs; other errors of the
/// database at once.
#[optimistic_retry(times = 20, backoff = "2ms..100ms", within = "10s")]
pub async fn sell(db: &SqlitePool, id: i64, pieces: i64) -> Result<i64, StockError> {
    let mut tx = dblock::begin(db).await?;
    let (amount, version): (i64, i64) = sqlx::query_as("SELECT amount, version FROM stock WHERE id = $1")
        .bind(id)
        .fetch_one(&mut *tx)
        .await?;
    let left = amount - pieces;
    if left < 0 {
        return Err(StockError::SoldOut(amount));
    }
    sqlx::query("UPDATE stock SET amount = $1, version = version + 1 WHERE id = $2 AND version = $3")
        .bind(left)
        .bind(id)
        .bind(version)
        .execute(&mut *tx)
        .await?
        .expect_version("stock", id, version)?;
    tx.commit().await?;
    Ok(left)
}
