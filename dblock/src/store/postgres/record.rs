//! The records of runs.
//!
//! Unlike operators' calls they use idle connections. If such a connection broke meanwhile, the outcome is
//! unknown; the caller reads the record and tries again.

use std::sync::Arc;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::statement::Statement;
use super::{PostgresStore, error, migrate, purge};
use crate::Key;
use crate::store::clock::micros;
use crate::store::sql_error::row_locked;
use crate::store::sql_row::{self, RECORD_WIDTH, in_order};
use crate::store::{Purged, StoreError, StoreFuture, schema};
use crate::store::{
    Record, RecordChange, RecordEntry, RecordFilter, RecordVersion, RecordWrite, Records, RunState,
};

impl Records for PostgresStore {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let rows = self.fetch(&self.sql.records.read, |read| read.bind(key.as_str()));
            rows.await?.first().map(|row| self.record(row)).transpose()
        })
    }

    fn read_all<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            let texts: Vec<&str> = keys.iter().map(Key::as_str).collect();
            let rows = self
                .fetch(&self.sql.records.read_all, |read| read.bind(texts))
                .await;
            let keyed = |row: &PgRow| {
                let key = row.try_get(0).and_then(sql_row::key);
                Ok((key.map_err(|error| self.failed(error))?, self.record(row)))
            };
            in_order(keys, rows.and_then(|rows| rows.iter().map(keyed).collect()))
        })
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let sql = &self.sql.records;
            let key = write.key.as_str();
            let (expected, entry) = (write.change.expected(), write.change.entry());
            let change = |it: Statement<'a>| {
                let it = it.bind(key);
                let it = match entry {
                    Some(entry) => bind(it, entry),
                    None => it,
                };
                match expected {
                    Some(version) => expect(it, version),
                    None => it,
                }
            };
            if let Some(lease_id) = write.needs() {
                let under = match (expected, entry) {
                    (None, _) => &sql.insert_under,
                    (Some(_), None) => &sql.delete_under,
                    (Some(_), Some(_)) => &sql.replace_under,
                };
                let rows = self.fetch(under, |it| change(it).bind(lease_id)).await?;
                return self.written_under(&rows);
            }
            let written = match (expected, entry) {
                (None, _) => self.fetch(&sql.insert, change).await,
                (Some(_), None) => self.fetch(&sql.delete, change).await,
                (Some(_), Some(_)) => {
                    let bound = |it: Statement<'a>| change(it).bind(write.ends());
                    match self.fetch(&sql.replace, bound).await {
                        Err(error) if error::is_from_full_queue(&error) => {
                            self.fetch(&sql.replace_quiet, bound).await
                        }
                        answer => answer,
                    }
                }
            };
            written.map(|rows| !rows.is_empty())
        })
    }

    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let rows = self.fetch(&self.sql.records.list, |list| {
                list.bind(filter.get_prefix())
                    .bind(filter.get_state().map(super::super::RecordState::as_str))
                    .bind(i64::from(filter.get_limit()))
                    .bind(filter.get_run_state().and_then(RunState::has_lock))
            });
            let listed = |row| {
                let has_lock = PgRow::try_get(row, RECORD_WIDTH + 1).map_err(|error| self.failed(error))?;
                Ok(self.record(row)?.listed(has_lock))
            };
            rows.await?.iter().map(listed).collect()
        })
    }

    fn purge<'a>(
        &'a self,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move {
            if after.is_none() && !self.has_records().await? {
                return Ok(Purged::default());
            }
            let rows = self.fetch(&self.sql.records.purge, |purge| {
                purge.bind(after.map_or("", Key::as_str)).bind(i64::from(limit))
            });
            let rows = rows.await?;
            let row = rows
                .first()
                .ok_or_else(|| self.failed(sqlx::Error::RowNotFound))?;
            purge::purged(row, limit).map_err(|error| self.failed(error))
        })
    }
}

impl PostgresStore {
    /// Executes one statement on a connection of the store.
    async fn fetch<'q>(
        &self,
        text: &Arc<str>,
        bind: impl FnOnce(Statement<'q>) -> Statement<'q>,
    ) -> Result<Vec<PgRow>, StoreError> {
        let statement = bind(Statement::new(text));
        let mut connection = self.connections.take().await?;
        let rows = statement.fetch_all(&mut connection).await;
        let rows = rows.map_err(|error| self.record_failed(error));
        self.finish(connection, rows).await
    }

    /// Classifies an error of a statement on the table of records.
    pub(super) fn record_failed(&self, error: sqlx::Error) -> StoreError {
        if error::is_missing_table(&error) {
            return schema::no_records(&self.table).with_source(error);
        }
        self.failed(error)
    }

    /// The answer of a write under a lease.
    fn written_under(&self, rows: &[PgRow]) -> Result<bool, StoreError> {
        let row = rows
            .first()
            .ok_or_else(|| self.failed(sqlx::Error::RowNotFound))?;
        let read = |column| row.try_get(column).map_err(|error| self.failed(error));
        match (read(0)?, read(1)?) {
            (false, true) => Err(row_locked()),
            (written, _) => Ok(written),
        }
    }

    async fn has_records(&self) -> Result<bool, StoreError> {
        let mut connection = self.connections.take().await?;
        let found = migrate::version(self, &mut connection).await;
        Ok(schema::has_records(connection.finish(found)?))
    }

    fn record(&self, row: &PgRow) -> Result<Record, StoreError> {
        let read = || sql_row::record(row, sql_row::key(row.try_get(0)?)?, row.try_get(RECORD_WIDTH)?);
        read().map_err(|error| self.failed(error))?
    }
}

/// Binds the new content of a record.
pub(super) fn bind<'q>(statement: Statement<'q>, entry: &'q RecordEntry) -> Statement<'q> {
    statement
        .bind(entry.state.as_str())
        .bind(attempts(entry.attempts))
        .bind(entry.fence_token)
        .bind(entry.fingerprint)
        .bind(entry.result.as_deref())
        .bind(entry.error.as_deref())
        .bind(&*entry.holder)
        .bind(micros(entry.keep))
}

/// Binds the columns of changes that go with a batch.
pub(super) fn bind_changes<'q>(statement: Statement<'q>, changes: &[&'q RecordChange]) -> Statement<'q> {
    fn entries<'q, T>(changes: &[&'q RecordChange], value: impl Fn(&'q RecordEntry) -> T) -> Vec<Option<T>> {
        changes.iter().map(|change| change.entry().map(&value)).collect()
    }
    fn versions<T>(changes: &[&RecordChange], value: impl Fn(RecordVersion) -> T) -> Vec<Option<T>> {
        changes
            .iter()
            .map(|change| change.expected().map(&value))
            .collect()
    }
    fn optional<'q, T>(
        changes: &[&'q RecordChange],
        value: impl Fn(&'q RecordEntry) -> Option<T>,
    ) -> Vec<Option<T>> {
        changes
            .iter()
            .map(|change| change.entry().and_then(&value))
            .collect()
    }
    statement
        .bind(entries(changes, |entry| entry.state.as_str()))
        .bind(entries(changes, |entry| attempts(entry.attempts)))
        .bind(entries(changes, |entry| entry.fence_token))
        .bind(optional(changes, |entry| entry.fingerprint))
        .bind(optional(changes, |entry| entry.result.as_deref()))
        .bind(optional(changes, |entry| entry.error.as_deref()))
        .bind(entries(changes, |entry| &*entry.holder))
        .bind(entries(changes, |entry| micros(entry.keep)))
        .bind(versions(changes, |version| version.state.as_str()))
        .bind(versions(changes, |version| version.fence_token))
        .bind(versions(changes, |version| attempts(version.attempts)))
}

fn expect(statement: Statement<'_>, version: RecordVersion) -> Statement<'_> {
    statement
        .bind(version.state.as_str())
        .bind(version.fence_token)
        .bind(attempts(version.attempts))
}

fn attempts(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
