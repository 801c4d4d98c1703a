//! The records of runs.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::row::{get, key, unexpected};
use super::sql::{BEGIN, COMMIT, RecordStatements};
use super::{Query, SqliteStore, query, statement};
use crate::Key;
use crate::store::clock::micros;
use crate::store::{Purged, StoreError, StoreErrorKind, StoreFuture, schema, sql_row};
use crate::store::{
    Record, RecordChange, RecordEntry, RecordFilter, RecordVersion, RecordWrite, Records, RunState,
};

impl Records for SqliteStore {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let rows = self.on_records(query(&self.record_sql().read, key)).await?;
            rows.first().map(record).transpose()
        })
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connections.take().await?;
            let written = self.write_on(&mut connection, write).await;
            connection.finish(written)
        })
    }

    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let list = statement(&self.record_sql().list)
                .bind(filter.get_prefix())
                .bind(filter.get_state().map(super::super::RecordState::as_str))
                .bind(filter.get_limit())
                .bind(filter.get_run_state().and_then(RunState::has_lock));
            let listed = |row| Ok(record(row)?.listed(get(row, sql_row::RECORD_WIDTH + 1)?));
            self.on_records(list).await?.iter().map(listed).collect()
        })
    }

    fn purge<'a>(
        &'a self,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connections.take().await?;
            let purged = self.purge_records_on(&mut connection, after, limit).await;
            connection.finish(purged)
        })
    }
}

impl SqliteStore {
    fn record_sql(&self) -> &RecordStatements {
        &self.statements.records
    }

    /// Executes one statement on the connection of the store.
    async fn on_records(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        let mut connection = self.connections.take().await?;
        let rows = self.record_rows(&mut connection, query).await;
        connection.finish(rows)
    }

    async fn record_rows(
        &self,
        connection: &mut SqliteConnection,
        query: Query<'_>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        query.fetch_all(connection).await.map_err(|error| {
            let failed = self.failed(error);
            match failed.kind() {
                StoreErrorKind::Schema => schema::no_records(&self.table).with_source(failed),
                _ => failed,
            }
        })
    }

    async fn write_on(
        &self,
        connection: &mut SqliteConnection,
        write: &RecordWrite,
    ) -> Result<bool, StoreError> {
        let (needs, ends) = (write.needs(), write.ends());
        if needs.is_none() && ends.is_none() {
            return self.change(connection, &write.key, &write.change).await;
        }
        // From now on nobody else writes.
        self.control(connection, BEGIN).await?;
        let live = match needs {
            Some(lease_id) => self.is_live(connection, &write.key, lease_id).await?,
            None => true,
        };
        let written = live && self.change(connection, &write.key, &write.change).await?;
        if written && let Some(lease_id) = ends {
            let end = query(&self.statements.end, &write.key).bind(lease_id);
            self.rows(connection, end).await?;
        }
        self.control(connection, COMMIT).await?;
        Ok(written)
    }

    async fn is_live(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        lease_id: Uuid,
    ) -> Result<bool, StoreError> {
        let row = self.read_row(connection, key).await?;
        Ok(row.is_held() && row.lease_id == lease_id)
    }

    /// Changes a record, and returns whether it was changed.
    pub(super) async fn change(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
        change: &RecordChange,
    ) -> Result<bool, StoreError> {
        let sql = self.record_sql();
        let change = match (change.expected(), change.entry()) {
            (None, Some(entry)) => bind(query(&sql.insert, key), entry),
            (Some(version), Some(entry)) => expect(bind(query(&sql.replace, key), entry), version),
            (Some(version), None) => expect(query(&sql.delete, key), version),
            (None, None) => return Ok(false),
        };
        Ok(!self.record_rows(connection, change).await?.is_empty())
    }

    async fn purge_records_on(
        &self,
        connection: &mut SqliteConnection,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        if after.is_none() && !schema::has_records(self.version(connection).await?) {
            return Ok(purged);
        }
        let after = after.map_or("", Key::as_str);
        let look = statement(&self.record_sql().look).bind(after).bind(limit);
        let rows = self.record_rows(connection, look).await?;
        let Some(row) = rows.first() else {
            return Ok(purged);
        };
        let Some(last) = get::<Option<&str>>(row, 1)? else {
            return Ok(purged);
        };
        if get::<i64>(row, 2)? > 0 {
            let purge = statement(&self.record_sql().purge).bind(after).bind(last);
            let gone = self.record_rows(connection, purge).await?;
            purged.rows = u64::try_from(gone.len()).unwrap_or(u64::MAX);
        }
        if get::<u32>(row, 0)? >= limit {
            purged.next = Some(key(last)?);
        }
        Ok(purged)
    }
}

fn bind<'q>(query: Query<'q>, entry: &'q RecordEntry) -> Query<'q> {
    query
        .bind(entry.state.as_str())
        .bind(entry.attempts)
        .bind(entry.fence_token)
        .bind(entry.fingerprint)
        .bind(entry.result.as_deref())
        .bind(entry.error.as_deref())
        .bind(&entry.holder)
        .bind(micros(entry.keep))
}

fn expect(query: Query<'_>, version: RecordVersion) -> Query<'_> {
    query
        .bind(version.state.as_str())
        .bind(version.fence_token)
        .bind(version.attempts)
}

fn record(row: &SqliteRow) -> Result<Record, StoreError> {
    let now = get(row, sql_row::RECORD_WIDTH)?;
    sql_row::record(row, key(get(row, 0)?)?, now).map_err(unexpected)?
}
