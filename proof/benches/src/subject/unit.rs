//! A unit of work: lock, update an order, unlock. Done with a lock of dblock, and with what the database has.
//! `lock` does all of it, so that its time is the unit's.

use std::pin::Pin;
use std::time::Duration;

use ::dblock::fence::FenceConnection;
use ::dblock::{LockError, LockManager, LockOptions};
use anyhow::{Context as _, ensure};
use sqlx::{Database, MySql, MySqlConnection, PgConnection, Pool, Postgres, Transaction};
use uuid::Uuid;

use super::{Client, Step, Subject, TIMEOUT, TTL, Use, dblock, pool};

pub(super) const TRANSACTION_SETTINGS: &str =
    "`transaction` with the UPDATE as its body; the pool has the same size for all units of work";
pub(super) const LOCK_SETTINGS: &str = "`locks.lock(key).run` around BEGIN, UPDATE, COMMIT";
pub(super) const FOR_UPDATE_SETTINGS: &str = "BEGIN, SELECT … FOR UPDATE of a row that is there for the lock, UPDATE, COMMIT; for a new key the INSERT of that row first, in the same transaction";
pub(super) const XACT_LOCK_SETTINGS: &str = "BEGIN, `pg_advisory_xact_lock`, UPDATE, COMMIT";

/// How the order is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The body waits so long after its work.
    Transaction(Duration),
    Lock,
    ForUpdate,
    XactLock,
}

/// The statements of one database.
pub(super) struct Statements {
    new_order: &'static str,
    update: &'static str,
    new_row: &'static str,
    for_update: &'static str,
    xact_lock: Option<&'static str>,
}

/// A database that units of work run on.
pub(super) trait UnitDatabase: Database {
    const STATEMENTS: Statements;

    /// Returns how many rows were written.
    fn write<'a>(on: &'a mut Self::Connection, statement: &'static str, key: &'a str) -> Answer<'a, u64>;

    /// Fails when there is no row.
    fn read<'a>(on: &'a mut Self::Connection, statement: &'static str, key: &'a str) -> Answer<'a, ()>;
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = sqlx::Result<T>> + Send + 'a>>;

/// Not generic over the driver, because its bounds would be longer than the copies, and because the compiler does
/// not see that the future of a generic unit is `Send`.
macro_rules! unit_database {
    ($database:ty, $connection:ty, $statements:expr) => {
        impl UnitDatabase for $database {
            const STATEMENTS: Statements = $statements;

            fn write<'a>(on: &'a mut $connection, statement: &'static str, key: &'a str) -> Answer<'a, u64> {
                Box::pin(async move {
                    let done = sqlx::query(statement).bind(key).execute(on).await?;
                    Ok(done.rows_affected())
                })
            }

            fn read<'a>(on: &'a mut $connection, statement: &'static str, key: &'a str) -> Answer<'a, ()> {
                Box::pin(async move {
                    sqlx::query(statement)
                        .bind(key)
                        .fetch_one(on)
                        .await
                        .map(drop)
                })
            }
        }

        impl Client for Unit<$database> {
            fn lock(&mut self) -> Step<'_> {
                Box::pin(self.make())
            }

            fn unlock(&mut self) -> Step<'_> {
                Box::pin(async {
                    ensure!(!self.is_first, "the unit was done before");
                    Ok(())
                })
            }
        }
    };
}

unit_database!(
    Postgres,
    PgConnection,
    Statements {
        new_order: "INSERT INTO orders VALUES ($1, 0) ON CONFLICT DO NOTHING",
        update: "UPDATE orders SET paid = paid + 1 WHERE id = $1",
        new_row: "INSERT INTO order_locks VALUES ($1) ON CONFLICT DO NOTHING",
        for_update: "SELECT 1 FROM order_locks WHERE id = $1 FOR UPDATE",
        xact_lock: Some("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"),
    }
);
unit_database!(
    MySql,
    MySqlConnection,
    Statements {
        new_order: "INSERT IGNORE INTO orders VALUES (?, 0)",
        update: "UPDATE orders SET paid = paid + 1 WHERE id = ?",
        new_row: "INSERT IGNORE INTO order_locks VALUES (?)",
        for_update: "SELECT 1 FROM order_locks WHERE id = ? FOR UPDATE",
        xact_lock: None,
    }
);

pub(super) struct Units<DB: Database> {
    locks: LockManager,
    pool: Pool<DB>,
    way: Way,
    new_keys: bool,
}

pub(super) struct Unit<DB: Database> {
    locks: LockManager,
    pool: Pool<DB>,
    way: Way,
    new_keys: bool,
    order: String,
    options: LockOptions,
    is_first: bool,
}

pub(super) async fn postgres(url: &str, way: Way, plan: Use) -> anyhow::Result<Units<Postgres>> {
    let pool = pool::of(u32::try_from(plan.pool)?).connect(url).await?;
    let tables = "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, paid bigint NOT NULL) WITH (fillfactor = 50);
         CREATE TABLE IF NOT EXISTS order_locks (id text PRIMARY KEY)";
    // Where several processes make them at once, PostgreSQL refuses all but one.
    if sqlx::raw_sql(tables).execute(&pool).await.is_err() {
        sqlx::raw_sql(tables).execute(&pool).await?;
    }
    Units::new(url, pool, way, plan).await
}

pub(super) async fn mysql(url: &str, way: Way, plan: Use) -> anyhow::Result<Units<MySql>> {
    let pool = pool::of(u32::try_from(plan.pool)?).connect(url).await?;
    for statement in [
        "CREATE TABLE IF NOT EXISTS orders (id varbinary(255) PRIMARY KEY, paid bigint NOT NULL) ENGINE = InnoDB",
        "CREATE TABLE IF NOT EXISTS order_locks (id varbinary(255) PRIMARY KEY) ENGINE = InnoDB",
    ] {
        sqlx::raw_sql(statement).execute(&pool).await?;
    }
    Units::new(url, pool, way, plan).await
}

impl<DB: Database> Units<DB> {
    async fn new(url: &str, pool: Pool<DB>, way: Way, plan: Use) -> anyhow::Result<Self> {
        let locks = dblock::table_of(url, dblock::TABLE).await?;
        // On MariaDB a process takes no keys before its first connection of this kind.
        locks.admin().get("connects").await?;
        Ok(Self {
            locks,
            pool,
            way,
            new_keys: plan.new_keys,
        })
    }
}

impl<DB: Database> Subject for Units<DB>
where
    Unit<DB>: Client,
{
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Unit {
            locks: self.locks.clone(),
            pool: self.pool.clone(),
            way: self.way,
            new_keys: self.new_keys,
            order: key.to_owned(),
            options: LockOptions::new().ttl(TTL).wait(TIMEOUT),
            is_first: true,
        })
    }

    fn close(&self) -> Step<'_> {
        pool::close(&self.pool, Some(&self.locks))
    }
}

/// The error of a body.
#[derive(Debug)]
struct Failed(anyhow::Error);

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self(error.into())
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(error.into())
    }
}

async fn pay<DB: UnitDatabase>(connection: &mut DB::Connection, order: &str) -> Result<(), sqlx::Error> {
    match DB::write(connection, DB::STATEMENTS.update, order).await? {
        1 => Ok(()),
        _ => Err(sqlx::Error::RowNotFound),
    }
}

impl<DB: UnitDatabase> Unit<DB>
where
    Transaction<'static, DB>: FenceConnection,
{
    /// Makes the order, and the row for its lock.
    async fn prepare(&self) -> anyhow::Result<()> {
        let mut connection = self.pool.acquire().await?;
        DB::write(&mut connection, DB::STATEMENTS.new_order, &self.order).await?;
        DB::write(&mut connection, DB::STATEMENTS.new_row, &self.order).await?;
        Ok(())
    }

    async fn under(&self, key: &str) -> anyhow::Result<()> {
        let lock = || self.locks.lock(key).options(&self.options);
        match self.way {
            Way::Transaction(pause) => {
                let unit = lock().transaction(&self.pool, async |mut tx| {
                    pay::<DB>(&mut tx, &self.order).await?;
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                    Ok::<_, Failed>(())
                });
                unit.await.map_err(|error| error.0)
            }
            Way::Lock => {
                let body = async {
                    let mut tx = self.pool.begin().await?;
                    pay::<DB>(&mut tx, &self.order).await?;
                    tx.commit().await
                };
                Ok(lock().run(body).await??)
            }
            Way::ForUpdate => {
                let mut tx = self.pool.begin().await?;
                if self.new_keys {
                    DB::write(&mut tx, DB::STATEMENTS.new_row, key).await?;
                }
                DB::read(&mut tx, DB::STATEMENTS.for_update, key).await?;
                pay::<DB>(&mut tx, &self.order).await?;
                Ok(tx.commit().await?)
            }
            Way::XactLock => {
                let statement = DB::STATEMENTS.xact_lock;
                let statement = statement.context("the database has no such lock")?;
                let mut tx = self.pool.begin().await?;
                DB::read(&mut tx, statement, key).await?;
                pay::<DB>(&mut tx, &self.order).await?;
                Ok(tx.commit().await?)
            }
        }
    }

    async fn make(&mut self) -> anyhow::Result<()> {
        if std::mem::take(&mut self.is_first) {
            self.prepare().await?;
        }
        if self.new_keys {
            let key = format!("{}:{}", self.order, Uuid::now_v7());
            return self.under(&key).await;
        }
        self.under(&self.order).await
    }
}
