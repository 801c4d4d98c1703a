//! The fence check: the one statement of dblock that runs on a connection of the user's.

use std::time::Duration;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::{error, text};
use crate::Key;
use crate::store::clock::until;
use crate::store::{StoreError, StoreErrorKind};

/// Locks the row of `key` for sharing and says what is left of the lease, `None` when it is gone. From
/// here to the end of the user's transaction nobody can take the lock over.
///
/// The clock is read by a second statement: the first one may have waited for the row, and
/// `UTC_TIMESTAMP` is the start of its statement. It is right in every time zone of the session.
pub(crate) async fn verify(
    connection: &mut MySqlConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
) -> Result<Option<Duration>, StoreError> {
    // LOCK IN SHARE MODE, because MariaDB has no FOR SHARE.
    let read = format!(
        "SELECT lease_id, fence_token, reentrant_count, expire_at FROM {table_sql} WHERE lock_key = ? \
         LOCK IN SHARE MODE"
    );
    let row = sqlx::query(AssertSqlSafe(read))
        .bind(key.as_str().as_bytes())
        .fetch_optional(&mut *connection)
        .await
        .map_err(error::of_fence_check)?;
    let Some(row) = row else { return Ok(None) };
    let clock = format!("SELECT {}", text::CLOCK);
    let now: i64 = sqlx::query_scalar(AssertSqlSafe(clock))
        .fetch_one(connection)
        .await
        .map_err(error::of_fence_check)?;

    let unreadable =
        |error| StoreError::new(StoreErrorKind::Schema, "the lock row cannot be read").with_source(error);
    let read = || -> Result<(Uuid, i64, i32, i64), sqlx::Error> {
        Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?))
    };
    let (lease, token, count, expire_at) = read().map_err(unreadable)?;
    let holds = lease == lease_id && token == fence_token && count > 0 && expire_at > now;
    Ok(holds.then(|| until(expire_at, now)))
}
