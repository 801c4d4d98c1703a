//! The tables: whether they fit, and how they are made.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{AssertSqlSafe, SqliteConnection};
use tokio::time::Instant;

use super::row::get;
use super::sql::{BEGIN, COMMIT};
use super::{SqliteStore, error};
use crate::store::schema::{self, SchemaVersion};
use crate::store::{StoreError, StoreErrorKind};

/// What leads from one schema version to the next: the first script makes version 1.
const SCRIPTS: [&str; 2] = [
    include_str!("../../../migrations/sqlite/0001_distributed_lock.sql"),
    include_str!("../../../migrations/sqlite/0002_successor.sql"),
];

/// How long a migration waits for others in all. Longer than a single statement: it is done once, when the
/// program starts, and perhaps by many processes together.
const PATIENCE: Duration = Duration::from_secs(10);

impl SqliteStore {
    pub(super) async fn check_version(&self) -> Result<(), StoreError> {
        let mut connection = self.connections.take().await?;
        let found = self.version(&mut connection).await;
        schema::check(connection.settle(found)?, &self.table)
    }

    pub(super) async fn create_or_upgrade(&self) -> Result<(), StoreError> {
        let start = Instant::now();
        loop {
            match self.attempt().await {
                Err(error) if error.kind() == StoreErrorKind::Conflict && start.elapsed() < PATIENCE => {}
                Err(error) => return Err(error),
                Ok(found) => return schema::check(found, &self.table),
            }
        }
    }

    async fn attempt(&self) -> Result<Option<SchemaVersion>, StoreError> {
        let mut connection = self.connections.take().await?;
        let answer = self.upgrade(&mut connection).await;
        connection.settle(answer)
    }

    /// Runs the scripts that are missing, all or none. What is there afterwards.
    async fn upgrade(&self, connection: &mut SqliteConnection) -> Result<Option<SchemaVersion>, StoreError> {
        // Usually there is nothing to do, and then nobody's write transaction is waited for.
        let found = self.version(connection).await?;
        if schema::check(found, &self.table).is_ok() {
            return Ok(found);
        }
        self.control(connection, BEGIN).await?;
        let found = self.version(connection).await?;
        let done = found.map_or(0, |found| usize::try_from(found.version).unwrap_or(0));
        for script in SCRIPTS.iter().skip(done) {
            let script = schema::script_for(script, &self.table, '"');
            sqlx::raw_sql(AssertSqlSafe(script))
                .execute(&mut *connection)
                .await
                .map_err(|error| error::of_statement(error, &self.table))?;
        }
        self.control(connection, COMMIT).await?;
        self.version(connection).await
    }

    async fn version(&self, connection: &mut SqliteConnection) -> Result<Option<SchemaVersion>, StoreError> {
        let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.statements.version)));
        match self.rows(connection, query).await {
            Err(error) if error.kind() == StoreErrorKind::Schema => Ok(None),
            Err(error) => Err(error),
            Ok(rows) => rows
                .first()
                .map(|row| {
                    Ok(SchemaVersion {
                        version: get(row, 0)?,
                        min_client: get(row, 1)?,
                    })
                })
                .transpose(),
        }
    }
}
