//! The raw floor: what the simplest lock table costs through sqlx, without any of a lock's guarantees.

use anyhow::ensure;
use sqlx::mysql::{MySqlConnection, MySqlPoolOptions};
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgConnection, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Database, MySql, Pool, Postgres, Sqlite};
use uuid::Uuid;

use super::{Client, Step, Subject, Use, pool};

pub(super) const SETTINGS: &str =
    "INSERT, then DELETE of one row, each through an sqlx pool with `test_before_acquire(false)`; prepared";
pub(super) const BARE_SETTINGS: &str =
    "INSERT, then DELETE of one row on a connection that the task keeps; prepared";
pub(super) const UPSERT_SETTINGS: &str = "upsert, then UPDATE of one row that stays, each through an sqlx pool with `test_before_acquire(false)`; prepared";

/// The writes of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    InsertDelete,
    OnOneConnection,
    UpsertUpdate,
}

/// The statements of one database. Not generic over the driver, because sqlx's bounds would be longer than
/// the three copies.
trait Floor: Database {
    fn take<'a>(on: &'a mut Self::Connection, write: Write, key: &'a str, owner: Uuid) -> Changed<'a>;
    fn free<'a>(on: &'a mut Self::Connection, write: Write, key: &'a str, owner: Uuid) -> Changed<'a>;
}

/// How many rows were written.
type Changed<'a> = std::pin::Pin<Box<dyn Future<Output = sqlx::Result<u64>> + Send + 'a>>;

macro_rules! floor {
    ($database:ty, $connection:ty, $insert:literal, $delete:literal, $upsert:literal, $update:literal) => {
        impl Floor for $database {
            fn take<'a>(on: &'a mut $connection, write: Write, key: &'a str, owner: Uuid) -> Changed<'a> {
                let text = match write {
                    Write::UpsertUpdate => $upsert,
                    Write::InsertDelete | Write::OnOneConnection => $insert,
                };
                Box::pin(async move {
                    let done = sqlx::query(text).bind(key).bind(owner).execute(on).await?;
                    Ok(done.rows_affected())
                })
            }

            fn free<'a>(on: &'a mut $connection, write: Write, key: &'a str, owner: Uuid) -> Changed<'a> {
                let text = match write {
                    Write::UpsertUpdate => $update,
                    Write::InsertDelete | Write::OnOneConnection => $delete,
                };
                Box::pin(async move {
                    let done = sqlx::query(text).bind(key).bind(owner).execute(on).await?;
                    Ok(done.rows_affected())
                })
            }
        }
    };
}

floor!(
    Postgres,
    PgConnection,
    "INSERT INTO floor_rows (lock_key, owner, expire_at) VALUES ($1, $2, clock_timestamp() + interval '30 s')",
    "DELETE FROM floor_rows WHERE lock_key = $1 AND owner = $2",
    "INSERT INTO floor_upserts AS f (lock_key, owner, held, expire_at)
     VALUES ($1, $2, true, clock_timestamp() + interval '30 s')
     ON CONFLICT (lock_key) DO UPDATE SET owner = excluded.owner, held = true, expire_at = excluded.expire_at
     WHERE NOT f.held OR f.expire_at < clock_timestamp()",
    "UPDATE floor_upserts SET held = false WHERE lock_key = $1 AND owner = $2"
);
floor!(
    MySql,
    MySqlConnection,
    "INSERT INTO floor_rows (lock_key, owner, expire_at)
     VALUES (?, ?, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)",
    "DELETE FROM floor_rows WHERE lock_key = ? AND owner = ?",
    "INSERT INTO floor_upserts (lock_key, owner, held, expire_at)
     VALUES (?, ?, true, UTC_TIMESTAMP(6) + INTERVAL 30 SECOND)
     ON DUPLICATE KEY UPDATE owner = IF(held, owner, VALUES(owner)), held = true,
         expire_at = VALUES(expire_at)",
    "UPDATE floor_upserts SET held = false WHERE lock_key = ? AND owner = ?"
);
floor!(
    Sqlite,
    SqliteConnection,
    "INSERT INTO floor_rows (lock_key, owner, expire_at) VALUES (?, ?, unixepoch('subsec') + 30)",
    "DELETE FROM floor_rows WHERE lock_key = ? AND owner = ?",
    "INSERT INTO floor_upserts AS f (lock_key, owner, held, expire_at)
     VALUES (?, ?, 1, unixepoch('subsec') + 30)
     ON CONFLICT (lock_key) DO UPDATE SET owner = excluded.owner, held = 1, expire_at = excluded.expire_at
     WHERE NOT f.held OR f.expire_at < unixepoch('subsec')",
    "UPDATE floor_upserts SET held = 0 WHERE lock_key = ? AND owner = ?"
);

pub(super) struct Rows<DB: Database> {
    pool: Pool<DB>,
    write: Write,
}

struct Row<DB: Database> {
    pool: Pool<DB>,
    kept: Option<PoolConnection<DB>>,
    write: Write,
    key: String,
    owner: Uuid,
}

/// More connections than that do not make two cores write faster.
fn settings<DB: Database>(plan: Use) -> PoolOptions<DB> {
    let connections = u32::try_from(plan.tasks.clamp(4, 16)).unwrap_or(16);
    pool::of(connections)
}

pub(super) async fn postgres(url: &str, write: Write, plan: Use) -> anyhow::Result<Rows<Postgres>> {
    let options: PgPoolOptions = settings(plan);
    let pool = options.connect(url).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS floor_rows
             (lock_key text PRIMARY KEY, owner uuid NOT NULL, expire_at timestamptz NOT NULL);
         CREATE TABLE IF NOT EXISTS floor_upserts (lock_key text PRIMARY KEY, owner uuid NOT NULL,
             held boolean NOT NULL, expire_at timestamptz NOT NULL) WITH (fillfactor = 50)",
    )
    .execute(&pool)
    .await?;
    Ok(Rows { pool, write })
}

pub(super) async fn mysql(url: &str, write: Write, plan: Use) -> anyhow::Result<Rows<MySql>> {
    let options: MySqlPoolOptions = settings(plan);
    let pool = options.connect(url).await?;
    for statement in [
        "CREATE TABLE IF NOT EXISTS floor_rows (lock_key varbinary(255) PRIMARY KEY,
             owner binary(16) NOT NULL, expire_at datetime(6) NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS floor_upserts (lock_key varbinary(255) PRIMARY KEY,
             owner binary(16) NOT NULL, held boolean NOT NULL, expire_at datetime(6) NOT NULL) ENGINE = InnoDB",
    ] {
        sqlx::raw_sql(statement).execute(&pool).await?;
    }
    Ok(Rows { pool, write })
}

pub(super) async fn sqlite(url: &str, write: Write, plan: Use) -> anyhow::Result<Rows<Sqlite>> {
    // As durable as dblock: without FULL, WAL may forget the last commits in a power cut.
    let options = url
        .parse::<SqliteConnectOptions>()?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool: SqlitePoolOptions = settings(plan);
    let pool = pool.connect_with(options).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS floor_rows
             (lock_key text PRIMARY KEY, owner blob NOT NULL, expire_at real NOT NULL) WITHOUT ROWID;
         CREATE TABLE IF NOT EXISTS floor_upserts (lock_key text PRIMARY KEY, owner blob NOT NULL,
             held integer NOT NULL, expire_at real NOT NULL) WITHOUT ROWID",
    )
    .execute(&pool)
    .await?;
    Ok(Rows { pool, write })
}

impl<DB: Floor> Subject for Rows<DB> {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Row {
            pool: self.pool.clone(),
            kept: None,
            write: self.write,
            key: key.to_owned(),
            owner: Uuid::now_v7(),
        })
    }

    fn close(&self) -> Step<'_> {
        pool::close(&self.pool, None)
    }
}

impl<DB: Floor> Client for Row<DB> {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            if self.write == Write::OnOneConnection && self.kept.is_none() {
                self.kept = Some(self.pool.acquire().await?);
            }
            let changed = match &mut self.kept {
                Some(kept) => DB::take(kept, self.write, &self.key, self.owner).await?,
                None => {
                    DB::take(
                        &mut *self.pool.acquire().await?,
                        self.write,
                        &self.key,
                        self.owner,
                    )
                    .await?
                }
            };
            ensure!(changed > 0, "the floor is busy: {}", self.key);
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            let changed = match &mut self.kept {
                Some(kept) => DB::free(kept, self.write, &self.key, self.owner).await?,
                None => {
                    DB::free(
                        &mut *self.pool.acquire().await?,
                        self.write,
                        &self.key,
                        self.owner,
                    )
                    .await?
                }
            };
            ensure!(changed > 0, "the floor lost {}", self.key);
            Ok(())
        })
    }
}
