//! Creating the tables and checking their version.

use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlConnection;

use super::{MySqlStore, error, session};
use crate::store::schema::{self, SchemaVersion};
use crate::store::sql_row::schema_version;
use crate::store::{StoreError, StoreErrorKind};

/// The scripts from each schema version to the next. The first one creates version 1.
const SCRIPTS: [&str; 3] = [
    include_str!("../../../migrations/mysql/0001_distributed_lock.sql"),
    include_str!("../../../migrations/mysql/0002_successor.sql"),
    include_str!("../../../migrations/mysql/0003_record.sql"),
];

/// How long a node waits for the migration of another one.
const TIMEOUT: Duration = Duration::from_mins(1);

/// How often a statement is tried that meets that of another node.
const CONFLICTS: u32 = 10;

pub(super) async fn check_schema(store: &MySqlStore) -> Result<(), StoreError> {
    let mut connection = store.connections.take_new().await?;
    let found = version(store, &mut connection).await;
    schema::check(connection.finish(found)?, &store.table)
}

/// The content of the version table; `None` when it or the lock table does not exist.
///
/// # Errors
/// Besides those of the server: a table of that name is not dblock's.
pub(super) async fn version(
    store: &MySqlStore,
    connection: &mut MySqlConnection,
) -> Result<Option<SchemaVersion>, StoreError> {
    let (lock, version) = (&store.table_sql, store.table.quoted_version('`'));
    let sql = format!(
        "SELECT lock_key, fence_ceiling FROM {lock} LIMIT 0;SELECT version, min_client FROM {version}"
    );
    let rows = match sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await {
        Err(error) if error::number(&error) == Some(error::NO_SUCH_TABLE) => return Ok(None),
        Err(error) if error::number(&error) == Some(error::NO_SUCH_COLUMN) => {
            return Err(schema::foreign(&store.table).with_source(error));
        }
        answer => answer.map_err(|error| store.failed(error))?,
    };
    let found = rows.first().map(schema_version).transpose();
    found.map_err(|error| store.failed(error))
}

/// Creates or upgrades the tables, one node at a time.
///
/// The named lock belongs to a connection of its own, which is closed at the end, whatever happens: a lock
/// left on a connection would block every later migration.
pub(super) async fn migrate(store: &MySqlStore) -> Result<(), StoreError> {
    let server = store.connections.server().await?;
    let _room = store.connections.room().await?;
    let mut connection = session::open(&store.servers[server], store.any_server).await?;
    let done = run_on(store, &mut connection).await;
    connection.close().await;
    done
}

async fn run_on(store: &MySqlStore, connection: &mut MySqlConnection) -> Result<(), StoreError> {
    // Checked before the lock too: when nothing is to be done, the right to SELECT suffices.
    let found = version(store, connection).await?;
    if schema::is_complete(found) {
        return schema::check(found, &store.table);
    }
    take_turn(store, connection).await?;
    let before = version(store, connection).await?;
    let done = before.map_or(0, |found| usize::try_from(found.version).unwrap_or(0));
    for script in SCRIPTS.iter().skip(done) {
        for statement in statements(script) {
            make(
                store,
                connection,
                &schema::script_for(statement, &store.table, '`'),
            )
            .await?;
        }
    }
    let after = version(store, connection).await?;
    schema::check(after, &store.table)
}

/// Carries out one statement of a script. Each may be repeated.
async fn make(
    store: &MySqlStore,
    connection: &mut MySqlConnection,
    statement: &str,
) -> Result<(), StoreError> {
    for again in (0..CONFLICTS).rev() {
        let made = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()))
            .execute(&mut *connection)
            .await;
        match made {
            // The named lock is one node's: another node of Galera makes the same tables.
            Err(error) if error::number(&error) == Some(error::DEADLOCK) && again > 0 => {}
            // An earlier run was interrupted between this statement and the script's last one.
            Err(error) if error::number(&error) != Some(error::DUPLICATE_COLUMN) => {
                return Err(store.failed(error));
            }
            _ => break,
        }
    }
    Ok(())
}

/// The statements of a script. A script has no `;` anywhere else.
fn statements(script: &str) -> impl Iterator<Item = &str> {
    script
        .split_inclusive(';')
        .filter(|statement| statement.ends_with(';'))
}

/// Takes the named lock. Its name is a digest, because MySQL allows 64 bytes, and a table's name with its
/// database may be longer.
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
