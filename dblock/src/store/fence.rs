//! Statements in a transaction of the user's: what a driver must do for them, and what the databases share.
//!
//! The SQL is written once for each database. A driver only carries it: see [`FenceConnection`].

mod error;
mod over_sqlx;
mod statement;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use uuid::Uuid;

pub use self::error::DriverError;
pub(crate) use self::over_sqlx::driver_error;
pub use self::statement::FenceStatement;
#[cfg(feature = "postgres")]
pub(crate) use self::statement::literal;
use super::{Store, StoreError, StoreErrorKind, StoreFuture};
use crate::Key;

/// A transaction of the user's, over any driver, in which a lock can be checked or end.
///
/// Implemented for [`sqlx::Transaction`] and the connections of the compiled-in databases. The crates
/// `dblock-tokio-postgres`, `dblock-sea-orm` and `dblock-diesel-async` have it for their drivers.
///
/// # To write one
/// An implementation only runs statements; it knows nothing of locks. It must do three things:
///
/// - Run each statement **in the user's transaction**, on its connection: not on a connection of a pool, not
///   in a transaction or savepoint of its own.
/// - Run it **once**, and return the driver's error. It never sends a statement again.
/// - Pass on the database's own error code: [`DriverError`].
///
/// `fence_conformance!` of the crate `dblock-conformance` tests whether an implementation does so. Each
/// [`FenceStatement`] is one SQL statement. Its parameters and its answers are text, never NULL. It may have
/// any number of parameters, and an answer any number of rows, in any order.
///
/// ```
/// use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
/// use dblock::store::StoreFuture;
/// # mod some_driver {
/// #     pub struct Error { pub sqlstate: Option<&'static str> }
/// #     pub struct Transaction;
/// #     impl Transaction {
/// #         pub async fn query(&mut self, _: &str, _: &[&str]) -> Result<Vec<String>, Error> { Ok(Vec::new()) }
/// #         pub async fn execute(&mut self, _: &str, _: &[&str]) -> Result<u64, Error> { Ok(0) }
/// #     }
/// # }
///
/// /// A transaction of `some_driver`, which speaks to PostgreSQL.
/// struct Fence<'t>(&'t mut some_driver::Transaction);
///
/// impl FenceConnection for Fence<'_> {
///     fn database(&self) -> Database {
///         Database::Postgres
///     }
///
///     fn query<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
///         Box::pin(async move {
///             let rows = self.0.query(&statement.sql(), &statement.parameters()).await;
///             rows.map_err(failed)
///         })
///     }
///
///     fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
///         Box::pin(async move {
///             let rows = self.0.execute(&statement.sql(), &statement.parameters()).await;
///             rows.map_err(failed)
///         })
///     }
/// }
///
/// fn failed(error: some_driver::Error) -> DriverError {
///     match error.sqlstate {
///         Some(code) => DriverError::refused("what the server says").with_code(code),
///         None => DriverError::broken("what went wrong"),
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction in which a lock can be checked or end",
    label = "expected a transaction on the database that keeps the lock",
    note = "begin a transaction, `let mut tx = dblock::begin(&pool).await?;`, and pass `&mut tx`",
    note = "sqlx needs the database's feature of dblock: `postgres`, `mysql` or `sqlite`",
    note = "tokio-postgres, SeaORM and diesel-async have crates: `dblock-tokio-postgres`, `dblock-sea-orm`, `dblock-diesel-async`"
)]
pub trait FenceConnection: Send {
    /// The database at the other end.
    fn database(&self) -> Database;

    /// Runs one statement and returns the first column of its rows, which is text and never NULL.
    ///
    /// # Errors
    /// [`DriverError::refused`] for the database's answer, [`DriverError::broken`] when there was none.
    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>>;

    /// Runs one statement that returns no rows, and returns how many rows it wrote.
    ///
    /// # Errors
    /// As [`query`](Self::query).
    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>>;
}

/// A SQL database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
    /// SQLite.
    Sqlite,
}

/// The database and the tables that a statement in a user's transaction concerns.
#[derive(Debug, Clone)]
pub(crate) struct FenceSource {
    pub(crate) database: Database,
    pub(crate) table: Arc<str>,
    /// The quoted table of records.
    #[cfg_attr(not(feature = "run_once"), allow(dead_code))]
    pub(crate) record_table: Arc<str>,
    /// How long the server lets the transaction idle after the check.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) idle_limit: Option<Duration>,
    /// A pooler lends the store's sessions for a transaction at a time. Known from the first connection on.
    pub(crate) pooled: Arc<AtomicBool>,
}

impl FenceSource {
    /// That of a part of `store`, if it is a database.
    pub(crate) fn of(store: &dyn Store, part: usize) -> Option<Self> {
        store.transaction_source(part)?.downcast_ref().cloned()
    }
}

/// The lease that a fence check looks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FenceCheck<'a> {
    pub(crate) source: &'a FenceSource,
    pub(crate) key: &'a Key,
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
}

impl FenceCheck<'_> {
    /// The statement `sql`, whose parameters are `$1` the key, `$2` the lease as hexadecimal digits, `$3` the
    /// token.
    pub(crate) fn statement(&self, sql: &str) -> FenceStatement {
        let statement = FenceStatement::new(self.source.database, sql, self.values());
        statement.behind_a_pooler(self.source.pooled.load(Ordering::Relaxed))
    }

    pub(crate) fn values(&self) -> [String; 3] {
        let (key, lease_id) = (self.key.as_str().to_owned(), self.lease_id.simple().to_string());
        [key, lease_id, self.fence_token.to_string()]
    }
}

/// What a transaction reads of the release of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadsRelease {
    /// It is written, by this transaction as far as the database can tell.
    Written,
    /// It is not: another transaction keeps the lock.
    NotWritten,
    /// It is not, and no transaction keeps the lock: the one that did was rolled back.
    #[cfg_attr(not(feature = "mysql"), allow(dead_code, reason = "only MySQL reads it so"))]
    TakenBack,
}

impl ReadsRelease {
    /// From whether the transaction finds the release.
    #[cfg(any(feature = "postgres", feature = "sqlite"))]
    pub(crate) fn found(is_found: bool) -> Self {
        if is_found { Self::Written } else { Self::NotWritten }
    }
}

/// The success of an attempt of `run_once`, to be written in the transaction.
#[cfg(feature = "run_once")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Completion<'a> {
    pub(crate) key: &'a Key,
    pub(crate) fence_token: i64,
    pub(crate) attempts: u32,
    pub(crate) json: &'a str,
    pub(crate) keep: Duration,
}

#[cfg(feature = "run_once")]
impl Completion<'_> {
    /// The statement `sql`, whose parameters are `$1` the key, `$2` the token, `$3` the attempts, `$4` the
    /// result, `$5` for how many µs it is remembered.
    pub(crate) fn statement(&self, source: &FenceSource, sql: &str) -> FenceStatement {
        let values = [
            self.key.as_str().to_owned(),
            self.fence_token.to_string(),
            self.attempts.to_string(),
            self.json.to_owned(),
            super::clock::micros(self.keep).to_string(),
        ];
        let statement = FenceStatement::new(source.database, sql, values);
        statement.behind_a_pooler(source.pooled.load(Ordering::Relaxed))
    }
}

/// Runs a statement, and returns the one row of its answer, or none. `failed` classifies the driver's error.
pub(crate) async fn one_row(
    connection: &mut dyn FenceConnection,
    statement: &FenceStatement,
    failed: fn(DriverError) -> StoreError,
) -> Result<Option<String>, StoreError> {
    let mut rows = connection.query(statement).await.map_err(failed)?.into_iter();
    let row = rows.next();
    match rows.next() {
        None => Ok(row),
        Some(_) => Err(unreadable("more than one row")),
    }
}

/// Runs a statement, and returns whether it wrote a row. `failed` classifies the driver's error.
#[cfg(any(feature = "mysql", feature = "sqlite", feature = "run_once"))]
pub(crate) async fn writes(
    connection: &mut dyn FenceConnection,
    statement: &FenceStatement,
    failed: fn(DriverError) -> StoreError,
) -> Result<bool, StoreError> {
    Ok(connection.execute(statement).await.map_err(failed)? > 0)
}

/// The time left of a lease, from an answer in µs.
pub(crate) fn time_left(answer: &str) -> Result<Duration, StoreError> {
    match answer.parse() {
        Ok(micros) => Ok(Duration::from_micros(micros)),
        Err(_) => Err(unreadable(answer)),
    }
}

/// The driver answers something else than the database.
pub(crate) fn unreadable(answer: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Other,
        format!(
            "the transaction's driver answers {answer:?} to a fence check: its `FenceConnection` is at fault"
        ),
    )
}
