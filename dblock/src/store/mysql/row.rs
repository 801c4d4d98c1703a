//! Reading rows of the lock table.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::sql::WIDTH;
use crate::Key;
use crate::store::{LockRow, Successor};

/// Runs a text that selects [`COLUMNS`](super::sql::COLUMNS) and, as its last statement, the clock.
pub(super) async fn fetch(
    connection: &mut MySqlConnection,
    sql: String,
) -> Result<(Vec<LockRow>, i64), sqlx::Error> {
    let mut rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?;
    // The rows of all statements come as one list.
    let now = rows.pop().ok_or(sqlx::Error::RowNotFound)?.try_get(0)?;
    let rows = rows.iter().map(|row| read(row, now)).collect::<Result<_, _>>()?;
    Ok((rows, now))
}

/// The key in the first column.
pub(super) fn key(row: &MySqlRow) -> Result<Key, sqlx::Error> {
    let key = std::str::from_utf8(row.try_get(0)?).map_err(unreadable)?;
    Key::new(None, key).map_err(unreadable)
}

/// A row of [`COLUMNS`](super::sql::COLUMNS) and the clock.
pub(super) fn with_clock(row: &MySqlRow) -> Result<LockRow, sqlx::Error> {
    read(row, row.try_get(WIDTH)?)
}

fn read(row: &MySqlRow, now: i64) -> Result<LockRow, sqlx::Error> {
    let count: i32 = row.try_get(2)?;
    Ok(LockRow {
        key: key(row)?,
        owner: row.try_get::<Uuid, _>(1)?,
        reentrant_count: u32::try_from(count).map_err(unreadable)?,
        expire_at: row.try_get(3)?,
        lease_id: row.try_get(4)?,
        fence_token: row.try_get(5)?,
        fence_ceiling: row.try_get(6)?,
        wanted_until: row.try_get(7)?,
        acquired_at: row.try_get(8)?,
        holder: row.try_get(9)?,
        revoked: row.try_get(10)?,
        next: successor(row)?,
        now,
    })
}

fn successor(row: &MySqlRow) -> Result<Option<Successor>, sqlx::Error> {
    let Some(lease_id) = row.try_get(11)? else {
        return Ok(None);
    };
    Ok(Some(Successor {
        lease_id,
        owner: row.try_get(12)?,
        holder: row.try_get(13)?,
        ttl: row.try_get(14)?,
        spare_tokens: u32::try_from(row.try_get::<i64, _>(15)?).map_err(unreadable)?,
        since: row.try_get(16)?,
        until: row.try_get(17)?,
    }))
}

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}
