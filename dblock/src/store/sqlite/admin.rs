//! The operators' calls.

use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::row::{lock_row, unexpected};
use super::{Query, SqliteStore, query, statement};
use crate::Key;
use crate::store::{InspectFilter, LockRow, StoreError, sql_row};

pub(super) async fn inspect(store: &SqliteStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let (prefix, held_only) = (filter.get_prefix(), !filter.get_include_free());
    let (after, limit) = (filter.get_after(), filter.get_limit());
    let key = after.map(|after| after.key.as_str());
    let query = if filter.get_urgent_first() {
        let query = statement(&store.statements.inspect_urgent).bind(prefix);
        let query = query.bind(held_only).bind(limit);
        let query = query.bind(after.map(|after| after.rank));
        query
            .bind(after.map(|after| after.acquired_at.as_micros()))
            .bind(key)
    } else {
        let query = statement(&store.statements.inspect).bind(filter.first_key());
        query.bind(prefix).bind(key).bind(held_only).bind(limit)
    };
    let with_shared = |row| sql_row::with_shared(row, lock_row(row)?).map_err(unexpected);
    rows(store, query).await?.iter().map(with_shared).collect()
}

pub(super) async fn revoke(store: &SqliteStore, key: &Key) -> Result<bool, StoreError> {
    let met = rows(store, query(&store.statements.revoke, key)).await?;
    Ok(!met.is_empty())
}

pub(super) async fn force_release(store: &SqliteStore, key: &Key) -> Result<bool, StoreError> {
    let free = query(&store.statements.force_release, key).bind(Uuid::now_v7());
    Ok(!rows(store, free).await?.is_empty())
}

/// Executes one statement on the connection of the store.
async fn rows(store: &SqliteStore, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
    let mut connection = store.connections.take().await?;
    let rows = store.rows(&mut connection, query).await;
    connection.finish(rows)
}
