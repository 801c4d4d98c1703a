//! Reads a row of the lock table: the part that all databases share.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::collections::HashMap;

use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

use super::StoreError;
use super::clock::{Timestamp, length};
use super::schema::SchemaVersion;
use super::sharing;
use super::{LockRow, Successor};
use super::{Record, RecordState};
use crate::Key;

/// The columns, in the order in which they are selected.
pub(crate) const COLUMNS: &str = "lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
                                  fence_ceiling, wanted_until, acquired_at, holder, revoked, next_lease, next_owner, \
                                  next_holder, next_ttl, next_spare, next_since, next_until";

/// The number of [`COLUMNS`]: the index of the next selected column.
pub(crate) const WIDTH: usize = 18;

/// A row of [`COLUMNS`] that was read at `now`. The caller reads the key, whose type depends on the database.
pub(crate) fn lock_row<'r, R>(row: &'r R, key: Key, now: i64) -> Result<LockRow, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    bool: Decode<'r, R::Database> + Type<R::Database>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
{
    let mut found = LockRow::new(key, Timestamp::from_micros(now));
    found.owner = row.try_get(1)?;
    found.reentrant_count = u32::try_from(row.try_get::<i32, _>(2)?).map_err(unreadable)?;
    found.expire_at = moment(row, 3)?;
    found.lease_id = row.try_get(4)?;
    found.fence_token = row.try_get(5)?;
    found.fence_ceiling = row.try_get(6)?;
    found.wanted_until = moment(row, 7)?;
    found.acquired_at = moment(row, 8)?;
    found.holder = row.try_get(9)?;
    found.revoked = row.try_get(10)?;
    if let Some(lease_id) = row.try_get(11)? {
        found.next = Some(Successor {
            lease_id,
            owner: row.try_get(12)?,
            holder: row.try_get(13)?,
            ttl: length(row.try_get(14)?),
            spare_tokens: u32::try_from(row.try_get::<i64, _>(15)?).map_err(unreadable)?,
            since: moment(row, 16)?,
            until: moment(row, 17)?,
            limit: None,
        });
    }
    Ok(found)
}

/// The column `shared`, as [`with_shared`] reads it.
pub(crate) const SHARED: &str = "shared AS shared_holds";

/// The same row with its column [`SHARED`].
pub(crate) fn with_shared<'r, R>(row: &'r R, mut found: LockRow) -> Result<LockRow, sqlx::Error>
where
    R: Row,
    for<'n> &'n str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    if let Some(text) = row.try_get::<Option<String>, _>("shared_holds")? {
        sharing::add(&mut found, &text).map_err(unreadable)?;
    }
    Ok(found)
}

/// The column [`SHARED`] of the row that the table `t` of a query has, or NULL where a table of an earlier schema version
/// has no such column. Then the name is that of [`NOT_SHARED`], which must be among the query's tables.
pub(crate) fn shared_if_there(table: &str) -> String {
    format!("(SELECT shared FROM {table} AS itself WHERE itself.lock_key = t.lock_key) AS shared_holds")
}

/// See [`shared_if_there`].
pub(crate) const NOT_SHARED: &str = "(SELECT NULL AS shared) AS not_shared";

/// The columns of a record, in the order in which they are selected.
pub(crate) const RECORD_COLUMNS: &str = "record_key, state, attempts, fence_token, fingerprint, result, error, holder, \
                                         started_at, finished_at, keep_until";

/// The number of [`RECORD_COLUMNS`].
pub(crate) const RECORD_WIDTH: usize = 11;

/// A row of [`RECORD_COLUMNS`] that was read at `now`. The inner error is for a record of a later version.
pub(crate) fn record<'r, R>(row: &'r R, key: Key, now: i64) -> Result<Result<Record, StoreError>, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
    String: Decode<'r, R::Database> + Type<R::Database>,
    Uuid: Decode<'r, R::Database> + Type<R::Database>,
{
    let state = match RecordState::parse(&row.try_get::<String, _>(1)?) {
        Ok(state) => state,
        Err(error) => return Ok(Err(error)),
    };
    let mut record = Record::new(key, state, Timestamp::from_micros(now));
    record.attempts = u32::try_from(row.try_get::<i32, _>(2)?).map_err(unreadable)?;
    record.fence_token = row.try_get(3)?;
    record.fingerprint = row.try_get(4)?;
    record.result = row.try_get(5)?;
    record.error = row.try_get(6)?;
    record.holder = row.try_get(7)?;
    record.started_at = moment(row, 8)?;
    record.finished_at = moment(row, 9)?;
    record.keep_until = moment(row, 10)?;
    Ok(Ok(record))
}

/// The moment in a column.
fn moment<'r, R>(row: &'r R, column: usize) -> Result<Timestamp, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    i64: Decode<'r, R::Database> + Type<R::Database>,
{
    row.try_get(column).map(Timestamp::from_micros)
}

/// The row of the version table.
pub(crate) fn schema_version<'r, R>(row: &'r R) -> Result<SchemaVersion, sqlx::Error>
where
    R: Row,
    usize: ColumnIndex<R>,
    i32: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(SchemaVersion {
        version: row.try_get(0)?,
        min_client: row.try_get(1)?,
    })
}

/// The key of a row.
pub(crate) fn key(text: &str) -> Result<Key, sqlx::Error> {
    Key::new(None, text).map_err(unreadable)
}

/// The error for a stored value that is not valid.
pub(crate) fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> sqlx::Error {
    sqlx::Error::Decode(error.into())
}

/// The key, and the record or row if it can be read.
#[cfg(any(feature = "mysql", feature = "postgres"))]
type Keyed<T> = (Key, Result<T, StoreError>);

/// The answers for several keys, from rows in any order. A failed query is the answer for all keys; a row that
/// cannot be read is the answer for its own key only.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn in_order<T: Clone>(
    keys: &[Key],
    found: Result<Vec<Keyed<T>>, StoreError>,
) -> Vec<Result<Option<T>, StoreError>> {
    match found {
        Ok(found) => {
            let found: HashMap<_, _> = found.into_iter().collect();
            keys.iter()
                .map(|key| found.get(key).cloned().transpose())
                .collect()
        }
        Err(error) => vec![Err(error); keys.len()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_is_the_number_of_columns() {
        assert_eq!(COLUMNS.split(", ").count(), WIDTH);
        assert_eq!(RECORD_COLUMNS.split(", ").count(), RECORD_WIDTH);
    }
}
