//! The stock table of these tests, on any database, and many tasks that take from it.

use std::time::Duration;

use dblock::optimistic::{ExpectVersion as _, RetryOptions, retry};
use dblock::optimistic_retry;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

use crate::{Runs, StockError};

on_every_store!(databases:
    tasks_that_decrement_by_version_lose_no_update,
    a_version_column_that_does_not_exist_is_the_databases_error_at_once,
    what_is_no_conflict_is_returned_at_once,
);

const TASKS: i64 = 24;
const SALES: i64 = 8;

/// Does the same on whatever pool it is.
macro_rules! on_pool {
    ($stock:expr, $pool:ident => $work:expr) => {
        match &$stock.pool {
            crate::stock::Pool::Postgres($pool) => $work,
            crate::stock::Pool::MySql($pool) => $work,
            crate::stock::Pool::Sqlite($pool) => $work,
        }
    };
}
pub(crate) use on_pool;

#[derive(Clone)]
pub(crate) enum Pool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// A table `(id, amount, version)` with the rows 1 and 2.
#[derive(Clone)]
pub(crate) struct Stock {
    pub(crate) pool: Pool,
    pub(crate) table: String,
    pub(crate) runs: Runs,
}

impl Stock {
    pub(crate) async fn new(backend: &Backend) -> Self {
        let table = format!("{}_stock", backend.table);
        backend
            .execute(&format!(
                "CREATE TABLE {table} (id INT PRIMARY KEY, amount BIGINT NOT NULL, version BIGINT NOT NULL)"
            ))
            .await;
        backend
            .execute(&format!("INSERT INTO {table} VALUES (1, 1000, 0), (2, 1000, 0)"))
            .await;
        Self {
            pool: match backend.place() {
                Place::Postgres(pool, _) => Pool::Postgres(pool.clone()),
                Place::MySql(pool, _) => Pool::MySql(pool.clone()),
                Place::Sqlite(pool, _) => Pool::Sqlite(pool.clone()),
                Place::Memory(_) => unreachable!("it has no tables"),
            },
            table,
            runs: Runs::default(),
        }
    }

    pub(crate) fn sql(&self, sql: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(sql.replace("{stock}", &self.table))
    }

    /// Runs a statement on a connection of its own, and commits it.
    pub(crate) async fn execute(&self, sql: &str) {
        on_pool!(self, pool => { sqlx::raw_sql(self.sql(sql)).execute(pool).await.unwrap(); });
    }

    /// The amount and the version of a row.
    pub(crate) async fn row(&self, id: i64) -> (i64, i64) {
        let read = self.sql(&format!("SELECT amount, version FROM {{stock}} WHERE id = {id}"));
        on_pool!(self, pool => sqlx::query_as(read).fetch_one(pool).await.unwrap())
    }

    /// Takes one, in a transaction.
    #[optimistic_retry(times = 1000, backoff = "1ms..20ms", within = "3m")]
    async fn sell(&self, id: i64) -> Result<(), StockError> {
        self.runs.begin();
        on_pool!(self, pool => {
            let mut tx = dblock::begin(pool).await?;
            let read = self.sql(&format!("SELECT amount, version FROM {{stock}} WHERE id = {id}"));
            let (amount, version): (i64, i64) = sqlx::query_as(read).fetch_one(&mut *tx).await?;
            // Long enough for another one to read the same version.
            tokio::time::sleep(Duration::from_millis(1)).await;
            let write = self.sql(&format!(
                "UPDATE {{stock}} SET amount = {amount} - 1, version = version + 1 \
                 WHERE id = {id} AND version = {version}"
            ));
            sqlx::query(write).execute(&mut *tx).await?.expect_version("stock", id, version)?;
            tx.commit().await?;
        });
        Ok(())
    }
}

async fn tasks_that_decrement_by_version_lose_no_update(backend: Backend) {
    let stock = Stock::new(&backend).await;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let stock = stock.clone();
            tokio::spawn(async move {
                for _ in 0..SALES {
                    stock.sell(1).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let sold = TASKS * SALES;
    assert_eq!(stock.row(1).await, (1000 - sold, sold));
    assert_eq!(stock.row(2).await, (1000, 0));
    let runs = i64::from(stock.runs.count());
    assert!(
        runs > sold,
        "{runs} runs for {sold} sales: nobody was in anybody's way"
    );
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

async fn a_version_column_that_does_not_exist_is_the_databases_error_at_once(backend: Backend) {
    let stock = Stock::new(&backend).await;
    let write = "UPDATE {stock} SET amount = 0, revision = revision + 1 WHERE id = 1 AND revision = 7";
    let result = retry(RetryOptions::new(), async || {
        stock.runs.begin();
        on_pool!(stock, pool => {
            let written = sqlx::query(stock.sql(write)).execute(pool).await?;
            written.expect_version("stock", 1, 7)?;
        });
        Ok::<_, StockError>(())
    });
    let Err(StockError::Database(sqlx::Error::Database(error))) = result.await else {
        panic!("the database knows no such column");
    };
    assert!(error.message().contains("revision"), "{error}");
    assert_eq!(stock.runs.count(), 1);
    assert_eq!(stock.row(1).await, (1000, 0));
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

async fn what_is_no_conflict_is_returned_at_once(backend: Backend) {
    let stock = Stock::new(&backend).await;
    let patient = RetryOptions::new().within(Duration::from_mins(1));
    let result = retry(patient.clone(), async || {
        stock.runs.begin();
        let insert = stock.sql("INSERT INTO {stock} VALUES (1, 1, 1)");
        on_pool!(stock, pool => { sqlx::query(insert).execute(pool).await?; });
        Ok::<_, StockError>(())
    });
    let error = result.await.unwrap_err();
    assert!(
        matches!(&error, StockError::Database(error)
        if error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation)),
        "{error:?}"
    );
    let sold_out = retry(patient, async || {
        stock.runs.begin();
        Err::<(), _>(StockError::SoldOut)
    });
    assert!(matches!(sold_out.await, Err(StockError::SoldOut)));
    assert_eq!(stock.runs.count(), 2, "each body ran once");
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}
