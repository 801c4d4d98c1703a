//! From result rows to outcomes and rows.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::sql;
use crate::store::clock::{Timestamp, length};
use crate::store::sql_row::{self, WIDTH, unreadable};
use crate::store::{Holder, Kind, LockRow, OpenTransaction, Outcome, Released};

/// A row of [`COLUMNS`](sql_row::COLUMNS) and the clock.
pub(super) fn lock_row(row: &PgRow) -> Result<LockRow, sqlx::Error> {
    sql_row::lock_row(row, sql_row::key(row.try_get(0)?)?, row.try_get(WIDTH)?)
}

/// A row as people see it: with its column `shared`.
pub(super) fn shown(row: &PgRow) -> Result<LockRow, sqlx::Error> {
    sql_row::with_shared(row, lock_row(row)?)
}

/// What is known of a transaction that has a row locked.
pub(super) enum Locked {
    /// Nobody has it locked, except perhaps a statement of ours for a moment.
    No,
    /// Perhaps somebody has, while the row has this `xmax`.
    Perhaps(String),
    By(OpenTransaction),
}

/// The column behind the clock.
pub(super) fn locked(row: &PgRow) -> Result<Locked, sqlx::Error> {
    let text: &str = row.try_get(WIDTH + 1)?;
    Locked::parse(text).ok_or_else(|| unexpected("an unknown transaction"))
}

impl Locked {
    fn parse(text: &str) -> Option<Self> {
        let mut transaction = OpenTransaction::default();
        let mut letters = text.chars();
        let first = letters.next();
        let rest = letters.as_str();
        match first {
            None => return Some(Self::No),
            Some(sql::DOUBT) => return Some(Self::Perhaps(rest.to_owned())),
            Some(sql::UNKNOWN) => {}
            Some(sql::PREPARED) => transaction.prepared = Some(rest.to_owned()),
            Some(sql::SESSION) => {
                let mut parts = rest.splitn(3, ' ');
                transaction.session = Some(parts.next()?.parse().ok()?);
                // Others' start can be seen by some users only.
                let since = parts.next()?;
                transaction.since = (!since.is_empty())
                    .then(|| since.parse().map(Timestamp::from_micros))
                    .transpose()
                    .ok()?;
                let application = parts.next()?;
                transaction.application = (!application.is_empty()).then(|| application.to_owned());
            }
            Some(_) => return None,
        }
        Some(Self::By(transaction))
    }

    /// The transaction, if it is known to have the row.
    pub(super) fn known(self) -> Option<OpenTransaction> {
        match self {
            Self::By(transaction) => Some(transaction),
            Self::No | Self::Perhaps(_) => None,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn by(text: &str) -> OpenTransaction {
        Locked::parse(text).unwrap().known().unwrap()
    }

    #[test]
    fn what_is_known_of_a_transaction_is_read() {
        let whole = by("s4711 1800000000000000 shop api");
        assert_eq!(whole.session, Some(4711));
        assert_eq!(whole.since, Some(Timestamp::from_micros(1_800_000_000_000_000)));
        assert_eq!(whole.application.as_deref(), Some("shop api"));
        let of_another_user = by("s4711  ");
        assert_eq!(
            (of_another_user.session, of_another_user.since),
            (Some(4711), None)
        );
        assert_eq!(of_another_user.application, None);
        assert_eq!(by("pbooking 7 of 9").prepared.as_deref(), Some("booking 7 of 9"));
        assert_eq!(by("u"), OpenTransaction::default());
        assert!(matches!(Locked::parse(""), Some(Locked::No)));
        assert!(matches!(Locked::parse("d815"), Some(Locked::Perhaps(xmax)) if xmax == "815"));
        for unknown in ["x", "s", "s1", "s1 2", "sx 2 name", "s1 x name"] {
            assert!(Locked::parse(unknown).is_none(), "{unknown}");
        }
    }
}
