//! The fence check in a user's transaction.

use std::time::Duration;

use sqlx::{PgConnection, Row as _};
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
    let idle_limit = idle_limit.map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
    let answer = Statement::new(&sql::verify(table_sql).into())
        .bind(key.as_str())
        .bind(lease_id)
        .bind(fence_token)
        .bind(idle_limit)
        .fetch_in(connection)
        .await
        .and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
    match answer.map_err(error::of_fence_check)? {
        None => Ok(None),
        Some(Some(micros)) => Ok(Some(until(micros, 0))),
        Some(None) => Err(old_snapshot()),
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
    let idle_limit = idle_limit.map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX));
    let answer = Statement::new(&sql::release_in(table_sql).into())
        .bind(key.as_str())
        .bind(lease_id)
        .bind(fence_token)
        .bind(idle_limit)
        .fetch_in(connection)
        .await
        .and_then(|rows| rows.first().map(|row| row.try_get(0)).transpose());
    match answer.map_err(error::of_fence_check)? {
        None => Ok(false),
        Some(Some(true)) => Ok(true),
        Some(Some(false)) => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "a lock cannot end with a savepoint: release it in the transaction itself, before `SAVEPOINT`",
        )),
        Some(None) => Err(old_snapshot()),
    }
}

fn old_snapshot() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "the transaction's snapshot is older than the lock's row, unless the transaction is on another database or \
         schema: roll it back and begin it anew inside the lock, before anything is read",
    )
}
