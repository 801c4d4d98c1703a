//! Statements in a transaction of the user's: what a driver must do for them, and what the databases share.
//!
//! The SQL is written once for each database. A driver only carries it: see [`FenceConnection`].

mod error;
mod marking;
mod over_sqlx;
mod source;
mod statement;
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "SQLite takes no keys")
)]
pub(crate) mod take;

use std::fmt;
use std::future::ready;
use std::time::Duration;

use dblock_core::store::rules::Took;
use uuid::Uuid;

pub use self::error::DriverError;
pub(crate) use self::marking::Marking;
pub(crate) use self::over_sqlx::{begin_failed, commit, commit_checked, is_old_snapshot, of_commit};
pub(crate) use self::source::{FenceSource, Identity, PoolId, Pools};
pub use self::statement::FenceStatement;
#[cfg(feature = "postgres")]
pub(crate) use self::statement::{filled, literal};
#[doc(hidden)]
pub use self::take::take_on;
pub(crate) use self::take::{Take, Taken};
use super::{StoreError, StoreErrorKind, StoreFuture};
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

/// What a database has of its own for statements in a user's transaction.
pub(crate) trait Dialect: fmt::Debug + Send + Sync {
    fn database(&self) -> Database;

    /// The time left of each lease, and the transaction. Until that ends, nobody else can take the locks over.
    fn verify<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> Answers<'a, (Duration, TransactionId)>;

    /// Frees the rows in the transaction. Others acquire the keys when it commits.
    fn release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> Answers<'a, TransactionId>;

    /// Whether a transaction that its caller has begun can [take](Self::take) a key, and not only one of our own.
    fn takes_in_theirs(&self) -> bool {
        false
    }

    /// Whether a free row is made for a key that has none, and the take is tried again: a transaction can see rows
    /// that were made after its first read.
    fn makes_free_rows(&self) -> bool {
        false
    }

    /// Takes a free key: writes the row as that of a lease that has ended. Nobody else can touch it until the
    /// transaction ends, and its commit leaves a free row.
    ///
    /// Whoever gets another answer than [`Took::Taken`] must end the transaction before it waits for anything,
    /// unless the answer says that nothing was locked.
    fn take<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        take: &'a Take<'a>,
    ) -> StoreFuture<'a, Result<Took<Taken>, StoreError>> {
        let _ = (connection, take);
        let message = "no transaction on this database can take a key itself";
        Box::pin(ready(Err(StoreError::new(StoreErrorKind::Unsupported, message))))
    }

    /// The identity of the table that the transaction has written. `told`: as the take said, before the store's own
    /// sessions read theirs anew.
    fn identity<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        source: &'a FenceSource,
        told: String,
    ) -> StoreFuture<'a, Result<String, StoreError>> {
        let _ = (connection, source);
        Box::pin(ready(Ok(told)))
    }

    /// What the transaction reads of the release.
    fn reads_release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        check: &'a FenceCheck<'a>,
    ) -> StoreFuture<'a, Result<ReadsRelease, StoreError>>;

    /// The statement that writes the success of an attempt into this table, with the parameters of a
    /// [`Completion`].
    #[cfg(feature = "run_once")]
    fn complete(&self, records: &str) -> String;

    /// A statement that returns a row if the transaction sees another attempt, with the first three of these parameters.
    /// Otherwise [`complete`](Self::complete) has skipped a row that others have locked. `None` where it skips none.
    #[cfg(feature = "run_once")]
    fn is_another_attempt(&self, records: &str) -> Option<String> {
        let _ = records;
        None
    }

    /// Classifies the error of a statement.
    fn failed(&self, error: DriverError) -> StoreError;

    /// Whether a transaction that has written keeps every other writer out. Then it writes the release last.
    fn has_one_writer(&self) -> bool {
        false
    }

    /// The statement that [marks](Marking) the transaction of a lock, if it needs that.
    fn marks_with(&self) -> Option<&'static str> {
        None
    }

    /// The text that commits the transaction in one message, unless it is no longer the one of this id, or has
    /// failed: if the body swallowed an error that ended it, the commit would be a rollback, and its answer
    /// would not say so. `None`: the driver's own commit will do.
    fn commit(&self, id: &TransactionId) -> Option<String> {
        let _ = id;
        None
    }

    /// How a transaction ends with a check of a lease of `source`, if it can.
    fn by_lease(&self, source: &FenceSource) -> Option<ByLease> {
        let _ = source;
        None
    }

    /// Whether this error of a commit says that the transaction was over before.
    fn was_over(&self, error: &DriverError) -> bool {
        let _ = error;
        false
    }

    /// A statement that fails where the transaction was over before the commit. It is asked where an earlier statement,
    /// for whose answer the body did not wait, has failed.
    fn asks_after(&self) -> Option<&'static str> {
        None
    }
}

/// The statements of a transaction that ends with a check of a lease. It is marked with a number, until its end.
#[cfg_attr(not(feature = "postgres"), allow(dead_code))]
pub(crate) struct ByLease {
    /// The statement that marks the transaction, up to the mark.
    pub(crate) marks: &'static str,
    /// Returns the mark of the transaction, or an empty text.
    pub(crate) mark: &'static str,
    /// `$1` key, `$2` lease. If the row names the lease, it returns the mark, and has the row locked.
    pub(crate) check: String,
}

impl ByLease {
    /// The message that begins the transaction, which the mark belongs to, too. Where a statement of it fails, no
    /// transaction is left open: the driver would not know of it.
    pub(crate) fn begins(&self, mark: u64) -> String {
        format!("{}{mark}; BEGIN", self.marks)
    }
}

/// What tells a transaction from those that come after it on its connection, for [`Dialect::commit`]: empty where
/// that needs nothing.
pub(crate) type TransactionId = String;

/// What a statement in the transaction finds of a lease. It waits for no row that others have locked: the limit of the
/// user's session could end that, on MySQL with the whole transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked<T> {
    /// The lease, and the transaction has its row locked now.
    Found(T),
    /// Another lease, or none.
    Gone,
    /// Others have the row locked. On MySQL there may be no row, too.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    Skipped,
}

/// What a statement finds of each of some leases.
pub(crate) type Answers<'a, T> = StoreFuture<'a, Result<Vec<Asked<T>>, StoreError>>;

/// The lease that a fence check looks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FenceCheck<'a> {
    pub(crate) source: &'a FenceSource,
    pub(crate) key: &'a Key,
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
}

impl FenceCheck<'_> {
    /// The one row of a statement's answer, or none. Its parameters are [`values`](Self::values).
    pub(crate) async fn row(
        &self,
        connection: &mut dyn FenceConnection,
        sql: &str,
    ) -> Result<Option<String>, StoreError> {
        let mut rows = self
            .source
            .query(connection, sql, self.values())
            .await?
            .into_iter();
        let row = rows.next();
        match rows.next() {
            None => Ok(row),
            Some(_) => Err(unreadable("more than one row")),
        }
    }

    /// `$1` the key, `$2` the lease as hexadecimal digits, `$3` the token.
    pub(crate) fn values(&self) -> [String; 3] {
        let (key, lease_id) = (self.key.as_str().to_owned(), self.lease_id.simple().to_string());
        [key, lease_id, self.fence_token.to_string()]
    }
}

/// What a transaction reads of the release of a lock. Each database reads some of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(all(feature = "postgres", feature = "mysql")), allow(dead_code))]
pub(crate) enum ReadsRelease {
    /// This very transaction has written it.
    WrittenHere,
    /// It is written, by this transaction or by one that has ended meanwhile.
    Written,
    /// It is not: another transaction keeps the lock.
    NotWritten,
    /// It is not, and no transaction keeps the lock: the one that did was rolled back.
    TakenBack,
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
    /// Writes it, unless the transaction does not see the attempt, or others have its row locked. The parameters are `$1`
    /// the key, `$2` the token, `$3` the attempts, `$4` the result, `$5` for how many µs it is remembered.
    pub(crate) async fn write(
        &self,
        connection: &mut dyn FenceConnection,
        source: &FenceSource,
    ) -> Result<Asked<()>, StoreError> {
        let values = [
            self.key.as_str().to_owned(),
            self.fence_token.to_string(),
            self.attempts.to_string(),
            self.json.to_owned(),
            super::clock::micros(self.keep).to_string(),
        ];
        let sql = source.dialect.complete(&source.record_table);
        if source.writes(connection, &sql, values.clone()).await? {
            return Ok(Asked::Found(()));
        }
        let Some(sql) = source.dialect.is_another_attempt(&source.record_table) else {
            return Ok(Asked::Gone);
        };
        let others = source.query(connection, &sql, &values[..3]).await?;
        Ok(if others.is_empty() {
            Asked::Skipped
        } else {
            Asked::Gone
        })
    }
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
