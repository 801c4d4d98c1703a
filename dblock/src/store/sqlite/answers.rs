//! From result rows to outcomes.

use std::time::Duration;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::key::Key;
use crate::store::clock::until;
use crate::store::{Action, LockRow, Occupant, Outcome, Request, StoreError, StoreErrorKind};

/// The answer that the rows of a request's statements give.
pub(super) fn outcome(request: &Request, rows: &[SqliteRow]) -> Result<Outcome, StoreError> {
    match request.action {
        Action::Acquire(_) => acquired(rows),
        Action::Extend(_) => extended(rows),
        Action::Release => released(rows),
    }
}

fn acquired(rows: &[SqliteRow]) -> Result<Outcome, StoreError> {
    let mut before = None;
    let mut grant = None;
    for row in rows {
        if get(row, 0)? {
            grant = Some(row);
        } else {
            before = Some(row);
        }
    }
    let occupant = |row| {
        Ok(Occupant {
            owner: get(row, 3)?,
            holder: get(row, 4)?,
            fence_token: get(row, 5)?,
            remaining: until(get(row, 6)?, 0),
        })
    };
    match (grant, before) {
        (Some(grant), before) => {
            let mut taken_over = None;
            if let Some(before) = before {
                let (same_lease, was_taken): (bool, bool) = (get(before, 1)?, get(before, 2)?);
                if was_taken && !same_lease {
                    taken_over = Some(Occupant {
                        remaining: Duration::ZERO,
                        ..occupant(before)?
                    });
                }
            }
            Ok(Outcome::Granted {
                fence_token: get(grant, 1)?,
                remaining: until(get(grant, 2)?, 0),
                taken_over,
                wanted: get(grant, 3)?,
            })
        }
        (None, Some(before)) if get(before, 1)? => Ok(Outcome::Lost),
        (None, Some(before)) => occupant(before).map(Outcome::Busy),
        (None, None) => Err(StoreError::new(
            StoreErrorKind::Other,
            "the lock table took no row",
        )),
    }
}

fn extended(rows: &[SqliteRow]) -> Result<Outcome, StoreError> {
    let Some(row) = rows.first() else {
        return Ok(Outcome::Lost);
    };
    Ok(Outcome::Extended {
        remaining: until(get(row, 0)?, 0),
        revoked: get(row, 1)?,
        wanted: get(row, 2)?,
    })
}

fn released(rows: &[SqliteRow]) -> Result<Outcome, StoreError> {
    let Some(row) = rows.first() else {
        return Ok(Outcome::Lost);
    };
    Ok(Outcome::Released {
        freed: get(row, 0)?,
        passed_on: false,
        wanted: get(row, 1)?,
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
        next: None,
        now: get(row, 11)?,
    })
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
