//! The statements in a user's transaction, each in the SQL of its database, and their errors.

use std::time::Duration;

#[cfg(feature = "run_once")]
use crate::store::fence::Completion;
#[cfg(feature = "run_once")]
use crate::store::fence::FenceSource;
use crate::store::fence::{Database, DriverError, FenceCheck, FenceConnection, ReadsRelease, driver_error};
use crate::store::{self, StoreError, StoreErrorKind};

/// Calls a function that each database has, in the store of this one.
macro_rules! on {
    ($database:expr, $function:ident($($argument:expr),*) $($then:tt)*) => {
        match $database {
            #[cfg(feature = "postgres")]
            Database::Postgres => store::postgres::$function($($argument),*) $($then)*,
            #[cfg(feature = "mysql")]
            Database::MySql => store::mysql::$function($($argument),*) $($then)*,
            #[cfg(feature = "sqlite")]
            Database::Sqlite => store::sqlite::$function($($argument),*) $($then)*,
            #[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
            _ => unreachable!("the database of a lock, and of its transaction, is compiled in"),
        }
    };
}

pub(super) async fn verify_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let Some(first) = checks.first() else {
        return Ok(Vec::new());
    };
    let database = expect(connection, first)?;
    on!(database, verify(connection, checks).await)
}

pub(super) async fn release_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<bool>, StoreError> {
    let Some(first) = checks.first() else {
        return Ok(Vec::new());
    };
    let database = expect(connection, first)?;
    on!(database, release_in(connection, checks).await)
}

/// What the transaction reads of the row's release by this lease.
pub(super) async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<ReadsRelease, StoreError> {
    let database = expect(connection, check)?;
    on!(database, reads_release(connection, check).await)
}

/// Writes the success of an attempt. Whether the transaction sees the record of the attempt.
#[cfg(feature = "run_once")]
pub(super) async fn complete_in(
    connection: &mut dyn FenceConnection,
    source: &FenceSource,
    completion: &Completion<'_>,
) -> Result<bool, StoreError> {
    on!(source.database, complete_in(connection, source, completion).await)
}

/// The error of a transaction that did not begin.
pub(crate) fn begin_failed(error: sqlx::Error) -> StoreError {
    let message = format!("the transaction cannot begin: {error}");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// The error of a commit. Without an answer of the database's it may have been carried out, and must not be
/// called retryable, as a request of ours may be.
pub(crate) fn commit_failed(database: Database, error: sqlx::Error) -> StoreError {
    let error = statement_failed(database, driver_error(database, error));
    if error.is_outcome_unknown() {
        let message = format!("it is unknown whether the transaction was committed: {error}");
        return StoreError::new(StoreErrorKind::Other, message).with_source(error);
    }
    error
}

pub(super) fn statement_failed(database: Database, error: DriverError) -> StoreError {
    on!(database, of_fence_check(error))
}

/// The database of both. Refuses a transaction on another kind of database.
fn expect(connection: &dyn FenceConnection, check: &FenceCheck<'_>) -> Result<Database, StoreError> {
    let (found, kept) = (connection.database(), check.source.database);
    if found == kept {
        return Ok(kept);
    }
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        format!(
            "the transaction is on {found:?}, but the lock is kept on {kept:?}; a fence check needs a transaction on the \
             database that keeps the lock"
        ),
    ))
}
