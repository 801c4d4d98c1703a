//! Statements over the connections of Diesel.

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
use dblock::store::StoreFuture;
use diesel::deserialize::{self, FromSql, QueryableByName};
use diesel::row::{Field, NamedRow, Row};
use diesel::sql_types::Text;
use diesel_async::RunQueryDsl;

use crate::Fence;
use crate::code::failed;

/// The first column of a row, whatever its name is.
struct Answer(String);

macro_rules! fence_connection {
    ($feature:literal, $database:ident, $backend:ty, $connection:ty) => {
        #[cfg(feature = $feature)]
        impl QueryableByName<$backend> for Answer {
            fn build<'a>(row: &impl NamedRow<'a, $backend>) -> deserialize::Result<Self> {
                let field = Row::get(row, 0).ok_or("the row has no column")?;
                <String as FromSql<Text, $backend>>::from_nullable_sql(field.value()).map(Self)
            }
        }

        #[cfg(feature = $feature)]
        impl FenceConnection for Fence<'_, $connection> {
            fn database(&self) -> Database {
                Database::$database
            }

            fn query<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
                Box::pin(async move {
                    let answers = bound!(statement, $backend).load::<Answer>(self.0).await;
                    let texts = |answers: Vec<Answer>| answers.into_iter().map(|answer| answer.0).collect();
                    answers
                        .map(texts)
                        .map_err(|error| failed(Database::$database, error))
                })
            }

            fn execute<'a>(
                &'a mut self,
                statement: &'a FenceStatement,
            ) -> StoreFuture<'a, Result<u64, DriverError>> {
                Box::pin(async move {
                    let written = bound!(statement, $backend).execute(self.0).await;
                    written
                        .map(|written| written as u64)
                        .map_err(|error| failed(Database::$database, error))
                })
            }
        }
    };
}

/// The query with its parameters.
macro_rules! bound {
    ($statement:expr, $backend:ty) => {{
        let query = diesel::sql_query($statement.sql()).into_boxed::<$backend>();
        let parameters = $statement.parameters().into_iter();
        parameters.fold(query, |query, value| query.bind::<Text, _>(value.to_owned()))
    }};
}

fence_connection!(
    "postgres",
    Postgres,
    diesel::pg::Pg,
    diesel_async::AsyncPgConnection
);
fence_connection!(
    "mysql",
    MySql,
    diesel::mysql::Mysql,
    diesel_async::AsyncMysqlConnection
);
