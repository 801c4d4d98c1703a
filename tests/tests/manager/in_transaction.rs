//! Locks that end with a transaction of sqlx: `transaction`, and calls with `tx = tx`.

mod broken;
mod by_lease;
mod failed;
mod lent;
mod of_the_caller;
mod shown;
mod taken;
mod taken_on_mysql;

use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager};
use dblock_tests::Backend;
use dblock_tests::backend::Kind;
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Database, Executor, Pool};

use crate::{LONG, long, patient};

/// The error of the application.
#[derive(Debug)]
enum Failure {
    Lock(LockError),
    Database(sqlx::Error),
    Own,
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl Failure {
    fn lock(self) -> LockError {
        match self {
            Self::Lock(error) => error,
            Self::Database(error) => panic!("{error:?}"),
            Self::Own => panic!("the body's own error"),
        }
    }

    fn kind(self) -> StoreErrorKind {
        match self.lock() {
            LockError::Store { source, .. } => source.kind(),
            other => panic!("{other:?}"),
        }
    }
}

/// Does something with the application's pool, whichever database it is of.
macro_rules! on_its_pool {
    ($backend:expr, $pool:ident => $do:expr) => {
        match $backend.place() {
            dblock_tests::backend::Place::Postgres($pool, _) => $do,
            dblock_tests::backend::Place::MySql($pool, _) => $do,
            dblock_tests::backend::Place::Sqlite($pool, _) => $do,
            dblock_tests::backend::Place::Memory(_) => unreachable!("memory has no transactions"),
        }
    };
}
use on_its_pool;

/// The tests once more with a key that was free before: on MySQL a transaction takes that, and gets a lease of a new
/// one.
macro_rules! of_a_free_key {
    ($($name:ident),+ $(,)?) => {
        mod of_a_free_key {
            $(
                async fn $name(backend: dblock_tests::Backend) {
                    super::super::is_free(&backend.manager().await).await;
                    super::$name(backend).await;
                }
            )+
            dblock_tests::on_every_store!(mysql: $($name),+);
        }
    };
}
use of_a_free_key;

async fn execute<'c, E: Executor<'c>>(executor: E, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(executor)
        .await
        .map(drop)
}

/// A table of the application's, beside the lock's.
struct Work {
    table: String,
}

impl Work {
    async fn new(backend: &Backend) -> Self {
        let table = format!("{}_work", backend.table);
        let create = format!("CREATE TABLE {table} (done INTEGER)");
        on_its_pool!(backend, pool => execute(pool, create).await.unwrap());
        Self { table }
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES (1)", self.table)
    }

    fn count(&self) -> String {
        format!("SELECT count(*) FROM {}", self.table)
    }

    async fn done(&self, backend: &Backend) -> i64 {
        let count = AssertSqlSafe(self.count());
        on_its_pool!(backend, pool => sqlx::query_scalar(count).fetch_one(pool).await.unwrap())
    }
}

/// On SQLite a transaction that has written keeps every other writer out: nobody can even ask.
async fn nobody_enters(backend: &Backend, locks: &LockManager) {
    if backend.kind() != Kind::Sqlite {
        assert!(
            locks
                .lock("key")
                .options(&long())
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
    }
}

/// The key is free at once, not when a ttl has passed.
async fn is_free(locks: &LockManager) {
    let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// A pool of one connection, for which its callers wait longer than any test.
async fn of_one<DB: Database>(pool: &Pool<DB>) -> Pool<DB> {
    let options = PoolOptions::new().max_connections(1);
    options
        .acquire_timeout(Duration::from_hours(1))
        .connect_with(pool.connect_options().as_ref().clone())
        .await
        .unwrap()
}

/// Waits until so much of the database's time has passed.
async fn passes(backend: &Backend, time: Duration) {
    let micros = i64::try_from(time.as_micros()).unwrap();
    let start = backend.the_row("key").await.now;
    backend.until("key", LONG, |row| row.now > start + micros).await;
}
