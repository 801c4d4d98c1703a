//! Deletes rows that nobody has used for a long time.

use std::time::Duration;

use sqlx::SqliteConnection;

use super::row::{get, key};
use super::{SqliteStore, statement};
use crate::Key;
use crate::store::clock::micros;
use crate::store::{Purged, StoreError};

/// [`Store::purge`](crate::store::Store::purge).
pub(super) async fn purge(
    store: &SqliteStore,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let mut connection = store.connections.take().await?;
    let answer = store.purge_on(&mut connection, idle, after, limit).await;
    connection.finish(answer)
}

impl SqliteStore {
    /// Reads first, so that a file without idle rows, the usual case, is not locked for writing.
    async fn purge_on(
        &self,
        connection: &mut SqliteConnection,
        idle: Duration,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        // The empty key sorts before every key.
        let after = after.map_or("", Key::as_str);
        let look = statement(&self.statements.idle)
            .bind(after)
            .bind(micros(idle))
            .bind(limit);
        let rows = self.rows(connection, look).await?;
        let mut purged = Purged::default();
        let Some(row) = rows.first() else {
            return Ok(purged);
        };
        let looked_at: u32 = get(row, 0)?;
        let Some(last) = get::<Option<&str>>(row, 1)? else {
            return Ok(purged);
        };
        if get::<i64>(row, 2)? > 0 {
            purged.rows = statement(&self.statements.purge)
                .bind(after)
                .bind(micros(idle))
                .bind(last)
                .execute(connection)
                .await
                .map_err(|error| self.failed(error))?
                .rows_affected();
        }
        if looked_at >= limit {
            purged.next = Some(key(last)?);
        }
        Ok(purged)
    }
}
