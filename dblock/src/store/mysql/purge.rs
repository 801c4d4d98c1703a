//! Deletes rows that nobody has used for a long time.
//!
//! Rows in use are only read, without a lock. Rows that seem idle are locked, with locked ones skipped, and
//! checked again before they are deleted. So a purge can delay a request only for a key that was idle until
//! then.

use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::session::Session;
use super::{MySqlStore, sql};
use crate::Key;
use crate::store::clock::micros;
use crate::store::{Purged, StoreError, StoreErrorKind};

/// [`Store::purge`](crate::store::Store::purge).
pub(super) async fn purge(
    store: &MySqlStore,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let step = Step {
        store,
        idle,
        after,
        limit,
    };
    let mut connection = store.connections.take().await?;
    let done = step.on(&mut connection).await;
    match connection.finish(done) {
        // The server closes idle connections after a while, which shows only at the next use.
        Err(error) if error.kind() == StoreErrorKind::Interrupted => {
            let mut connection = store.connections.take_new().await?;
            let done = step.on(&mut connection).await;
            connection.finish(done)
        }
        done => done,
    }
}

struct Step<'a> {
    store: &'a MySqlStore,
    idle: Duration,
    after: Option<&'a Key>,
    limit: u32,
}

impl Step<'_> {
    async fn on(&self, connection: &mut Session) -> Result<Purged, StoreError> {
        let table = &self.store.table_sql;
        let (seen, before) = self.look(connection).await?;
        let mut purged = Purged::default();
        if seen.len() >= usize::try_from(self.limit).unwrap_or(usize::MAX) {
            purged.next = seen.last().map(|(key, _)| key.clone());
        }
        let idle = seen.iter().filter(|(_, idle)| *idle).map(|(key, _)| key);
        let mut keys = sql::key_list(idle);
        if keys.is_empty() {
            return Ok(purged);
        }
        let lock = format!(
            "START TRANSACTION;SELECT lock_key FROM {table} FORCE INDEX (PRIMARY) WHERE lock_key IN ({keys}) \
             AND {} ORDER BY lock_key FOR UPDATE SKIP LOCKED",
            idle_since(&before.to_string()),
        );
        let locked = self.fetch(connection, lock).await?;
        let locked = locked
            .iter()
            .map(|row| key(row, self.store))
            .collect::<Result<Vec<_>, _>>()?;
        keys = sql::key_list(locked.iter());
        if keys.is_empty() {
            self.fetch(connection, "COMMIT".into()).await?;
            return Ok(purged);
        }
        let delete = format!("DELETE FROM {table} WHERE lock_key IN ({keys})");
        for message in connection.messages(vec![delete, "COMMIT".into()]) {
            self.fetch(connection, message).await?;
        }
        purged.rows = u64::try_from(locked.len()).unwrap_or(u64::MAX);
        Ok(purged)
    }

    /// The keys of the step and whether each seems idle; and the time since which an idle row is unused.
    async fn look(&self, connection: &mut MySqlConnection) -> Result<(Vec<(Key, bool)>, i64), StoreError> {
        let before = format!("{} - {}", sql::CLOCK, micros(self.idle));
        let from = sql::hex(self.after.map_or(&[], |key| key.as_str().as_bytes()));
        let look = format!(
            "SELECT lock_key, {}, {before} FROM {} FORCE INDEX (PRIMARY) WHERE lock_key > {from} ORDER BY lock_key \
             LIMIT {}",
            idle_since(&before),
            self.store.table_sql,
            self.limit,
        );
        let rows = self.fetch(connection, look).await?;
        let unreadable = |error| self.store.failed(error);
        let mut seen = Vec::with_capacity(rows.len());
        for row in &rows {
            let idle: i64 = row.try_get(1).map_err(unreadable)?;
            seen.push((key(row, self.store)?, idle != 0));
        }
        let before = rows
            .first()
            .map_or(Ok(0), |row| row.try_get(2))
            .map_err(unreadable)?;
        Ok((seen, before))
    }

    async fn fetch(
        &self,
        connection: &mut MySqlConnection,
        sql: String,
    ) -> Result<Vec<MySqlRow>, StoreError> {
        let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await;
        rows.map_err(|error| self.store.failed(error))
    }
}

/// SQL for: the row has not been used since the time of the expression `before`.
fn idle_since(before: &str) -> String {
    format!("GREATEST(expire_at, wanted_until, fence_ceiling) <= {before}")
}

fn key(row: &MySqlRow, store: &MySqlStore) -> Result<Key, StoreError> {
    super::row::key(row).map_err(|error| store.failed(error))
}
