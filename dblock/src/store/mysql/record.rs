//! The records of runs. As in batches, statements are text in which every value is digits.

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row as _};
use uuid::Uuid;

use super::error::Rights;
use super::session::Session;
use super::{MySqlStore, error, migrate, row, sql};
use crate::Key;
use crate::store::clock::micros;
use crate::store::sql_error::row_locked;
use crate::store::sql_row::{self, RECORD_COLUMNS, RECORD_WIDTH, in_order};
use crate::store::{Purged, StoreError, StoreFuture, schema};
use crate::store::{
    Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordVersion, RecordWrite, Records,
    RunState,
};

impl Records for MySqlStore {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            let rows = self
                .fetch(self.select(&format!("WHERE record_key = {}", hex(key))))
                .await?;
            rows.first().map(|row| self.record(row)).transpose()
        })
    }

    fn read_all<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            let text = self.select(&format!("WHERE record_key IN ({})", sql::key_list(keys.iter())));
            let keyed = |row: &MySqlRow| {
                let key = row::key(row).map_err(|error| self.failed(error))?;
                Ok((key, self.record(row)))
            };
            let rows = self.fetch(text).await;
            in_order(keys, rows.and_then(|rows| rows.iter().map(keyed).collect()))
        })
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connections.take().await?;
            let written = match write.needs() {
                Some(lease_id) => self.write_under(&mut connection, write, lease_id).await,
                None => self.write_on(&mut connection, write).await.map(Some),
            };
            if written.is_err() {
                // Ends the row locks now, and not when the server notices the closed socket.
                let _ = self.run(&mut connection, "ROLLBACK".into()).await;
            }
            connection.finish(written)?.ok_or_else(row_locked)
        })
    }

    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let prefix = filter.get_prefix().as_bytes();
            let state = filter.get_state().map_or("TRUE".to_owned(), is_state);
            // Columns and literals are bytes, so LEFT counts bytes and no character is a wildcard.
            let (clock, locks, records) = (sql::CLOCK, &self.table_sql, self.record_table());
            // One statement reads from one snapshot.
            let lock = match filter.get_run_state().and_then(RunState::has_lock) {
                None => "TRUE",
                Some(true) => "has_lock",
                Some(false) => "NOT has_lock",
            };
            let text = format!(
                "SELECT {RECORD_COLUMNS}, {clock}, has_lock FROM (SELECT r.*, {is_processing} AND EXISTS (SELECT 1 FROM {locks} l \
                 WHERE l.lock_key = r.record_key AND l.fence_token <= r.fence_token AND l.reentrant_count > 0 \
                 AND l.expire_at > {clock}) AS has_lock FROM {records} r \
                 WHERE record_key >= {prefix_hex} AND LEFT(record_key, {length}) = {prefix_hex} AND {state}) found \
                 WHERE {lock} ORDER BY record_key LIMIT {limit}",
                is_processing = is_state(RecordState::Processing),
                prefix_hex = sql::hex(prefix),
                length = prefix.len(),
                limit = filter.get_limit(),
            );
            let listed = |row: &MySqlRow| {
                let has_lock = row.try_get::<i64, _>(RECORD_WIDTH + 1);
                let has_lock = has_lock.map_err(|error| self.failed(error))?;
                Ok(self.record(row)?.listed(has_lock != 0))
            };
            self.fetch(text).await?.iter().map(listed).collect()
        })
    }

    fn purge<'a>(
        &'a self,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connections.take().await?;
            let purged = self.purge_on(&mut connection, after, limit).await;
            connection.finish(purged)
        })
    }
}

impl MySqlStore {
    /// The quoted table.
    pub(super) fn record_table(&self) -> String {
        self.table.quoted_record('`')
    }

    fn select(&self, rest: &str) -> String {
        let (table, clock) = (self.record_table(), sql::CLOCK);
        format!("SELECT {RECORD_COLUMNS}, {clock} FROM {table} {rest}")
    }

    fn record(&self, row: &MySqlRow) -> Result<Record, StoreError> {
        let read = || sql_row::record(row, row::key(row)?, row.try_get(RECORD_WIDTH)?);
        read().map_err(|error| self.failed(error))?
    }

    /// Executes one statement on a connection of the store.
    async fn fetch(&self, text: String) -> Result<Vec<MySqlRow>, StoreError> {
        let mut connection = self.connections.take().await?;
        let rows = self.fetch_on(&mut connection, text).await;
        connection.finish(rows)
    }

    async fn fetch_on(
        &self,
        connection: &mut MySqlConnection,
        text: String,
    ) -> Result<Vec<MySqlRow>, StoreError> {
        let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(connection).await;
        rows.map_err(|error| self.record_failed(error))
    }

    /// Executes statements, and returns how many rows they have matched.
    async fn run(&self, connection: &mut MySqlConnection, text: String) -> Result<u64, StoreError> {
        let done = sqlx::raw_sql(AssertSqlSafe(text)).execute(connection).await;
        done.map(|done| done.rows_affected())
            .map_err(|error| self.record_failed(error))
    }

    /// Classifies an error of a statement on the table of records.
    pub(super) fn record_failed(&self, error: sqlx::Error) -> StoreError {
        if error::number(&error) == Some(error::NO_SUCH_TABLE) {
            return schema::no_records(&self.table).with_source(error);
        }
        self.failed_without(error, Rights::Records)
    }

    /// A write that needs the lease. `None` if it would wait for a locked row: the transaction that has it
    /// locked may be the caller's own, and wait for the caller.
    async fn write_under(
        &self,
        connection: &mut Session,
        write: &RecordWrite,
        lease_id: Uuid,
    ) -> Result<Option<bool>, StoreError> {
        let row = format!(
            "FROM {} WHERE lock_key = {} AND lease_id = {} AND reentrant_count > 0",
            self.table_sql,
            hex(&write.key),
            sql::hex(lease_id.as_bytes()),
        );
        let records = self.record_table();
        let record = format!("FROM {records} WHERE record_key = {}", hex(&write.key));
        let is_live = format!("expire_at > {}", sql::LIVE_CLOCK);
        let begin = Some("START TRANSACTION".to_owned());
        let mut written = self.lock_row(connection, begin, &is_live, &row).await?;
        if written == Some(true) && write.change.expected().is_some() {
            written = self.lock_row(connection, None, "1", &record).await?;
        }
        if written != Some(true) {
            self.run(connection, "ROLLBACK".into()).await?;
            return Ok(written);
        }
        let change = change(&records, &write.key, &write.change);
        let written = match self.run(connection, change).await {
            Err(error) if is_duplicate(&error) => false,
            matched => matched? > 0,
        };
        self.run(connection, "COMMIT".into()).await?;
        Ok(Some(written))
    }

    /// Locks the row `found`, and returns its `column`: false if there is no row, `None` if another transaction
    /// has it locked.
    async fn lock_row(
        &self,
        connection: &mut Session,
        begin: Option<String>,
        column: &str,
        found: &str,
    ) -> Result<Option<bool>, StoreError> {
        let lock = format!("SELECT {column} {found} FOR UPDATE SKIP LOCKED");
        let mut locked = Vec::new();
        for message in connection.messages(begin.into_iter().chain([lock]).collect()) {
            locked = self.fetch_on(connection, message).await?;
        }
        if let [row, ..] = &locked[..] {
            let says = row.try_get::<i64, _>(0).map_err(|error| self.failed(error))?;
            return Ok(Some(says != 0));
        }
        let skipped = self.fetch_on(connection, format!("SELECT 1 {found}")).await?;
        Ok(skipped.is_empty().then_some(false))
    }

    async fn write_on(&self, connection: &mut Session, write: &RecordWrite) -> Result<bool, StoreError> {
        let key = hex(&write.key);
        let change = change(&self.record_table(), &write.key, &write.change);
        let Some(lease_id) = write.ends() else {
            return match self.run(connection, change).await {
                // Another record was inserted just now.
                Err(error) if is_duplicate(&error) => Ok(false),
                matched => Ok(matched? > 0),
            };
        };
        let begun = connection.run(vec!["START TRANSACTION".to_owned(), change]).await;
        let begun = begun.map_err(|error| self.record_failed(error))?;
        let written = begun.last().is_some_and(|matched| *matched > 0);
        let end = format!(
            "UPDATE {} SET reentrant_count = 0, {} \
             WHERE lock_key = {key} AND lease_id = {} AND reentrant_count > 0 AND expire_at > {}",
            self.table_sql,
            sql::NO_SUCCESSOR,
            sql::hex(lease_id.as_bytes()),
            sql::CLOCK,
        );
        let end = written.then_some(end).into_iter().chain(["COMMIT".to_owned()]);
        let ended = connection.run(end.collect()).await;
        ended.map_err(|error| self.record_failed(error))?;
        Ok(written)
    }

    async fn purge_on(
        &self,
        connection: &mut MySqlConnection,
        after: Option<&Key>,
        limit: u32,
    ) -> Result<Purged, StoreError> {
        let mut purged = Purged::default();
        if after.is_none() && !schema::has_records(migrate::version(self, connection, Rights::Locks).await?) {
            return Ok(purged);
        }
        let table = self.record_table();
        let is_over = format!(
            "(NOT {} AND keep_until <= {})",
            is_state(RecordState::Processing),
            sql::CLOCK
        );
        let from = after.map_or_else(|| sql::hex(&[]), hex);
        let look = format!(
            "SELECT record_key, {is_over} FROM {table} WHERE record_key > {from} ORDER BY record_key LIMIT {limit}"
        );
        let rows = self.fetch_on(connection, look).await?;
        let read = |row: &MySqlRow| Ok((row::key(row)?, row.try_get::<i64, _>(1)? != 0));
        let seen: Result<Vec<_>, sqlx::Error> = rows.iter().map(read).collect();
        let seen = seen.map_err(|error| self.failed(error))?;
        if seen.len() >= usize::try_from(limit).unwrap_or(usize::MAX) {
            purged.next = seen.last().map(|(key, _)| key.clone());
        }
        let keys = sql::key_list(seen.iter().filter(|(_, over)| *over).map(|(key, _)| key));
        if !keys.is_empty() {
            let delete = format!("DELETE FROM {table} WHERE record_key IN ({keys}) AND {is_over}");
            purged.rows = self.run(connection, delete).await?;
        }
        Ok(purged)
    }
}

/// The statement that makes `change`. It matches a row if it has made it.
pub(super) fn change(table: &str, key: &Key, change: &RecordChange) -> String {
    let key = hex(key);
    match (change.expected(), change.entry()) {
        (None, Some(entry)) => insert(table, &key, entry),
        (Some(version), Some(entry)) => replace(table, &key, version, entry),
        (Some(version), None) => {
            format!(
                "DELETE FROM {table} WHERE record_key = {key} AND {}",
                is_version(version)
            )
        }
        (None, None) => "DO 0".into(),
    }
}

/// `started_at`, `finished_at` and `keep_until`, as SQL. An attempt that has ended started at `since`.
fn times(entry: &RecordEntry, since: &str) -> [String; 3] {
    let clock = sql::CLOCK;
    let keep_until = format!("{clock} + {}", micros(entry.keep));
    match entry.state {
        RecordState::Processing => [clock.into(), "0".into(), keep_until],
        _ => [since.into(), clock.into(), keep_until],
    }
}

/// The columns from `state` to `holder`, as SQL.
fn values(entry: &RecordEntry) -> [String; 7] {
    let text = |text: &str| format!("_utf8mb4 {}", sql::hex(text.as_bytes()));
    let optional = |value: &Option<String>| value.as_deref().map_or("NULL".to_owned(), text);
    let fingerprint = entry.fingerprint.map(|hash| sql::hex(hash.as_bytes()));
    [
        format!("'{}'", entry.state.as_str()),
        entry.attempts.to_string(),
        entry.fence_token.to_string(),
        fingerprint.unwrap_or_else(|| "NULL".into()),
        optional(&entry.result),
        optional(&entry.error),
        text(&entry.holder),
    ]
}

fn insert(table: &str, key: &str, entry: &RecordEntry) -> String {
    let [started_at, finished_at, keep_until] = times(entry, sql::CLOCK);
    format!(
        "INSERT INTO {table} ({RECORD_COLUMNS}) SELECT {key}, {}, {started_at}, {finished_at}, {keep_until} FROM DUAL \
         WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE record_key = {key})",
        values(entry).join(", ")
    )
}

fn replace(table: &str, key: &str, version: RecordVersion, entry: &RecordEntry) -> String {
    let columns = RECORD_COLUMNS.split(", ").skip(1);
    let values = values(entry).into_iter().chain(times(entry, "started_at"));
    let assignments: Vec<_> = columns
        .zip(values)
        .map(|(column, value)| format!("{column} = {value}"))
        .collect();
    // The version has the record's present token.
    let (old, new) = (version.fence_token, entry.fence_token);
    let corrects = entry.state == RecordState::Succeeded;
    format!(
        "UPDATE {table} SET {} WHERE record_key = {key} AND {} AND (NOT {} OR keep_until <= {} OR {corrects} AND {old} < {new}) \
         AND {old} <= {new}",
        assignments.join(", "),
        is_version(version),
        is_state(RecordState::Succeeded),
        sql::CLOCK,
    )
}

fn is_version(version: RecordVersion) -> String {
    let RecordVersion {
        state,
        fence_token,
        attempts,
    } = version;
    format!(
        "{} AND fence_token = {fence_token} AND attempts = {attempts}",
        is_state(state)
    )
}

fn is_state(state: RecordState) -> String {
    format!("state = '{}'", state.as_str())
}

fn hex(key: &Key) -> String {
    sql::hex(key.as_str().as_bytes())
}

/// The key has a record already.
fn is_duplicate(error: &StoreError) -> bool {
    std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref())
        .and_then(error::number)
        == Some(error::DUPLICATE_KEY)
}
