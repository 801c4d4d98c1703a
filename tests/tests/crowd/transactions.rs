//! Locks that end with a transaction. Nobody's is rolled back, except that a caller's own transaction on MySQL may
//! have to begin anew: it may have locked the row of a lock whose transaction has just ended.

use dblock::fence::FenceConnection;
use dblock::optimistic::Conflict as _;
use dblock::{LockError, LockManager, begin, distributed_lock};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Connection, Database, Executor, Pool, Transaction};

use crate::{CALLERS, Keys, PATIENCE, all};

on_every_store!(databases:
    transactions_of_ours,
    transactions_of_the_callers,
    calls_that_nest_in_a_transaction,
);

#[derive(Debug)]
enum Failure {
    Lock(LockError),
    #[expect(dead_code, reason = "shown")]
    Database(sqlx::Error),
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

async fn execute<'c, E: Executor<'c>>(executor: E, sql: &str) -> Result<(), sqlx::Error> {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(executor).await.map(drop)
}

/// A pool that is smaller than the crowd. Its own patience is not what is tested.
fn pool_of<DB: Database>(pool: &Pool<DB>) -> Pool<DB>
where
    <DB::Connection as Connection>::Options: Clone,
{
    PoolOptions::new()
        .max_connections(8)
        .acquire_timeout(PATIENCE)
        .connect_lazy_with((*pool.connect_options()).clone())
}

macro_rules! on_its_pool {
    ($backend:expr, $pool:ident => $do:expr) => {
        match $backend.place() {
            Place::Postgres($pool, _) => $do,
            Place::MySql($pool, _) => $do,
            Place::Sqlite($pool, _) => $do,
            Place::Memory(_) => unreachable!("memory has no transactions"),
        }
    };
}

async fn transactions_of_ours(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let pool = pool_of(pool);
        crowd(&backend, async |keys, work: &str| {
            all(keys, async |key| {
                    let options = crate::patient();
                    let done = locks.lock(key).options(&options).transaction(&pool, async |mut tx| {
                        Ok::<_, Failure>(execute(&mut **tx, work).await?)
                    });
                    done.await
            })
            .await
        })
        .await;
    });
}

async fn transactions_of_the_callers(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let pool = pool_of(pool);
        crowd(&backend, async |keys, work: &str| {
            all(keys, async |key| {
                let attempt = async || {
                    let mut tx = begin(&pool).await?;
                    add(&locks, &key, &mut tx, work).await?;
                    Ok::<_, Failure>(tx.commit().await?)
                };
                loop {
                    match attempt().await {
                        Err(Failure::Lock(conflict)) if conflict.is_conflict() => {}
                        done => break done,
                    }
                }
            })
            .await
        })
        .await;
    });
}

/// Each asks whether its own transaction keeps the lock.
async fn calls_that_nest_in_a_transaction(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let pool = pool_of(pool);
        crowd(&backend, async |keys, work: &str| {
            all(keys, async |key| {
                let attempt = async || {
                    let mut tx = begin(&pool).await?;
                    add_in_two(&locks, &key, &mut tx, work).await?;
                    Ok::<_, Failure>(tx.commit().await?)
                };
                loop {
                    match attempt().await {
                        Err(Failure::Lock(conflict)) if conflict.is_conflict() => {}
                        done => break done,
                    }
                }
            })
            .await
        })
        .await;
    });
}

#[distributed_lock(key = "{key}", ttl = "30s", wait = "3m", manager = locks, tx = tx)]
async fn add<DB>(
    locks: &LockManager,
    key: &str,
    tx: &mut Transaction<'static, DB>,
    work: &str,
) -> Result<(), Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    Ok(execute(&mut **tx, work).await?)
}

#[distributed_lock(key = "{key}", ttl = "30s", wait = "3m", manager = locks, tx = tx)]
async fn add_in_two<DB>(
    locks: &LockManager,
    key: &str,
    tx: &mut Transaction<'static, DB>,
    work: &str,
) -> Result<(), Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    add(locks, key, tx, work).await
}

/// Each caller's transaction inserts a row, and all rows are there.
async fn crowd(backend: &Backend, callers: impl AsyncFn(Keys, &str) -> Vec<Result<(), Failure>>) {
    let table = format!("{}_work", backend.table);
    backend
        .execute(&format!("CREATE TABLE {table} (done INTEGER)"))
        .await;
    let work = format!("INSERT INTO {table} VALUES (1)");
    let mut expected = 0;
    for keys in [Keys::Different, Keys::Same] {
        let answers = callers(keys, &work).await;
        let failed: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed[0]);
        expected += i64::from(CALLERS);
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let done: i64 =
            on_its_pool!(backend, pool => sqlx::query_scalar(count).fetch_one(pool).await.unwrap());
        assert_eq!(done, expected, "{keys:?}");
    }
    backend.execute(&format!("DROP TABLE {table}")).await;
}
