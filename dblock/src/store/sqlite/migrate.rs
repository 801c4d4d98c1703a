//! The tables: checking their version, and creating them.

use std::time::Duration;

use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::time::Instant;

use super::row::unexpected;
use super::sql::{BEGIN, COMMIT};
use super::{SqliteStore, error, session, statement};
use crate::store::schema::{self, SchemaVersion};
use crate::store::sql_row::schema_version;
use crate::store::{StoreError, StoreErrorKind};

/// The scripts from each schema version to the next. The first one creates version 1.
const SCRIPTS: [&str; 4] = [
    include_str!("../../../migrations/sqlite/0001_distributed_lock.sql"),
    include_str!("../../../migrations/sqlite/0002_successor.sql"),
    include_str!("../../../migrations/sqlite/0003_record.sql"),
    include_str!("../../../migrations/sqlite/0004_shared.sql"),
];

/// How long a migration waits for others in all. Longer than a statement, because a migration runs once, at the
/// start, and perhaps in many processes at the same time.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn check_schema(store: &SqliteStore) -> Result<(), StoreError> {
    let mut connection = store.connections.take().await?;
    let found = store.version(&mut connection).await;
    schema::check(connection.finish(found)?, &store.table)
}

/// Creates or upgrades the tables.
pub(super) async fn migrate(store: &SqliteStore) -> Result<(), StoreError> {
    let start = Instant::now();
    loop {
        match store.attempt().await {
            Err(error) if error.kind() == StoreErrorKind::Conflict && start.elapsed() < TIMEOUT => {}
            Err(error) => return Err(error),
            Ok(found) => return schema::check(found, &store.table),
        }
    }
}

impl SqliteStore {
    async fn attempt(&self) -> Result<Option<SchemaVersion>, StoreError> {
        let mut connection = self.connections.take().await?;
        let answer = self.upgrade(&mut connection).await;
        connection.finish(answer)
    }

    /// Runs the missing scripts, all or none. Returns the version afterwards.
    async fn upgrade(&self, connection: &mut SqliteConnection) -> Result<Option<SchemaVersion>, StoreError> {
        // Usually there is nothing to do: then there is no wait for other writers.
        let found = self.version(connection).await?;
        if schema::is_complete(found) {
            return Ok(found);
        }
        session::use_wal(connection, &self.table).await?;
        self.control(connection, BEGIN).await?;
        let found = self.version(connection).await?;
        let done = found.map_or(0, |found| usize::try_from(found.version).unwrap_or(0));
        for script in SCRIPTS.iter().skip(done) {
            let script = schema::script_for(script, &self.table.all_quoted('"'));
            sqlx::raw_sql(AssertSqlSafe(script))
                .execute(&mut *connection)
                .await
                .map_err(|error| self.failed(error))?;
        }
        self.control(connection, COMMIT).await?;
        self.version(connection).await
    }

    pub(super) async fn version(
        &self,
        connection: &mut SqliteConnection,
    ) -> Result<Option<SchemaVersion>, StoreError> {
        let version = statement(&self.statements.version).fetch_all(connection);
        let rows = match version.await {
            Err(error) if error::is_missing_table(&error) => return Ok(None),
            answer => answer.map_err(|error| self.failed(error))?,
        };
        let found = rows.first().map(|row| schema_version(row).map_err(unexpected));
        found.transpose()
    }
}
