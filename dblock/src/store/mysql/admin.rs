//! The operators' calls. Unlike a batch, they may wait a short time for a row.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{MySqlStore, row, sql};
use crate::key::Key;
use crate::store::sql_row::COLUMNS;
use crate::store::{InspectFilter, LockRow, StoreError};

pub(super) async fn inspect(store: &MySqlStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let (table, clock) = (&store.table_sql, sql::CLOCK);
    let prefix = filter.key_prefix().as_bytes();
    // Columns and literals are bytes, so LEFT counts bytes and no character is a wildcard. The range makes it
    // start at the first such key.
    let held = if filter.is_held_only() {
        format!("AND reentrant_count > 0 AND expire_at > {clock}")
    } else {
        String::new()
    };
    let text = format!(
        "SELECT {COLUMNS} FROM {table} WHERE lock_key >= {prefix_hex} AND LEFT(lock_key, {length}) = {prefix_hex} \
         {held} ORDER BY lock_key LIMIT {limit};SELECT {clock}",
        prefix_hex = sql::hex(prefix),
        length = prefix.len(),
        limit = filter.max_rows(),
    );
    let mut connection = store.connections.take_new().await?;
    let rows = row::fetch(&mut connection, text)
        .await
        .map_err(|error| store.failed(error));
    let (mut rows, _) = connection.finish(rows)?;
    if filter.is_held_only() {
        // The clock was read after the rows: one may have expired in between.
        rows.retain(LockRow::is_held);
    }
    Ok(rows)
}

pub(super) async fn revoke(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    // The clock is up to a second old when somebody else had the row locked. A lease that expired meanwhile
    // may then be marked, which changes nothing: it is never extended and never revived.
    change_held(store, key, "revoked = TRUE").await
}

pub(super) async fn force_release(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    let lease = sql::hex(Uuid::now_v7().as_bytes());
    let free = format!("reentrant_count = 0, lease_id = {lease}, {}", sql::NO_SUCCESSOR);
    change_held(store, key, &free).await
}

/// Applies `assignments` to the row of a held key. Returns whether it was held.
async fn change_held(store: &MySqlStore, key: &Key, assignments: &str) -> Result<bool, StoreError> {
    let text = format!(
        "UPDATE {} SET {assignments} WHERE lock_key = {} AND reentrant_count > 0 AND expire_at > {}",
        store.table_sql,
        sql::hex(key.as_str().as_bytes()),
        sql::CLOCK,
    );
    let mut connection = store.connections.take_new().await?;
    let done = sqlx::raw_sql(AssertSqlSafe(text))
        .execute(&mut **connection)
        .await;
    let done = connection.finish(done.map_err(|error| store.failed(error)))?;
    // sqlx counts the rows that matched, not those that changed.
    Ok(done.rows_affected() > 0)
}
