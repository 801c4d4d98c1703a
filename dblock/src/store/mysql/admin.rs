//! The operators' calls. Unlike a batch, they may wait a short time for a row.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{MySqlStore, row, sql};
use crate::Key;
use crate::store::sql_row::in_order;
use crate::store::{InspectFilter, LockRow, StoreError};

pub(super) async fn inspect(store: &MySqlStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let text = sql::inspect(&store.table_sql, filter);
    let mut connection = store.connections.take_new().await?;
    let rows = sqlx::raw_sql(AssertSqlSafe(text))
        .fetch_all(&mut **connection)
        .await;
    let rows = rows.and_then(|rows| rows.iter().map(row::with_clock).collect());
    connection.finish(rows.map_err(|error| store.failed(error)))
}

/// Not an operator's call, so it may use an idle connection.
pub(super) async fn rows(store: &MySqlStore, keys: &[Key]) -> Vec<Result<Option<LockRow>, StoreError>> {
    let found = async {
        let mut connection = store.connections.take().await?;
        let sessions = store.met.identity.sessions();
        let rows = row::fetch(&mut connection, sql::read_rows(&store.table_sql, keys.iter())).await;
        let session = connection.name().map(str::to_owned);
        let rows = connection.finish(rows.map_err(|error| store.failed(error)))?;
        if let Some(session) = session {
            store.met.identity.was_read(session, sessions);
        }
        Ok(rows)
    };
    let keyed = |row: LockRow| (row.key.clone(), Ok(row));
    in_order(
        keys,
        found.await.map(|(rows, _)| rows.into_iter().map(keyed).collect()),
    )
}

pub(super) async fn revoke(store: &MySqlStore, key: &Key) -> Result<bool, StoreError> {
    // If the row was locked, the clock is up to a second old. A lease that expired meanwhile may then be marked,
    // which changes nothing: it is never extended or revived.
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
