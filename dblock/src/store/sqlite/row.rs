//! From result rows to outcomes and rows.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::key::Key;
use crate::store::clock::until;
use crate::store::{Action, LockRow, Outcome, Request, StoreError, StoreErrorKind, Successor};

/// What the row of a usual statement says.
pub(super) fn outcome(request: &Request, row: &SqliteRow) -> Result<Outcome, StoreError> {
    Ok(match request.action {
        Action::Acquire(_) => Outcome::Granted {
            fence_token: get(row, 0)?,
            remaining: until(get(row, 1)?, 0),
            taken_over: None,
            wanted: get(row, 2)?,
        },
        Action::Extend(_) => Outcome::Extended {
            remaining: until(get(row, 0)?, 0),
            revoked: get(row, 1)?,
            wanted: get(row, 2)?,
        },
        Action::Release => Outcome::Released {
            freed: true,
            passed_on: false,
            wanted: get(row, 0)?,
        },
    })
}

pub(super) fn lock_row(row: &SqliteRow) -> Result<LockRow, StoreError> {
    Ok(LockRow {
        key: key(get(row, 0)?)?,
        owner: get(row, 1)?,
        reentrant_count: get(row, 2)?,
        expire_at: get(row, 3)?,
        lease_id: get(row, 4)?,
        fence_token: get(row, 5)?,
        fence_ceiling: get(row, 6)?,
        wanted_until: get(row, 7)?,
        acquired_at: get(row, 8)?,
        holder: get(row, 9)?,
        revoked: get(row, 10)?,
        next: successor(row)?,
        now: now(row)?,
    })
}

/// The clock behind the columns of a row.
pub(super) fn now(row: &SqliteRow) -> Result<i64, StoreError> {
    get(row, 18)
}

fn successor(row: &SqliteRow) -> Result<Option<Successor>, StoreError> {
    let Some(lease_id) = get(row, 11)? else {
        return Ok(None);
    };
    Ok(Some(Successor {
        lease_id,
        owner: get(row, 12)?,
        holder: get(row, 13)?,
        ttl: get(row, 14)?,
        spare_tokens: get(row, 15)?,
        since: get(row, 16)?,
        until: get(row, 17)?,
    }))
}

pub(super) fn key(key: &str) -> Result<Key, StoreError> {
    Key::new(None, key).map_err(|error| {
        StoreError::new(StoreErrorKind::Other, "the lock table holds an impossible key").with_source(error)
    })
}

pub(super) fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    row.try_get(column).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Other,
            format!("the lock table holds an unexpected value: {error}"),
        )
        .with_source(error)
    })
}
