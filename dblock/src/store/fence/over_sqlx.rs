//! sqlx as a driver.

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Row as _};

use super::{Database, DriverError, FenceConnection, FenceStatement};
use crate::store::StoreFuture;

macro_rules! fence_connection {
    ($feature:literal, $database:ident, $driver:ty, $connection:ty, $code:expr) => {
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
                    answers.map_err(|error| failed(error, $code))
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
                    done.map(|done| done.rows_affected())
                        .map_err(|error| failed(error, $code))
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

fence_connection!(
    "postgres",
    Postgres,
    sqlx::Postgres,
    sqlx::PgConnection,
    postgres_code
);
fence_connection!("mysql", MySql, sqlx::MySql, sqlx::MySqlConnection, mysql_code);
fence_connection!(
    "sqlite",
    Sqlite,
    sqlx::Sqlite,
    sqlx::SqliteConnection,
    sqlite_code
);

/// An error of sqlx on this database.
pub(crate) fn driver_error(database: Database, error: sqlx::Error) -> DriverError {
    let code = match database {
        #[cfg(feature = "postgres")]
        Database::Postgres => postgres_code,
        #[cfg(feature = "mysql")]
        Database::MySql => mysql_code,
        #[cfg(feature = "sqlite")]
        Database::Sqlite => sqlite_code,
        #[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
        _ => |_: &dyn DatabaseError| None,
    };
    failed(error, code)
}

/// `code` is `None` for an error that ends the session.
fn failed(error: sqlx::Error, code: fn(&dyn DatabaseError) -> Option<String>) -> DriverError {
    let answer = error.as_database_error();
    let failed = match answer.and_then(|answer| Some((answer.message(), code(answer)?))) {
        Some((message, code)) => DriverError::refused(message).with_code(code),
        None => DriverError::broken(error.to_string()),
    };
    failed.with_source(error)
}

/// An error of the two higher severities ends the session, without saying what became of the statement.
#[cfg(feature = "postgres")]
fn postgres_code(answer: &dyn DatabaseError) -> Option<String> {
    use sqlx::postgres::{PgDatabaseError, PgSeverity};

    let answer = answer.try_downcast_ref::<PgDatabaseError>()?;
    let ends = matches!(answer.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    (!ends).then(|| answer.code().to_owned())
}

#[cfg(feature = "mysql")]
fn mysql_code(answer: &dyn DatabaseError) -> Option<String> {
    let answer = answer.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()?;
    Some(answer.number().to_string())
}

#[cfg(feature = "sqlite")]
fn sqlite_code(answer: &dyn DatabaseError) -> Option<String> {
    answer.code().map(Into::into)
}
