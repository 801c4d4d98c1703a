//! Deletes rows that nobody has used for a long time.

use std::time::Duration;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::statement::Statement;
use crate::Key;
use crate::store::clock::micros;
use crate::store::{Purged, StoreError, sql_row};

/// [`Store::purge`](crate::store::Store::purge). Unlike operators' calls it uses an idle connection: it takes
/// many steps, and a failed one is tried again later.
pub(super) async fn purge(
    store: &PostgresStore,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let failed = |error| store.failed(error);
    let mut connection = store.connections.take().await?;
    let rows = Statement::new(&store.sql.purge)
        // A key is never empty.
        .bind(after.map_or("", Key::as_str))
        .bind(i64::from(limit))
        .bind(micros(idle))
        .fetch_all(&mut connection)
        .await
        .map_err(failed);
    let rows = store.finish(connection, rows).await?;
    let row = rows.first().ok_or_else(|| failed(sqlx::Error::RowNotFound))?;
    purged(row, limit).map_err(failed)
}

/// The answer of a step.
pub(super) fn purged(row: &PgRow, limit: u32) -> Result<Purged, sqlx::Error> {
    let (looked_at, gone): (i64, i64) = (row.try_get(0)?, row.try_get(2)?);
    let next = if looked_at < i64::from(limit) {
        None
    } else {
        let last: Option<&str> = row.try_get(1)?;
        last.map(sql_row::key).transpose()?
    };
    Ok(Purged::new(u64::try_from(gone).unwrap_or(0), next))
}
