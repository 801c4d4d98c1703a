//! The files that can keep locks, and the connection to them.

use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteLockingMode, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection};
use tokio::time::Instant;

use super::sql::Statements;
use super::{SqliteStore, error, statement};
use crate::store::table::TableName;
use crate::store::{StoreError, StoreErrorKind};

/// How long a statement of ours waits for another write transaction. The shortest ttl is 1 s.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

impl SqliteStore {
    /// Refuses databases that only one connection sees: a lock there would exclude nobody. The error is for
    /// people.
    pub(crate) fn check_options(options: &SqliteConnectOptions, table: &TableName) -> Result<(), String> {
        let file = options.get_filename().to_string_lossy();
        // Only a URL shows the mode of the options, and not every file name is valid in one.
        let mode = options.clone().filename("any").to_url_lossy();
        let in_memory = file.is_empty()
            || file.contains(":memory:")
            || file.starts_with("file:") && file.contains("mode=memory")
            || mode
                .query_pairs()
                .any(|(name, value)| name == "mode" && value == "memory");
        if in_memory {
            return Err(
                "an in-memory SQLite database is private to its connections, so nobody else would see the locks; \
                 use a file, such as sqlite://locks.db, or the memory store, memory:"
                    .into(),
            );
        }
        if table.schema().is_some_and(|schema| schema != "main") {
            return Err(format!(
                "the table {table} is not in the SQLite file itself; write the table's name alone"
            ));
        }
        Ok(())
    }
}

/// The given options with the store's own settings.
///
/// No journal mode: [`use_wal`] sets it, only in files with our tables. SQLite does not know the mode `keep`,
/// so the mode is not changed, whatever a pool's options ask for.
///
/// `synchronous = FULL`: with less, WAL may lose the last commits in a power cut, and then a fence token would
/// be given twice.
pub(super) fn settings(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .pragma("journal_mode", "keep")
        .synchronous(SqliteSynchronous::Full)
        .locking_mode(SqliteLockingMode::Normal)
        .shared_cache(false)
        .busy_timeout(BUSY_TIMEOUT)
        .statement_cache_capacity(32)
        .disable_statement_logging()
}

/// Opens the file. The first change to WAL needs exclusive access and ignores the busy timeout, so processes
/// that start together try again.
pub(super) async fn open(
    options: SqliteConnectOptions,
    table: &TableName,
    statements: &Statements,
) -> Result<SqliteConnection, StoreError> {
    let start = Instant::now();
    loop {
        match attempt(&options, table, statements).await {
            Err(error) if error.kind() == StoreErrorKind::Conflict && start.elapsed() < BUSY_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(fastrand::u64(2..20))).await;
            }
            answer => return answer,
        }
    }
}

async fn attempt(
    options: &SqliteConnectOptions,
    table: &TableName,
    statements: &Statements,
) -> Result<SqliteConnection, StoreError> {
    let opened = options.connect().await;
    let mut connection = opened.map_err(|error| error::of_connect(error, options.get_filename()))?;
    let tables = statement(&statements.version)
        .fetch_optional(&mut connection)
        .await;
    match tables.map_err(|error| error::of_statement(error, table)) {
        Ok(_) => match use_wal(&mut connection, table).await {
            // The file is read-only: reads work, and writes get the error.
            Err(error) if error.kind() == StoreErrorKind::Refused => {}
            answer => answer?,
        },
        // The file has no tables of ours yet. Nothing in it is changed until `migrate` creates them.
        Err(error) if error.kind() == StoreErrorKind::Schema => {}
        Err(error) => return Err(error),
    }
    Ok(connection)
}

/// Sets WAL, so that readers and the writer do not block each other. The file keeps the mode. Fails inside a
/// transaction.
pub(super) async fn use_wal(connection: &mut SqliteConnection, table: &TableName) -> Result<(), StoreError> {
    let set = sqlx::query("PRAGMA journal_mode = WAL").execute(connection).await;
    set.map(drop).map_err(|error| error::of_statement(error, table))
}
