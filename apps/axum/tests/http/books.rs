//! A service that writes payments to the database that keeps its records.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use dblock::{LockError, LockManager, OnCrash, StoreSource};
use dblock_axum::{IdempotencyLayer, IdempotentRun, LockProblem};
use dblock_tests::Backend;
use dblock_tests::backend::Place;
use dblock_tests::transaction::Transaction;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

use crate::client::PATH;

/// Where a process may die.
pub(crate) type Point = &'static str;
pub(crate) const BEFORE_THE_WORK: Point = "before the work";
pub(crate) const AFTER_THE_WORK: Point = "after the work";
pub(crate) const BEFORE_THE_COMMIT: Point = "before the commit";
pub(crate) const AFTER_THE_COMMIT: Point = "after the commit";

#[derive(Clone)]
enum Pool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// The payments.
#[derive(Clone)]
pub(crate) struct Books {
    pool: Pool,
    table: Arc<str>,
    pub(crate) on_crash: OnCrash,
    /// Where the handler stops, after it has said so on its output.
    pub(crate) stops: Option<Arc<str>>,
    /// The length of the answer's body.
    pub(crate) length: usize,
    /// The handler's answer after its commit, instead of the one that it has completed with.
    pub(crate) instead: Option<StatusCode>,
    pub(crate) commits: bool,
    /// The handler's answer where it does not work at all.
    pub(crate) refuses: Option<StatusCode>,
}

impl Books {
    /// For another process: the table of payments must be there.
    pub(crate) fn connect(url: &str, table: &str, on_crash: OnCrash) -> Self {
        let pool = if url.starts_with("postgres") {
            Pool::Postgres(PgPool::connect_lazy(url).unwrap())
        } else if url.starts_with("mysql") {
            Pool::MySql(MySqlPool::connect_lazy(url).unwrap())
        } else {
            Pool::Sqlite(SqlitePool::connect_lazy(url).unwrap())
        };
        Self {
            pool,
            table: table.into(),
            on_crash,
            stops: None,
            length: 4,
            instead: None,
            commits: true,
            refuses: None,
        }
    }

    /// With an empty table of payments.
    pub(crate) async fn create(backend: &Backend, on_crash: OnCrash) -> Self {
        backend
            .execute("CREATE TABLE {table}_paid (cents INT NOT NULL)")
            .await;
        Self::connect(&backend.url().unwrap(), &backend.table, on_crash)
    }

    pub(crate) fn source(&self) -> StoreSource {
        match &self.pool {
            Pool::Postgres(pool) => pool.into(),
            Pool::MySql(pool) => pool.into(),
            Pool::Sqlite(pool) => pool.into(),
        }
    }

    pub(crate) async fn manager(&self) -> LockManager {
        let builder = LockManager::builder(self.source()).table(&*self.table);
        builder.build().await.unwrap()
    }

    pub(crate) fn router(self, layer: IdempotencyLayer) -> Router {
        Router::new().route(PATH, post(pay)).layer(layer).with_state(self)
    }

    async fn begin(&self) -> Transaction {
        match &self.pool {
            Pool::Postgres(pool) => Transaction::Postgres(dblock::begin(pool).await.unwrap()),
            Pool::MySql(pool) => Transaction::MySql(dblock::begin(pool).await.unwrap()),
            Pool::Sqlite(pool) => Transaction::Sqlite(dblock::begin(pool).await.unwrap()),
        }
    }

    async fn reaches(&self, point: Point) {
        if self.stops.as_deref() == Some(point) {
            println!("reached");
            std::future::pending::<()>().await;
        }
    }
}

async fn pay(State(books): State<Books>, run: IdempotentRun) -> Result<Response, LockProblem> {
    if let Some(status) = books.refuses {
        return Ok(status.into_response());
    }
    let attempt = run.run().map_or(0, dblock::Run::attempt);
    let text = format!("{attempt}{}", "x".repeat(books.length));
    let paid = (StatusCode::CREATED, Json(text));
    books.reaches(BEFORE_THE_WORK).await;
    let mut transaction = books.begin().await;
    let sql = format!("INSERT INTO {}_paid (cents) VALUES (1250)", books.table);
    transaction.execute(sql).await;
    if books.on_crash != OnCrash::CompleteIn {
        transaction.commit().await;
        books.reaches(AFTER_THE_WORK).await;
        return Ok(paid.into_response());
    }
    let answer = complete(&run, &mut transaction, paid).await?;
    books.reaches(BEFORE_THE_COMMIT).await;
    if books.commits {
        transaction.commit().await;
    } else {
        transaction.rollback().await;
    }
    books.reaches(AFTER_THE_COMMIT).await;
    Ok(books.instead.map_or(answer, IntoResponse::into_response))
}

async fn complete(
    run: &IdempotentRun,
    transaction: &mut Transaction,
    answer: impl IntoResponse,
) -> Result<Response, LockError> {
    match transaction {
        Transaction::Postgres(transaction) => run.complete_in(transaction, answer).await,
        Transaction::MySql(transaction) => run.complete_in(transaction, answer).await,
        Transaction::Sqlite(transaction) => run.complete_in(transaction, answer).await,
    }
}

/// How many payments stand. Then the table is removed.
pub(crate) async fn payments(backend: &Backend) -> i64 {
    let sql = || AssertSqlSafe(format!("SELECT count(*) FROM {}_paid", backend.table));
    let payments = match backend.place() {
        Place::Postgres(pool, _) => sqlx::query_scalar(sql()).fetch_one(pool).await,
        Place::MySql(pool, _) => sqlx::query_scalar(sql()).fetch_one(pool).await,
        Place::Sqlite(pool, _) => sqlx::query_scalar(sql()).fetch_one(pool).await,
        Place::Memory(_) => unreachable!("memory has no tables"),
    };
    backend.execute("DROP TABLE {table}_paid").await;
    payments.unwrap()
}
