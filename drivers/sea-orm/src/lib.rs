//! The fence check of [dblock](https://docs.rs/dblock), and a lock that ends with a transaction, over
//! [SeaORM](sea_orm).
//!
//! ```no_run
//! use dblock::LockManager;
//! use sea_orm::{ConnectionTrait, DatabaseConnection, TransactionTrait};
//!
//! # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
//! async fn pay(locks: &LockManager, db: &DatabaseConnection) -> Result<()> {
//!     let guard = locks.lock("order:42").acquire().await?;
//!     let tx = db.begin().await?;
//!     guard.release_in(&mut dblock_sea_orm::fence(&tx)).await?; // on SQLite right before the commit
//!     tx.execute_unprepared("UPDATE orders SET paid = true WHERE id = 42").await?;
//!     tx.commit().await?; // frees the lock, together with the work
//!     Ok(())
//! }
//! ```
//!
//! Turn on the feature of your database: `postgres`, `mysql` or `sqlite`. SeaORM prepares each statement once
//! a connection.

#![cfg_attr(docsrs, feature(doc_cfg))]

use std::fmt;
use std::ops::Deref;

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
use dblock::store::StoreFuture;
use sea_orm::sqlx::error::DatabaseError;
use sea_orm::{
    ConnectionTrait, DatabaseBackend, DatabaseTransaction, DbErr, QueryResult, RuntimeErr, Statement, Value,
};

/// For `verify_in` and `release_in`: `guard.verify_in(&mut fence(&tx))`.
///
/// A transaction that was begun in another one is a savepoint: see
/// [`LockGuard::release_in`](dblock::LockGuard::release_in).
pub fn fence(transaction: &DatabaseTransaction) -> Fence<'_> {
    Fence(transaction)
}

/// A transaction in which dblock runs statements. From [`fence`]. It derefs to the transaction.
///
/// A function under the attribute takes it as its argument:
///
/// ```no_run
/// use dblock::distributed_lock;
/// use dblock_sea_orm::Fence;
/// use sea_orm::ConnectionTrait;
///
/// # type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
/// #[distributed_lock(key = "order:{id}", tx = tx)]
/// async fn settle(tx: &mut Fence<'_>, id: i32) -> Result<()> {
///     tx.execute_unprepared("UPDATE orders SET settled = true WHERE id = 42").await?;
///     Ok(())
/// }
/// ```
pub struct Fence<'t>(&'t DatabaseTransaction);

impl Deref for Fence<'_> {
    type Target = DatabaseTransaction;

    fn deref(&self) -> &DatabaseTransaction {
        self.0
    }
}

impl fmt::Debug for Fence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").finish_non_exhaustive()
    }
}

impl Fence<'_> {
    fn statement(&self, statement: &FenceStatement) -> Statement {
        let values = statement.parameters().into_iter().map(Value::from);
        Statement::from_sql_and_values(self.0.get_database_backend(), statement.sql(), values)
    }
}

impl FenceConnection for Fence<'_> {
    fn database(&self) -> Database {
        match self.0.get_database_backend() {
            DatabaseBackend::Postgres => Database::Postgres,
            DatabaseBackend::MySql => Database::MySql,
            DatabaseBackend::Sqlite => Database::Sqlite,
            other => unreachable!("this version of SeaORM has no database {other:?}"),
        }
    }

    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
        Box::pin(async move {
            let rows = self.0.query_all_raw(self.statement(statement)).await;
            let text = |row: &QueryResult| row.try_get_by_index(0);
            let answers = rows.and_then(|rows| rows.iter().map(text).collect());
            answers.map_err(failed)
        })
    }

    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
        Box::pin(async move {
            let done = self.0.execute_raw(self.statement(statement)).await;
            done.map(|done| done.rows_affected()).map_err(failed)
        })
    }
}

fn failed(error: DbErr) -> DriverError {
    let answer = match &error {
        DbErr::Conn(RuntimeErr::SqlxError(error))
        | DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error)) => error.as_database_error(),
        _ => None,
    };
    let failed = match answer.and_then(|answer| Some((answer.message(), code(answer)?))) {
        Some((message, code)) => DriverError::refused(message).with_code(code),
        None => DriverError::broken(error.to_string()),
    };
    failed.with_source(error)
}

/// The database's own code; `None` when the error ends the session.
fn code(answer: &dyn DatabaseError) -> Option<String> {
    #[cfg(feature = "postgres")]
    if let Some(answer) = answer.try_downcast_ref::<sea_orm::sqlx::postgres::PgDatabaseError>() {
        use sea_orm::sqlx::postgres::PgSeverity::{Fatal, Panic};

        let ends = matches!(answer.severity(), Fatal | Panic);
        return (!ends).then(|| answer.code().to_owned());
    }
    #[cfg(feature = "mysql")]
    if let Some(answer) = answer.try_downcast_ref::<sea_orm::sqlx::mysql::MySqlDatabaseError>() {
        return Some(answer.number().to_string());
    }
    answer.code().map(Into::into)
}
