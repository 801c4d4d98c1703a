//! The tables: checking their version, and creating them.

use std::iter::repeat_n;
use std::time::Duration;

use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};
use tokio::time::sleep;

use super::statement::Statement;
use super::{PostgresStore, error};
use crate::store::StoreError;
use crate::store::schema::{self, SchemaVersion};
use crate::store::sql_row::schema_version;

/// Settings of a migration's session, which may wait for the migrations of other nodes.
const SESSION: [(&str, &str); 4] = [
    // For the migration of another node.
    ("lock_timeout", "60s"),
    ("statement_timeout", "120s"),
    ("idle_in_transaction_session_timeout", "60s"),
    ("client_min_messages", "warning"),
];

/// Between the tries while a transaction uses the table.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: usize = 80;

/// Each may be run again.
const SCRIPT: &str = concat!(
    include_str!("../../../migrations/postgres/0001_distributed_lock.sql"),
    include_str!("../../../migrations/postgres/0002_record.sql"),
    include_str!("../../../migrations/postgres/0003_shared.sql"),
);

pub(super) async fn check_schema(store: &PostgresStore) -> Result<(), StoreError> {
    let mut connection = store.connections.take_new().await?;
    let found = version(store, &mut connection).await;
    schema::check(connection.finish(found)?, &store.table)
}

/// The content of the version table; `None` where a table or its row is missing.
///
/// # Errors
/// Besides those of the server: a table of that name is not dblock's.
pub(super) async fn version(
    store: &PostgresStore,
    on: &mut PgConnection,
) -> Result<Option<SchemaVersion>, StoreError> {
    let rows = match Statement::new(&store.sql.version).fetch_in(on).await {
        Err(error) if error::is_missing_table(&error) => return Ok(None),
        Err(error) if error::is_missing_column(&error) => {
            return Err(schema::foreign(&store.table).with_source(error));
        }
        answer => answer.map_err(|error| store.failed(error))?,
    };
    let found = rows.first().map(schema_version).transpose();
    found.map_err(|error| store.failed(error))
}

/// Creates or upgrades the tables. If they are up to date, it does nothing and needs no right to create.
pub(super) async fn migrate(store: &PostgresStore) -> Result<(), StoreError> {
    let server = store.connections.server().await?;
    let _room = store.connections.room().await?;
    let options = store.options(server).await?;
    let with_settings = options.clone().options(SESSION);
    let connected = match with_settings.connect().await {
        Err(error) if error::is_refused_startup(&error) => options.connect().await,
        answer => answer,
    };
    // Always closed at the end, and never used again.
    let mut connection = connected.map_err(|error| error::of_connect_to(error, &options))?;
    let mut found = version(store, &mut connection).await?;
    if !schema::is_complete(found) {
        let mut pauses = repeat_n(PAUSE, TRIES);
        while let Err(error) = run_script(store, &mut connection).await {
            let pause = pauses.next().filter(|_| is_in_use(&error)).ok_or(error)?;
            sleep(pause).await;
        }
        found = version(store, &mut connection).await?;
    }
    // The work is done, so errors while closing do not matter.
    drop(connection.close().await);
    schema::check(found, &store.table)
}

/// A transaction uses the table.
fn is_in_use(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref());
    source.is_some_and(|error| error::has_code(error, "55P03"))
}

/// Runs the script in one transaction, one node after the other.
async fn run_script(store: &PostgresStore, connection: &mut PgConnection) -> Result<(), StoreError> {
    let failed = |error| store.failed(error);
    // Each statement must see what another node committed while this one waited.
    let mut transaction = connection
        .begin_with("BEGIN ISOLATION LEVEL READ COMMITTED")
        .await
        .map_err(failed)?;
    let one_at_a_time = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(
        pg_catalog.concat('dblock migration of ', $1), 0))";
    Statement::new(&one_at_a_time.into())
        .bind(&*store.table.to_string())
        .fetch_in(&mut transaction)
        .await
        .map_err(failed)?;
    let tables = store.table.all_quoted('"');
    let tables = if let Some(name) = store.table.schema() {
        create_schema(name, &mut transaction).await.map_err(failed)?;
        tables
    } else {
        let schema = schema_of(&tables[0], &mut transaction).await.map_err(failed)?;
        let schema = schema.ok_or_else(error::no_schema_to_create_in)?;
        tables.map(|table| format!("{schema}.{table}"))
    };
    let script = schema::script_for(SCRIPT, &tables);
    // Renewals queue behind an ALTER that queues behind a transaction which has taken a key.
    let script = format!("SET LOCAL search_path = pg_catalog; SET LOCAL lock_timeout = '100ms'; {script}");
    let script = sqlx::raw_sql(AssertSqlSafe(script));
    script.execute(&mut *transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

async fn create_schema(name: &str, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let found = Statement::new(&"SELECT pg_catalog.to_regnamespace($1) IS NULL".into())
        .bind(&*format!("\"{name}\""))
        .fetch_in(connection)
        .await?;
    if found
        .first()
        .map(|row| row.try_get(0))
        .transpose()?
        .unwrap_or(true)
    {
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA \"{name}\"")))
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// The schema of the lock table, else the one where new tables are created; `None` if there is none. The script
/// names it, because the script's `search_path` is `pg_catalog` only.
async fn schema_of(table: &str, connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let find = format!(
        "SELECT coalesce(
            (SELECT relnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_class
                WHERE oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('{table}')),
            pg_catalog.quote_ident(pg_catalog.current_schema()::pg_catalog.text))"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(find)).fetch_one(connection).await?;
    row.try_get(0)
}
