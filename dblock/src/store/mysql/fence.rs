//! The fence check: the one statement of dblock that runs on a user's connection.

use std::time::Duration;

use sqlx::mysql::MySqlConnection;
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::{error, sql};
use crate::Key;
use crate::store::clock::until;
use crate::store::{StoreError, StoreErrorKind};

/// Locks the row of `key` for sharing and returns the time left of the lease, `None` when it is gone. From
/// here to the end of the user's transaction nobody else can take the lock over.
///
/// A locking read sees the newest row, whatever the transaction's snapshot is, but the user's plain reads see the
/// snapshot. So the token is first read by a plain read. A snapshot with another token is older than the lease,
/// and what the transaction has read may be from before the last owner's commit.
///
/// The clock is read by the last statement: the locking one may have waited for the row, and `UTC_TIMESTAMP` is the
/// start of its statement. It does not depend on the session's time zone.
pub(crate) async fn verify(
    connection: &mut MySqlConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
) -> Result<Option<Duration>, StoreError> {
    // MariaDB has no FOR SHARE.
    check(
        connection,
        table_sql,
        key,
        (lease_id, fence_token),
        "LOCK IN SHARE MODE",
    )
    .await
}

/// Frees the row in the transaction: false when the lease is gone. Others acquire the key when it commits.
pub(crate) async fn release_in(
    connection: &mut MySqlConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
) -> Result<bool, StoreError> {
    let ids = (lease_id, fence_token);
    if check(connection, table_sql, key, ids, "FOR UPDATE")
        .await?
        .is_none()
    {
        return Ok(false);
    }
    let free = format!(
        // The condition counts where no transaction is open, and the row is not locked.
        "UPDATE {table_sql} SET reentrant_count = 0, {NO_SUCCESSOR} \
         WHERE lock_key = {key} AND lease_id = {lease} AND fence_token = {fence_token} AND reentrant_count > 0",
        lease = sql::hex(lease_id.as_bytes()),
        NO_SUCCESSOR = sql::NO_SUCCESSOR,
        key = sql::hex(key.as_str().as_bytes()),
    );
    let freed = sqlx::raw_sql(AssertSqlSafe(free)).execute(connection).await;
    Ok(freed.map_err(error::of_fence_check)?.rows_affected() > 0)
}

/// What is left of the lease, whose row is locked by `lock` from here on.
async fn check(
    connection: &mut MySqlConnection,
    table_sql: &str,
    key: &Key,
    (lease_id, fence_token): (Uuid, i64),
    lock: &str,
) -> Result<Option<Duration>, StoreError> {
    let read = format!(
        "SELECT (SELECT fence_token FROM {table_sql} WHERE lock_key = {key});\
         SELECT lease_id, fence_token, reentrant_count, expire_at FROM {table_sql} WHERE lock_key = {key} \
         {lock};\
         SELECT {clock}",
        key = sql::hex(key.as_str().as_bytes()),
        clock = sql::CLOCK,
    );
    let rows = sqlx::raw_sql(AssertSqlSafe(read))
        .fetch_all(connection)
        .await
        .map_err(error::of_fence_check)?;
    let [plain, locked, clock] = &rows[..] else {
        return match rows.len() {
            2 => Ok(None),
            _ => Err(StoreError::new(
                StoreErrorKind::Other,
                "the server left rows out of its answer: is sql_select_limit of this session 0?",
            )),
        };
    };
    let unreadable =
        |error| StoreError::new(StoreErrorKind::Schema, "the lock row cannot be read").with_source(error);
    let seen: Option<i64> = plain.try_get(0).map_err(unreadable)?;
    let lease: Uuid = locked.try_get(0).map_err(unreadable)?;
    let token: i64 = locked.try_get(1).map_err(unreadable)?;
    let count: i32 = locked.try_get(2).map_err(unreadable)?;
    let expire_at: i64 = locked.try_get(3).map_err(unreadable)?;
    let now: i64 = clock.try_get(0).map_err(unreadable)?;
    if lease != lease_id || token != fence_token || count == 0 || expire_at <= now {
        return Ok(None);
    }
    if seen != Some(fence_token) {
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the transaction's snapshot is older than the lock: roll it back and begin it anew inside the lock, \
             before anything is read",
        ));
    }
    Ok(Some(until(expire_at, now)))
}
