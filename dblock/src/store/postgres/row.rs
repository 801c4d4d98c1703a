//! From result rows to outcomes and rows.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::store::clock::length;
use crate::store::sql_row::{self, WIDTH, unreadable};
use crate::store::{Holder, Kind, LockRow, Outcome, Released};

/// A row of [`COLUMNS`](sql_row::COLUMNS) and the clock.
pub(super) fn lock_row(row: &PgRow) -> Result<LockRow, sqlx::Error> {
    sql_row::lock_row(row, sql_row::key(row.try_get(0)?)?, row.try_get(WIDTH)?)
}

/// Reads one row of an answer to requests of this kind, as [`super::sql`] lists the columns. `recorded`: its request
/// has a change of a record.
pub(super) fn outcome(row: &PgRow, kind: Kind, recorded: bool) -> Result<Outcome, sqlx::Error> {
    let outcome = match (kind, row.try_get(1)?) {
        (Kind::Acquire, "busy") => Outcome::Busy(holder(row, length(row.try_get(3)?))?),
        (Kind::Acquire, "queued") => {
            let holder = holder(row, length(row.try_get(3)?))?;
            Outcome::queued(holder, length(row.try_get(8)?))
        }
        (Kind::Acquire, word @ ("granted" | "taken over")) => {
            let taken_over = (word == "taken over").then(|| holder(row, Duration::ZERO));
            let remaining = length(row.try_get(3)?);
            Outcome::granted(row.try_get(2)?, remaining)
                .with_taken_over(taken_over.transpose()?)
                .with_wanted(row.try_get(4)?)
                .with_recorded(recorded && row.try_get("recorded")?)
        }
        (Kind::Extend, "extended") => Outcome::extended(length(row.try_get(2)?))
            .with_revoked(row.try_get(3)?)
            .with_wanted(row.try_get(4)?),
        (Kind::Release, "free") => Outcome::Released(Released::Before),
        (Kind::Release, "freed") => Outcome::Released(Released::Freed),
        (Kind::Release, "passed on") => Outcome::Released(Released::PassedOn),
        (Kind::Release, "withdrawn") => Outcome::Withdrawn,
        (_, "lost") => Outcome::Lost,
        _ => return Err(unexpected("an unknown outcome")),
    };
    Ok(outcome)
}

fn holder(row: &PgRow, remaining: Duration) -> Result<Holder, sqlx::Error> {
    Ok(Holder::new(
        row.try_get(5)?,
        row.try_get::<String, _>(6)?,
        row.try_get(7)?,
        Some(remaining),
    ))
}

pub(super) fn unexpected(what: &str) -> sqlx::Error {
    unreadable(format!("the database answered with {what}"))
}
