//! A stock that many callers take from without a lock, with `SeaORM`: a change by version, which starts over
//! when somebody else was faster. `cargo test -p dblock-example-sea-orm` runs it.
//!
//! The same with plain sqlx is in `examples/optimistic`.

pub mod stock;

use dblock::optimistic::{Conflict, ExpectVersion as _, StaleVersion};
use dblock::optimistic_retry;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait as _, DatabaseConnection, DbErr, EntityTrait as _, ExprTrait as _, QueryFilter as _,
    RuntimeErr, TransactionTrait as _,
};

/// Why nothing was sold.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// Somebody else has changed the row in the meantime.
    #[error(transparent)]
    Stale(#[from] StaleVersion),
    /// The database refused, or could not be asked.
    #[error(transparent)]
    Database(#[from] DbErr),
    /// There is no such article.
    #[error("no article {0}")]
    Unknown(i64),
    /// There is not so much left.
    #[error("only {0} left")]
    SoldOut(i64),
}

impl Conflict for StockError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Stale(error) => error.is_conflict(),
            // SeaORM keeps the error of sqlx, and dblock knows its conflicts.
            Self::Database(
                DbErr::Conn(RuntimeErr::SqlxError(error))
                | DbErr::Exec(RuntimeErr::SqlxError(error))
                | DbErr::Query(RuntimeErr::SqlxError(error)),
            ) => error.is_conflict(),
            Self::Database(_) | Self::Unknown(_) | Self::SoldOut(_) => false,
        }
    }
}

/// Takes `pieces` of an article. Returns how many are left.
///
/// # Errors
/// [`StockError::SoldOut`] and [`StockError::Unknown`] at once; a conflict that is still there after 20 runs;
/// other errors of the database at once.
#[optimistic_retry(times = 20, backoff = "2ms..100ms", within = "10s")]
pub async fn sell(db: &DatabaseConnection, id: i64, pieces: i64) -> Result<i64, StockError> {
    let tx = db.begin().await?;
    let found = stock::Entity::find_by_id(id).one(&tx).await?;
    let stock::Model { amount, version, .. } = found.ok_or(StockError::Unknown(id))?;
    let left = amount - pieces;
    if left < 0 {
        return Err(StockError::SoldOut(amount));
    }
    stock::Entity::update_many()
        .col_expr(stock::Column::Amount, Expr::value(left))
        .col_expr(stock::Column::Version, Expr::col(stock::Column::Version).add(1))
        .filter(stock::Column::Id.eq(id))
        .filter(stock::Column::Version.eq(version))
        .exec(&tx)
        .await?
        .rows_affected
        .expect_version("stock", id, version)?;
    tx.commit().await?;
    Ok(left)
}
