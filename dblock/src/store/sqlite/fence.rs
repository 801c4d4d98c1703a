//! The fence check in a user's transaction.

use std::time::Duration;

use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use super::row::get;
use super::{error, sql};
use crate::key::Key;
use crate::store::StoreError;
use crate::store::clock::until;

/// Returns the time left of the lease, or `None` when it is gone. `table_sql` is the quoted table.
///
/// The check writes (a column to its own value), so it needs SQLite's only write lock. A transaction whose
/// snapshot is older than the last commit then fails as a conflict and does not trust an old row. Until the
/// user's commit nobody else can take the lock over.
pub(crate) async fn verify(
    connection: &mut SqliteConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
) -> Result<Option<Duration>, StoreError> {
    let rows = sqlx::query(AssertSqlSafe(sql::verify(table_sql)))
        .bind(key.as_str())
        .bind(lease_id)
        .bind(fence_token)
        .fetch_all(connection)
        .await
        .map_err(error::of_fence_check)?;
    rows.first()
        .map(|row| get(row, 0).map(|left| until(left, 0)))
        .transpose()
}

/// Frees the row in the transaction: false when the lease is gone. Others acquire the key when it commits.
pub(crate) async fn release_in(
    connection: &mut SqliteConnection,
    table_sql: &str,
    key: &Key,
    lease_id: Uuid,
    fence_token: i64,
) -> Result<bool, StoreError> {
    let freed = sqlx::query(AssertSqlSafe(sql::release_in(table_sql)))
        .bind(key.as_str())
        .bind(lease_id)
        .bind(fence_token)
        .execute(connection)
        .await
        .map_err(error::of_fence_check)?;
    Ok(freed.rows_affected() > 0)
}
