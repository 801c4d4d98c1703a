//! Reading rows of the lock table.

use sqlx::mysql::MySqlRow;
use sqlx::{AssertSqlSafe, Row as _};

use super::session::Session;
use super::sql::Shared;
use crate::Key;
use crate::store::LockRow;
use crate::store::sql_row::{self, WIDTH, lock_row, unreadable, with_shared};

/// Runs statements that select [`COLUMNS`](sql_row::COLUMNS), and the clock in the last of them.
pub(super) async fn fetch(
    session: &mut Session,
    statements: Vec<String>,
    shared: Shared,
) -> Result<(Vec<LockRow>, i64), sqlx::Error> {
    let mut rows = Vec::new();
    for message in session.messages(statements) {
        let message = sqlx::raw_sql(AssertSqlSafe(message));
        rows.extend(message.fetch_all(&mut **session).await?);
    }
    // The rows of all statements arrive as one list.
    let now = rows.pop().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    let rows = rows.iter().map(|row| {
        let found = lock_row(row, key(row)?, now)?;
        complete(row, found, shared)
    });
    Ok((rows.collect::<Result<_, _>>()?, now))
}

/// The key in the first column.
pub(super) fn key(row: &MySqlRow) -> Result<Key, sqlx::Error> {
    sql_row::key(std::str::from_utf8(row.try_get(0)?).map_err(unreadable)?)
}

/// A row of [`COLUMNS`](sql_row::COLUMNS) and the clock.
pub(super) fn with_clock(row: &MySqlRow, shared: Shared) -> Result<LockRow, sqlx::Error> {
    complete(row, lock_row(row, key(row)?, row.try_get(WIDTH)?)?, shared)
}

fn complete(row: &MySqlRow, found: LockRow, shared: Shared) -> Result<LockRow, sqlx::Error> {
    match shared {
        Shared::No => Ok(found),
        Shared::Yes | Shared::IfThere => with_shared(row, found),
    }
}
