//! From result rows to outcomes and rows.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::Key;
use crate::store::clock::length;
use crate::store::sql_error::unsupported_action;
use crate::store::sql_row::{self, WIDTH};
use crate::store::{Action, LockRow, Outcome, Released, Request, StoreError, StoreErrorKind};

/// The outcome in the row of a usual statement.
pub(super) fn outcome(request: &Request, row: &SqliteRow) -> Result<Outcome, StoreError> {
    Ok(match &request.action {
        Action::Acquire(_) => Outcome::granted(get(row, 0)?, length(get(row, 1)?)).with_wanted(get(row, 2)?),
        Action::Extend(ask) => Outcome::extended(length(get(row, 0)?))
            .with_count(ask.count.max(1))
            .with_revoked(get(row, 1)?)
            .with_wanted(get(row, 2)?),
        Action::Release => Outcome::Released(Released::Freed),
        _ => return Err(unsupported_action()),
    })
}

pub(super) fn lock_row(row: &SqliteRow) -> Result<LockRow, StoreError> {
    sql_row::lock_row(row, key(get(row, 0)?)?, now(row)?).map_err(unexpected)
}

/// The clock, which follows the columns of a row.
pub(super) fn now(row: &SqliteRow) -> Result<i64, StoreError> {
    get(row, WIDTH)
}

pub(super) fn key(text: &str) -> Result<Key, StoreError> {
    sql_row::key(text).map_err(unexpected)
}

pub(super) fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(unexpected)
}

pub(super) fn unexpected(error: sqlx::Error) -> StoreError {
    let message = format!("the lock table holds an unexpected value: {error}");
    StoreError::new(StoreErrorKind::Other, message).with_source(error)
}
