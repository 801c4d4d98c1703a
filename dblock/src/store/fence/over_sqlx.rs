//! sqlx as a driver.

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::{Database, Dialect, DriverError, FenceConnection, FenceStatement, TransactionId};
use crate::store::{StoreError, StoreErrorKind, StoreFuture};

macro_rules! fence_connection {
    ($feature:literal, $database:ident, $driver:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        #[diagnostic::do_not_recommend]
        impl FenceConnection for $connection {
            fn database(&self) -> Database {
                Database::$database
            }

            fn query<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
                Box::pin(async move {
                    let rows = match statement.is_prepared() {
                        true => prepared!(statement).fetch_all(self).await,
                        false => as_text!(statement).fetch_all(self).await,
                    };
                    // Unchecked, because the session may call its text something else, such as binary.
                    let answers =
                        rows.and_then(|rows| rows.iter().map(|row| row.try_get_unchecked(0)).collect());
                    answers.map_err(driver_error)
                })
            }

            fn execute<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<u64, DriverError>> {
                Box::pin(async move {
                    let done = match statement.is_prepared() {
                        true => prepared!(statement).execute(self).await,
                        false => as_text!(statement).execute(self).await,
                    };
                    done.map(|done| done.rows_affected()).map_err(driver_error)
                })
            }
        }

        #[cfg(feature = $feature)]
        #[diagnostic::do_not_recommend]
        impl FenceConnection for sqlx::Transaction<'_, $driver> {
            fn database(&self) -> Database {
                Database::$database
            }

            fn query<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
                <$connection as FenceConnection>::query(&mut **self, statement)
            }

            fn execute<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<u64, DriverError>> {
                <$connection as FenceConnection>::execute(&mut **self, statement)
            }
        }
    };
}

/// One message, and nothing prepared.
macro_rules! as_text {
    ($statement:expr) => {
        sqlx::raw_sql(AssertSqlSafe($statement.text()))
    };
}

/// Prepared once a connection.
macro_rules! prepared {
    ($statement:expr) => {{
        let query = sqlx::query(AssertSqlSafe($statement.sql()));
        $statement
            .parameters()
            .into_iter()
            .fold(query, sqlx::query::Query::bind)
    }};
}

fence_connection!("postgres", Postgres, sqlx::Postgres, sqlx::PgConnection);
fence_connection!("mysql", MySql, sqlx::MySql, sqlx::MySqlConnection);
fence_connection!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection);

/// The error of a transaction that did not begin.
pub(crate) fn begin_failed(error: sqlx::Error) -> StoreError {
    let message = format!("the transaction cannot begin: {error}");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// Commits, unless the transaction was over before, which is the inner error.
///
/// sqlx 0.9 hides what a commit is answered: the commit of a failed transaction is a rollback that succeeds. So
/// the check of [`Dialect::commit`] goes in one message with it. sqlx does not see such a commit, and sends a
/// ROLLBACK when the transaction is dropped. `AND CHAIN` gives that something to end, because the server would
/// log a warning otherwise. It goes together with sqlx's own ping when the connection is returned.
pub(crate) async fn commit<DB>(
    dialect: &dyn Dialect,
    mut transaction: sqlx::Transaction<'static, DB>,
    id: &TransactionId,
) -> Result<Result<(), DriverError>, StoreError>
where
    DB: sqlx::Database,
    sqlx::Transaction<'static, DB>: FenceConnection,
{
    let Some(text) = dialect.commit(id) else {
        return commit_checked(dialect, transaction).await.map(Ok);
    };
    let text = FenceStatement::new(dialect.database(), &text, []).behind_a_pooler(true);
    // The answer to a statement that the body has abandoned. It costs no round trip.
    if let Err(error) = transaction.flush().await {
        let failed = dialect.failed(driver_error(error));
        if let Some(asks) = dialect.asks_after().filter(|_| failed.is_retryable()) {
            let asks = FenceStatement::new(dialect.database(), asks, []).behind_a_pooler(true);
            if let Err(over) = transaction.execute(&asks).await {
                return Ok(Err(over));
            }
        }
        return Err(of_commit(failed));
    }
    match transaction.execute(&text).await {
        Ok(_) => Ok(Ok(())),
        Err(error) if dialect.was_over(&error) => Ok(Err(error)),
        Err(error) => Err(of_commit(dialect.failed(error))),
    }
}

/// Commits a transaction that is known to be open, by its driver.
pub(crate) async fn commit_checked<DB: sqlx::Database>(
    dialect: &dyn Dialect,
    transaction: sqlx::Transaction<'static, DB>,
) -> Result<(), StoreError> {
    let done = transaction.commit().await;
    done.map_err(|error| of_commit(dialect.failed(driver_error(error))))
}

/// Without an answer of the database's the commit may have been carried out, and must not be called retryable,
/// as a request of ours may be.
pub(crate) fn of_commit(error: StoreError) -> StoreError {
    if error.is_outcome_unknown() {
        let message = format!("it is unknown whether the transaction was committed: {error}");
        return StoreError::new(StoreErrorKind::Other, message).with_source(error);
    }
    error
}

/// The row was newer than the transaction's snapshot.
pub(crate) fn is_old_snapshot(error: &StoreError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<sqlx::Error>());
    let code = source.and_then(sqlx::Error::as_database_error).and_then(code);
    matches!(code.as_deref(), Some("40001" | "1020"))
}

fn driver_error(error: sqlx::Error) -> DriverError {
    let answer = error.as_database_error();
    let failed = match answer.and_then(|answer| Some((answer.message(), code(answer)?))) {
        Some((message, code)) => DriverError::refused(message).with_code(code),
        None => DriverError::broken(error.to_string()),
    };
    failed.with_source(error)
}

/// The database's own code. `None` for an error that ends the session.
fn code(answer: &dyn DatabaseError) -> Option<String> {
    #[cfg(feature = "postgres")]
    if let Some(answer) = answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>() {
        use sqlx::postgres::PgSeverity::{Fatal, Panic};

        // These end the session without saying what became of the statement.
        let ends = matches!(answer.severity(), Fatal | Panic);
        return (!ends).then(|| crate::store::postgres::code_of(answer).to_owned());
    }
    #[cfg(feature = "mysql")]
    if let Some(answer) = answer.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return Some(answer.number().to_string());
    }
    answer.code().map(Into::into)
}
