//! A counter for each key, in the database under test. A transaction of the key's owner reads it, writes one more,
//! and adds a line with the new number and the fence token.
//!
//! Nothing but the lock keeps two such transactions apart: two owners at once, or one that works on an old snapshot,
//! write the same number. The numbers are the order of the commits, so the tokens must grow with them.

use sqlx::{AssertSqlSafe, Database, Executor, FromRow, IntoArguments, Transaction};

/// The counter of a key, for one transaction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counter<'a> {
    pub(crate) key: &'a str,
    /// Distinguishes the lines of all processes.
    pub(crate) id: i64,
}

/// The statements that make the counters.
pub(crate) fn tables(keys: &[String]) -> [String; 3] {
    let rows: Vec<String> = keys.iter().map(|key| format!("('{key}', 0)")).collect();
    [
        "CREATE TABLE torture_counter (lock_key VARCHAR(40) PRIMARY KEY, number BIGINT NOT NULL)".to_owned(),
        "CREATE TABLE torture_count (lock_key VARCHAR(40) NOT NULL, number BIGINT NOT NULL, token BIGINT NOT NULL, \
         id BIGINT NOT NULL)"
            .to_owned(),
        format!("INSERT INTO torture_counter VALUES {}", rows.join(", ")),
    ]
}

impl Counter<'_> {
    /// Locks nothing.
    pub(crate) async fn read<DB>(&self, tx: &mut Transaction<'_, DB>) -> sqlx::Result<i64>
    where
        DB: Database,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        (i64,): for<'r> FromRow<'r, DB::Row>,
        DB::Arguments: IntoArguments<DB>,
    {
        let read = format!(
            "SELECT number FROM torture_counter WHERE lock_key = '{}'",
            self.key
        );
        let read = sqlx::query_scalar(AssertSqlSafe(read));
        read.fetch_one(&mut **tx).await
    }

    pub(crate) async fn write<DB>(
        &self,
        number: i64,
        token: i64,
        tx: &mut Transaction<'_, DB>,
    ) -> sqlx::Result<()>
    where
        DB: Database,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        DB::Arguments: IntoArguments<DB>,
    {
        let Self { key, id } = self;
        for write in [
            format!("UPDATE torture_counter SET number = {number} WHERE lock_key = '{key}'"),
            format!("INSERT INTO torture_count VALUES ('{key}', {number}, {token}, {id})"),
        ] {
            sqlx::raw_sql(AssertSqlSafe(write)).execute(&mut **tx).await?;
        }
        Ok(())
    }
}
