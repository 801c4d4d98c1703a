//! The fence check in a user's transaction.

use std::time::Duration;

use sqlx::{Decode, PgConnection, Postgres, Row as _, Type};
use uuid::Uuid;

use super::statement::Statement;
use super::{error, sql};
use crate::key::Key;
use crate::store::clock::until;
use crate::store::{StoreError, StoreErrorKind};

/// Returns the time left of the lease, or `None` when it is gone. `table_sql` is the quoted table.
///
/// Until that transaction ends, nobody else can take the key over. The server ends the transaction when it
/// has idled for `idle_limit`. Otherwise a host that vanished would keep the key busy until TCP notices,
/// which may take hours.
///
/// # Errors
/// [`StoreErrorKind::Conflict`] under REPEATABLE READ or stricter, when the row was written after the snapshot (by a
/// renewal, for example) or is not in the snapshot. The transaction can be tried again.
pub(crate) async fn verify(
    connection: &mut PgConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
    idle_limit: Option<Duration>,
) -> Result<Option<Duration>, StoreError> {
    let statement = sql::verify(table_sql);
    match ask::<i64>(connection, statement, key, (lease_id, fence_token), idle_limit).await? {
        None => Ok(None),
        Some(micros) => Ok(Some(until(micros, 0))),
    }
}

/// Frees the row in the transaction: false when the lease is gone. Others acquire the key, and are woken, when it commits.
///
/// # Errors
/// As [`verify`], and [`StoreErrorKind::Unsupported`] below a savepoint: rolled back to it, the transaction would go on
/// without the lock.
pub(crate) async fn release_in(
    connection: &mut PgConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
    idle_limit: Option<Duration>,
) -> Result<bool, StoreError> {
    let statement = sql::release_in(table_sql);
    match ask::<bool>(connection, statement, key, (lease_id, fence_token), idle_limit).await? {
        None => Ok(false),
        Some(true) => Ok(true),
        Some(false) => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "a lock cannot end with a savepoint: release it in the transaction itself, before `SAVEPOINT`",
        )),
    }
}

/// What the statement answers in its first column; `None` when it finds no such lease.
async fn ask<T>(
    connection: &mut PgConnection,
    statement: String,
    key: &Key,
    (lease_id, fence_token): (Uuid, i64),
    idle_limit: Option<Duration>,
) -> Result<Option<T>, StoreError>
where
    T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
{
    let idle_limit = idle_limit.map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
    let rows = Statement::new(&statement.into())
        .bind(key.as_str())
        .bind(lease_id)
        .bind(fence_token)
        .bind(idle_limit)
        .fetch_in(connection)
        .await;
    let answer = rows.and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
    match answer.map_err(error::of_fence_check)? {
        None => Ok(None),
        Some(Some(answer)) => Ok(Some(answer)),
        Some(None) => Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the transaction's snapshot is older than the lock's row, unless the transaction is on another database or \
             schema: roll it back and begin it anew inside the lock, before anything is read",
        )),
    }
}
