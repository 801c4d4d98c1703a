//! The suite for drivers: the transactions of the checks, and the checks of statements.

mod locks;

use std::future::Future;

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};

pub use self::locks::*;
use crate::Fixture;

/// Transactions of a driver, on the database of a store.
///
/// ```
/// use std::sync::Arc;
/// use dblock::fence::FenceConnection;
/// use dblock::store::Store;
/// use dblock_conformance::{End, FenceFixture, Fixture};
/// # mod some_driver {
/// #     pub struct Pool;
/// #     pub struct Transaction;
/// #     impl Pool { pub async fn begin(&self) -> Transaction { Transaction } }
/// #     impl Transaction {
/// #         pub async fn commit(self) {}
/// #         pub async fn rollback(self) {}
/// #     }
/// # }
/// # struct Fence<'t>(&'t mut some_driver::Transaction);
/// # impl FenceConnection for Fence<'_> {
/// #     fn database(&self) -> dblock::fence::Database { dblock::fence::Database::Postgres }
/// #     fn query<'a>(&'a mut self, _: &'a dblock::fence::FenceStatement)
/// #         -> dblock::store::StoreFuture<'a, Result<Vec<String>, dblock::fence::DriverError>> { todo!() }
/// #     fn execute<'a>(&'a mut self, _: &'a dblock::fence::FenceStatement)
/// #         -> dblock::store::StoreFuture<'a, Result<u64, dblock::fence::DriverError>> { todo!() }
/// # }
///
/// struct Place {
///     store: Arc<dyn Store>,
///     pool: some_driver::Pool,
/// }
///
/// impl Fixture for Place {
///     async fn store(&self) -> Arc<dyn Store> {
///         Arc::clone(&self.store) // better: a new one each time, in a table of its own
///     }
/// }
///
/// impl FenceFixture for Place {
///     async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
///         let mut transaction = self.pool.begin().await;
///         match body(&mut Fence(&mut transaction)).await {
///             End::Commit => transaction.commit().await,
///             End::Rollback => transaction.rollback().await,
///         }
///     }
/// }
/// ```
pub trait FenceFixture: Fixture {
    /// Begins a transaction with the database's defaults, passes it to `body`, and ends it as `body` says.
    /// Two of them may be open at once.
    fn transaction(
        &self,
        body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End,
    ) -> impl Future<Output = ()>;
}

/// How a transaction of a check ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By `COMMIT`.
    Commit,
    /// By `ROLLBACK`, also after an error of a statement.
    Rollback,
}

/// Makes one `#[tokio::test]` for each check of a driver.
///
/// The expression is evaluated anew in each test, inside an `async fn`, and gives an `Option` of a
/// [`FenceFixture`]; on `None` the test does nothing. The fixture leaves out what the database lacks:
/// savepoints that end a lock and the like. The caller's crate needs tokio with `macros` and
/// `rt-multi-thread`.
#[macro_export]
macro_rules! fence_conformance {
    ($fixture:expr) => {
        $crate::store_conformance!(@tests $fixture =>
            a_statement_answers_what_the_database_says,
            a_statement_runs_once_in_the_transaction,
            a_statement_that_fails_is_an_error_with_the_databases_code,

            a_checked_lock_keeps_its_row_until_the_transaction_ends,
            a_release_in_a_transaction_takes_effect_with_the_commit,
            a_release_that_is_rolled_back_has_not_been,
            a_call_ends_with_its_transaction,
            a_transaction_does_not_see_a_lease_that_is_gone,
            a_transaction_that_is_older_than_the_lock_is_retryable,
            a_deadlock_is_retryable,
            a_release_below_a_savepoint_is_refused,
            a_write_under_a_lease_waits_for_no_transaction,
        );
    };
}

/// Texts that a driver might misread, and more than nine, so that placeholders have two digits.
const TEXTS: [&str; 12] = [
    "",
    " ",
    "1",
    "null",
    "tést 日本 🔒",
    "'; DROP TABLE x; -- ",
    "\"double\" `back`",
    "back\\slash",
    "$1 ?",
    "line\nbreak",
    "0x00",
    "last",
];

/// Text parameters reach the database unchanged, and all rows come back; an empty answer is not an error.
pub async fn a_statement_answers_what_the_database_says(fixture: &impl FenceFixture) {
    let body = async |transaction: &mut dyn FenceConnection| {
        let cast = |place: usize| match transaction.database() {
            Database::Postgres => format!("${place}::pg_catalog.text"),
            Database::MySql => format!("CAST(${place} AS CHAR)"),
            _ => format!("${place}"),
        };
        let rows: Vec<_> = (1..=TEXTS.len())
            .map(|place| format!("SELECT {}", cast(place)))
            .collect();
        let none = format!("SELECT {} FROM (SELECT 1) one WHERE 1 = 0", cast(1));
        let mut answer = query(transaction, &rows.join(" UNION ALL "), &TEXTS).await;
        answer.sort();
        let mut expected = TEXTS;
        expected.sort_unstable();
        assert_eq!(
            answer, expected,
            "the driver does not give back the rows that the database answers with"
        );
        let answer = query(transaction, &none, &TEXTS[..1]).await;
        assert_eq!(answer, [""; 0], "the driver makes rows of its own");
        End::Commit
    };
    fixture.transaction(body).await;
}

/// A temporary table shows whether the statements run in one session, how often, and what they wrote.
pub async fn a_statement_runs_once_in_the_transaction(fixture: &impl FenceFixture) {
    const ELSEWHERE: &str =
        "a statement does not see what the one before it did: they run in different sessions";
    let body = async |transaction: &mut dyn FenceConnection| {
        let database = transaction.database();
        let (text, drop) = match database {
            Database::MySql => ("CHAR(9)", "DROP TEMPORARY TABLE"),
            _ => ("text", "DROP TABLE"),
        };
        let create = format!("CREATE TEMPORARY TABLE dblock_fence (word {text})");
        execute(transaction, &create, &[])
            .await
            .expect("a table of the session's own");
        let insert = "INSERT INTO dblock_fence VALUES ($1), ($2)";
        let written = execute(transaction, insert, &["a", "b"]).await.expect(ELSEWHERE);
        assert_eq!(
            written, 2,
            "the driver does not say how many rows a statement wrote"
        );
        let count = match database {
            Database::MySql => "SELECT CAST(count(*) AS CHAR) FROM dblock_fence",
            _ => "SELECT CAST(count(*) AS text) FROM dblock_fence",
        };
        let rows = query(transaction, count, &[]).await;
        assert_eq!(
            rows,
            ["2"],
            "the driver did not run a statement once, in the transaction"
        );
        let delete = "DELETE FROM dblock_fence WHERE word = $1";
        let written = execute(transaction, delete, &["c"]).await.expect(ELSEWHERE);
        assert_eq!(
            written, 0,
            "the driver counts rows that a statement did not write"
        );
        let drop = format!("{drop} dblock_fence");
        execute(transaction, &drop, &[]).await.expect(ELSEWHERE);
        End::Commit
    };
    fixture.transaction(body).await;
}

/// Without the code nobody can tell which errors can be tried again.
pub async fn a_statement_that_fails_is_an_error_with_the_databases_code(fixture: &impl FenceFixture) {
    for by_query in [true, false] {
        let body = async |transaction: &mut dyn FenceConnection| {
            let code = match transaction.database() {
                Database::Postgres => "42P01",
                Database::MySql => "1146",
                _ => "1",
            };
            let statement = |sql| FenceStatement::new(transaction.database(), sql, []);
            let failed = if by_query {
                let statement = statement("SELECT 'x' FROM dblock_no_such_table");
                transaction.query(&statement).await.map(drop)
            } else {
                let statement = statement("DELETE FROM dblock_no_such_table");
                transaction.execute(&statement).await.map(drop)
            };
            let error = failed.expect_err("the driver swallows an error of the database");
            assert!(
                error.is_answer(),
                "the database has answered, but the driver reports a broken connection: {error}"
            );
            assert_eq!(
                error.code(),
                Some(code),
                "the driver does not tell the database's own code: {error}"
            );
            End::Rollback
        };
        fixture.transaction(body).await;
    }
}

async fn query(transaction: &mut dyn FenceConnection, sql: &str, values: &[&str]) -> Vec<String> {
    let statement = statement(transaction, sql, values);
    let answer = transaction.query(&statement).await;
    answer.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn execute(
    transaction: &mut dyn FenceConnection,
    sql: &str,
    values: &[&str],
) -> Result<u64, DriverError> {
    let statement = statement(transaction, sql, values);
    transaction.execute(&statement).await
}

fn statement(transaction: &dyn FenceConnection, sql: &str, values: &[&str]) -> FenceStatement {
    let values: Vec<_> = values.iter().map(|value| (*value).to_owned()).collect();
    FenceStatement::new(transaction.database(), sql, values)
}
