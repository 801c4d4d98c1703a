//! Schema, and what operators ask for. Unlike a batch, these may wait shortly for a row.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::statement::Statement;
use super::{MIGRATION_SESSION, PostgresStore, error};
use crate::key::Key;
use crate::store::Purged;
use crate::store::clock::micros;
use crate::store::error::StoreError;
use crate::store::row::{InspectFilter, LockRow, Successor};
use crate::store::schema::{self, SchemaVersion};

const SCRIPT: &str = include_str!("../../../migrations/postgres/0001_distributed_lock.sql");

pub(super) async fn check_schema(store: &PostgresStore) -> Result<(), StoreError> {
    let mut connection = store.connections.take_new().await?;
    let found = version(store, &mut connection)
        .await
        .map_err(|error| error::of_statement(error, &store.table));
    schema::check(connection.settle(found)?, &store.table)
}

/// What the version table says; `None` where a table or its row is missing.
async fn version(store: &PostgresStore, on: &mut PgConnection) -> Result<Option<SchemaVersion>, sqlx::Error> {
    let rows = match Statement::new(&store.sql.version).fetch_in(on).await {
        Err(error) if error::is_missing_table(&error) => return Ok(None),
        answer => answer?,
    };
    rows.first()
        .map(|row| {
            Ok(SchemaVersion {
                version: row.try_get(0)?,
                min_client: row.try_get(1)?,
            })
        })
        .transpose()
}

/// Does nothing, and needs no rights to create, when the schema is there already.
pub(super) async fn migrate(store: &PostgresStore) -> Result<(), StoreError> {
    let _room = store.connections.room().await?;
    let options = store.options().await?;
    let with_settings = options.clone().options(MIGRATION_SESSION);
    let connected = match with_settings.connect().await {
        Err(error) if error::is_refused_startup(&error) => options.connect().await,
        answer => answer,
    };
    // Closed at the end, however it ends: nothing of it can come back into use.
    let mut connection = connected.map_err(error::of_connect)?;
    let failed = |error| error::of_statement(error, &store.table);
    let mut found = version(store, &mut connection).await.map_err(failed)?;
    if found.is_none_or(|found| found.version < schema::SCHEMA_VERSION) {
        run_script(store, &mut connection).await.map_err(failed)?;
        found = version(store, &mut connection).await.map_err(failed)?;
    }
    // The work is done; how the session ends makes no difference.
    drop(connection.close().await);
    schema::check(found, &store.table)
}

/// The script in one transaction, one node after the other.
async fn run_script(store: &PostgresStore, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    // Each statement must see what another node has committed while this one waited.
    let mut transaction = connection
        .begin_with("BEGIN ISOLATION LEVEL READ COMMITTED")
        .await?;
    let one_at_a_time = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(
        pg_catalog.concat('dblock migration of ', $1), 0))";
    Statement::new(&one_at_a_time.into())
        .bind(&*store.table.to_string())
        .fetch_in(&mut transaction)
        .await?;
    let script = schema::script_for(SCRIPT, &store.table, '"');
    let script = match store.table.schema() {
        Some(name) => {
            create_schema(name, &mut transaction).await?;
            script
        }
        None => in_its_schema(&script, store, &mut transaction).await?,
    };
    let script = format!("SET LOCAL search_path = pg_catalog; {script}");
    sqlx::raw_sql(AssertSqlSafe(script))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
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

/// The script with the schema before its tables: where the lock table is, else where new tables go. Types and operators
/// are looked for in `pg_catalog` alone then.
async fn in_its_schema(
    script: &str,
    store: &PostgresStore,
    connection: &mut PgConnection,
) -> Result<String, sqlx::Error> {
    let (table, version) = (store.table.quoted('"'), store.table.quoted_version('"'));
    let find = format!(
        "SELECT coalesce(
            (SELECT relnamespace::pg_catalog.regnamespace::pg_catalog.text FROM pg_catalog.pg_class
                WHERE oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('{table}')),
            pg_catalog.quote_ident(pg_catalog.current_schema()::pg_catalog.text))"
    );
    let row = sqlx::raw_sql(AssertSqlSafe(find)).fetch_one(connection).await?;
    let schema: Option<&str> = row.try_get(0)?;
    // Without one the server says what is the matter.
    let schema = schema.unwrap_or("\"\"");
    Ok(script
        .replace(&table, &format!("{schema}.{table}"))
        .replace(&version, &format!("{schema}.{version}")))
}

pub(super) async fn inspect(
    store: &PostgresStore,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    let rows = rows(store, &store.sql.inspect, |query| {
        query
            .bind(filter.key_prefix())
            .bind(filter.is_held_only())
            .bind(i64::from(filter.max_rows()))
    });
    rows.await?
        .iter()
        .map(|row| lock_row(row).map_err(|error| error::of_statement(error, &store.table)))
        .collect()
}

fn lock_row(row: &PgRow) -> Result<LockRow, sqlx::Error> {
    let key: &str = row.try_get(0)?;
    let key = Key::new(None, key).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(LockRow {
        key,
        owner: row.try_get(1)?,
        // The table's CHECK keeps it from being negative.
        reentrant_count: u32::try_from(row.try_get::<i32, _>(2)?).unwrap_or(0),
        expire_at: row.try_get(3)?,
        lease_id: row.try_get(4)?,
        fence_token: row.try_get(5)?,
        fence_ceiling: row.try_get(6)?,
        wanted_until: row.try_get(7)?,
        acquired_at: row.try_get(8)?,
        holder: row.try_get(9)?,
        revoked: row.try_get(10)?,
        next: successor(row)?,
        now: row.try_get(18)?,
    })
}

fn successor(row: &PgRow) -> Result<Option<Successor>, sqlx::Error> {
    let Some(lease_id) = row.try_get(11)? else {
        return Ok(None);
    };
    Ok(Some(Successor {
        lease_id,
        owner: row.try_get(12)?,
        holder: row.try_get(13)?,
        ttl: row.try_get(14)?,
        spare_tokens: u32::try_from(row.try_get::<i64, _>(15)?).unwrap_or(0),
        since: row.try_get(16)?,
        until: row.try_get(17)?,
    }))
}

pub(super) async fn revoke(store: &PostgresStore, key: &Key) -> Result<bool, StoreError> {
    let rows = rows(store, &store.sql.revoke, |query| query.bind(key.as_str())).await?;
    first_flag(store, &rows)
}

pub(super) async fn force_release(store: &PostgresStore, key: &Key) -> Result<bool, StoreError> {
    let fresh = Uuid::now_v7();
    let free = |text| rows(store, text, |query| query.bind(key.as_str()).bind(fresh));
    let rows = match free(&store.sql.force_release).await {
        Err(error) if error::is_from_full_queue(&error) => free(&store.sql.force_release_quiet).await?,
        rows => rows?,
    };
    first_flag(store, &rows)
}

/// On an idle connection, unlike the rest: a purge takes many steps, and one that fails is tried again later.
pub(super) async fn purge(
    store: &PostgresStore,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let failed = |error| error::of_statement(error, &store.table);
    let mut connection = store.connections.take().await?;
    let rows = Statement::new(&store.sql.purge)
        // A key is never empty.
        .bind(after.map_or("", Key::as_str))
        .bind(i64::from(limit))
        .bind(micros(idle))
        .fetch_all(&mut connection)
        .await
        .map_err(failed);
    let rows = connection.settle(rows)?;
    let row = rows.first().ok_or_else(|| failed(sqlx::Error::RowNotFound))?;
    purged(row, limit).map_err(failed)
}

fn purged(row: &PgRow, limit: u32) -> Result<Purged, sqlx::Error> {
    let (looked_at, gone): (i64, i64) = (row.try_get(0)?, row.try_get(2)?);
    let next = if looked_at < i64::from(limit) {
        None
    } else {
        let last: Option<&str> = row.try_get(1)?;
        last.map(|last| Key::new(None, last))
            .transpose()
            .map_err(|error| sqlx::Error::Decode(error.into()))?
    };
    Ok(Purged {
        rows: u64::try_from(gone).unwrap_or(0),
        next,
    })
}

/// Executes one statement on a connection of the store's.
async fn rows<'q>(
    store: &PostgresStore,
    text: &Arc<str>,
    bind: impl FnOnce(Statement<'q>) -> Statement<'q>,
) -> Result<Vec<PgRow>, StoreError> {
    let statement = bind(Statement::new(text));
    let mut connection = store.connections.take_new().await?;
    let rows = statement
        .fetch_all(&mut connection)
        .await
        .map_err(|error| error::of_statement(error, &store.table));
    connection.settle(rows)
}

/// The flag of the only row; no row means that the key was free.
fn first_flag(store: &PostgresStore, rows: &[PgRow]) -> Result<bool, StoreError> {
    let flag = rows.first().map(|row| row.try_get(0)).transpose();
    Ok(flag
        .map_err(|error| error::of_statement(error, &store.table))?
        .unwrap_or(false))
}
