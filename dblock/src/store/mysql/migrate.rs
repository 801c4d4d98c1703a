//! Creating the tables and checking their version.

use std::error::Error as _;
use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlConnection;
use tokio::time::sleep;

use super::error::Rights;
use super::{MySqlStore, error, session};
use crate::store::schema::{self, SchemaVersion};
use crate::store::sql_row::schema_version;
use crate::store::{StoreError, StoreErrorKind};

/// The scripts from each schema version to the next. The first one creates version 1.
const SCRIPTS: [&str; 4] = [
    include_str!("../../../migrations/mysql/0001_distributed_lock.sql"),
    include_str!("../../../migrations/mysql/0002_successor.sql"),
    include_str!("../../../migrations/mysql/0003_record.sql"),
    include_str!("../../../migrations/mysql/0004_shared.sql"),
];

/// How long a node waits for the migration of another one.
const TIMEOUT: Duration = Duration::from_mins(1);

/// How often a migration is tried while another node of Galera creates the same tables, or a transaction uses them,
/// and the pause in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn check_schema(store: &MySqlStore) -> Result<(), StoreError> {
    let mut connection = store.connections.take_new().await?;
    let found = version(store, &mut connection, Rights::Locks).await;
    schema::check(connection.finish(found)?, &store.table)
}

/// The content of the version table; `None` if it or the lock table does not exist.
///
/// # Errors
/// Besides those of the server: a table of that name is not dblock's.
pub(super) async fn version(
    store: &MySqlStore,
    connection: &mut MySqlConnection,
    rights: Rights,
) -> Result<Option<SchemaVersion>, StoreError> {
    let (lock, version) = (&store.table_sql, store.table.quoted_version('`'));
    let sql = format!(
        "SELECT lock_key, fence_ceiling FROM {lock} LIMIT 0;SELECT version, min_client FROM {version} WHERE id = 1"
    );
    let rows = match sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await {
        Err(error) if error::number(&error) == Some(error::NO_SUCH_TABLE) => return Ok(None),
        Err(error) if error::number(&error) == Some(error::NO_SUCH_COLUMN) => {
            return Err(schema::foreign(&store.table).with_source(error));
        }
        answer => answer.map_err(|error| store.failed_without(error, rights))?,
    };
    let found = rows.first().map(schema_version).transpose();
    found.map_err(|error| store.failed(error))
}

/// Creates or upgrades the tables, one node at a time.
///
/// The named lock has a connection of its own, which is always closed at the end: a lock that is left on a
/// connection would block every later migration.
pub(super) async fn migrate(store: &MySqlStore) -> Result<(), StoreError> {
    let server = store.connections.server().await?;
    let _room = store.connections.room().await?;
    let mut connection = session::open(&store.servers[server], store.any_server, None).await?;
    let mut tries = TRIES;
    // A named lock is local to its node. So any statement may conflict with the migration of another node.
    let done = loop {
        tries -= 1;
        match run_on(store, &mut connection).await {
            Err(error) if is_conflict(&error) && tries > 0 => sleep(PAUSE).await,
            done => break done,
        }
    };
    connection.close().await;
    done
}

/// Another node was first to create something, or a transaction has the table. A statement waits for a second only,
/// because renewals queue behind it.
fn is_conflict(error: &StoreError) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref());
    let number = source.and_then(error::number);
    matches!(
        number,
        Some(error::DEADLOCK | error::INTERRUPTED | error::LOCK_WAIT_TIMEOUT)
    )
}

async fn run_on(store: &MySqlStore, connection: &mut MySqlConnection) -> Result<(), StoreError> {
    // Checked before the lock too: if there is nothing to do, the right to SELECT suffices.
    let found = version(store, connection, Rights::Migration).await?;
    if schema::is_complete(found) {
        return schema::check(found, &store.table);
    }
    take_turn(store, connection).await?;
    let before = version(store, connection, Rights::Migration).await?;
    let done = before.map_or(0, |found| usize::try_from(found.version).unwrap_or(0));
    for script in SCRIPTS.iter().skip(done) {
        for statement in statements(script) {
            make(
                store,
                connection,
                &schema::script_for(statement, &store.table.all_quoted('`')),
            )
            .await?;
        }
    }
    let after = version(store, connection, Rights::Migration).await?;
    schema::check(after, &store.table)
}

/// Carries out one statement of a script. Each may be repeated.
async fn make(
    store: &MySqlStore,
    connection: &mut MySqlConnection,
    statement: &str,
) -> Result<(), StoreError> {
    let made = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
        .execute(connection)
        .await;
    match made {
        // An earlier run was interrupted between this statement and the script's last one.
        Err(error) if error::number(&error) != Some(error::DUPLICATE_COLUMN) => {
            Err(store.failed_without(error, Rights::Migration))
        }
        _ => Ok(()),
    }
}

/// The statements of a script. A script has no `;` anywhere else.
fn statements(script: &str) -> impl Iterator<Item = &str> {
    script
        .split_inclusive(';')
        .filter(|statement| statement.ends_with(';'))
}

/// Takes the named lock. Its name is a digest, because MySQL allows 64 bytes only.
async fn take_turn(store: &MySqlStore, connection: &mut MySqlConnection) -> Result<(), StoreError> {
    let sql = "SELECT GET_LOCK(CONCAT('dblock.', SHA1(CONCAT(COALESCE(?, DATABASE(), ''), '.', ?))), ?)";
    let taken: Option<i64> = sqlx::query_scalar(sql)
        .bind(store.table.schema())
        .bind(store.table.name())
        .bind(TIMEOUT.as_secs())
        .fetch_one(connection)
        .await
        .map_err(|error| store.failed(error))?;
    if taken == Some(1) {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Conflict,
        format!(
            "another node has been creating the lock table {} for {TIMEOUT:?}; try again",
            store.table
        ),
    ))
}
