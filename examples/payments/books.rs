//! The service's own database: accounts and withdrawals. The lock manager puts its tables beside them.

use std::path::{Path, PathBuf};
use std::str::FromStr as _;
use std::time::Duration;

use anyhow::Context as _;
use dblock::{LockManager, Run};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, PgPool, SqlitePool};

use crate::ledger::{Ledger, Withdrawal};
use crate::service::{PayError, Receipt};
use crate::worker::{Step, Steps};

/// The number of the provider's payment says that a withdrawal is paid.
const SCHEMA: &str = "
    CREATE TABLE account (customer TEXT PRIMARY KEY, balance BIGINT NOT NULL);
    CREATE TABLE withdrawal (id BIGINT PRIMARY KEY, customer TEXT NOT NULL, cents BIGINT NOT NULL, payment BIGINT);";

/// Tells the workers the URL. On their command line everybody could read its password.
const URL: &str = "DBLOCK_PAYMENTS_URL";

/// Where the books are.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    Sqlite(PathBuf),
    Postgres { url: String, schema: String },
}

#[derive(Debug, Clone)]
pub(crate) enum Books {
    Postgres(PgPool),
    Sqlite(SqlitePool),
}

/// Runs the same code on whichever pool it is.
macro_rules! on {
    ($books:expr, |$pool:ident| $code:expr) => {
        match $books {
            Books::Postgres($pool) => $code,
            Books::Sqlite($pool) => $code,
        }
    };
}

impl Place {
    pub(crate) fn sqlite(folder: &Path) -> Self {
        Self::Sqlite(folder.join("books.db"))
    }

    pub(crate) fn postgres(url: &str, schema: &str) -> Self {
        Self::Postgres {
            url: url.to_owned(),
            schema: schema.to_owned(),
        }
    }

    /// The place that a worker was told.
    pub(crate) fn from_argument(argument: &str) -> Self {
        match std::env::var(URL) {
            Ok(url) => Self::postgres(&url, argument),
            Err(_) => Self::Sqlite(argument.into()),
        }
    }

    pub(crate) fn to_argument(&self) -> String {
        match self {
            Self::Sqlite(file) => file.display().to_string(),
            Self::Postgres { schema, .. } => schema.clone(),
        }
    }

    /// The variable that a worker must find in its environment.
    pub(crate) fn variable(&self) -> Option<(&'static str, &str)> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres { url, .. } => Some((URL, url)),
        }
    }

    pub(crate) async fn open(&self) -> anyhow::Result<Books> {
        match self {
            Self::Sqlite(file) => {
                let options = SqliteConnectOptions::new()
                    .filename(file)
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(Duration::from_secs(15));
                let pool = SqlitePoolOptions::new().max_connections(2);
                let pool = pool.connect_with(options).await;
                Ok(Books::Sqlite(
                    pool.with_context(|| format!("cannot open {}", file.display()))?,
                ))
            }
            Self::Postgres { url, schema } => {
                let options = PgConnectOptions::from_str(url).context("cannot read the URL")?;
                let options = options.options([("search_path", schema)]);
                let pool = PgPoolOptions::new()
                    .max_connections(2)
                    .connect_with(options)
                    .await;
                Ok(Books::Postgres(pool.context("cannot reach PostgreSQL")?))
            }
        }
    }

    /// Creates the books with the opening balances and the withdrawals to pay.
    pub(crate) async fn create(&self, ledger: &Ledger) -> anyhow::Result<Books> {
        if let Self::Postgres { url, schema } = self {
            administer(url, format!("CREATE SCHEMA {schema}")).await?;
        }
        let books = self.open().await?;
        books.fill(ledger).await.context("cannot write the input")?;
        books.lock_manager().await?.shutdown(Duration::from_secs(1)).await;
        Ok(books)
    }

    /// Removes what is left in a database. Files go with their folder.
    pub(crate) async fn remove(&self) -> anyhow::Result<()> {
        if let Self::Postgres { url, schema } = self {
            administer(url, format!("DROP SCHEMA IF EXISTS {schema} CASCADE")).await?;
        }
        Ok(())
    }
}

async fn administer(url: &str, sql: String) -> anyhow::Result<()> {
    let mut connection = PgConnection::connect(url)
        .await
        .context("cannot reach PostgreSQL")?;
    let what = sql.clone();
    let done = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await;
    done.with_context(|| format!("cannot {what}"))?;
    connection.close().await.context("cannot close the connection")
}

impl Books {
    /// A lock manager beside the books. It takes the pool's options and opens connections of its own.
    pub(crate) async fn lock_manager(&self) -> anyhow::Result<LockManager> {
        on!(self, |pool| LockManager::builder(pool))
            .auto_migrate(true)
            .build()
            .await
            .context("cannot start the lock manager")
    }

    async fn fill(&self, ledger: &Ledger) -> Result<(), sqlx::Error> {
        on!(self, |pool| {
            let mut tx = dblock::begin(pool).await?;
            sqlx::raw_sql(SCHEMA).execute(&mut *tx).await?;
            for (customer, balance) in &ledger.opening {
                let insert = sqlx::query("INSERT INTO account VALUES ($1, $2)");
                insert.bind(customer).bind(balance).execute(&mut *tx).await?;
            }
            for Withdrawal { id, customer, cents } in &ledger.withdrawals {
                let insert = sqlx::query("INSERT INTO withdrawal VALUES ($1, $2, $3, NULL)");
                let insert = insert.bind(id).bind(customer).bind(cents);
                insert.execute(&mut *tx).await?;
            }
            tx.commit().await
        })
    }

    /// A withdrawal that is not booked, picked at random so that the processes meet each other.
    pub(crate) async fn next_open(&self) -> Result<Option<Withdrawal>, sqlx::Error> {
        let row: Option<(i64, String, i64)> = on!(self, |pool| sqlx::query_as(
            "SELECT id, customer, cents FROM withdrawal WHERE payment IS NULL ORDER BY random() LIMIT 1"
        )
        .fetch_optional(pool)
        .await?);
        Ok(row.map(|(id, customer, cents)| Withdrawal { id, customer, cents }))
    }

    pub(crate) async fn is_paid(&self, withdrawal: &Withdrawal) -> Result<bool, sqlx::Error> {
        on!(self, |pool| sqlx::query_scalar(
            "SELECT payment IS NOT NULL FROM withdrawal WHERE id = $1"
        )
        .bind(withdrawal.id)
        .fetch_one(pool)
        .await)
    }

    /// Books a payment, unless the withdrawal is booked. With `run`, its success and the end of its lock are
    /// in the same transaction: all stand, or nothing does.
    pub(crate) async fn book(
        &self,
        withdrawal: &Withdrawal,
        receipt: Receipt,
        run: Option<&Run>,
        steps: &Steps,
    ) -> Result<(), PayError> {
        on!(self, |pool| {
            let mut tx = dblock::begin(pool).await?;
            let booked = sqlx::query("UPDATE withdrawal SET payment = $1 WHERE id = $2 AND payment IS NULL")
                .bind(receipt.payment)
                .bind(withdrawal.id)
                .execute(&mut *tx)
                .await?;
            if booked.rows_affected() == 1 {
                sqlx::query("UPDATE account SET balance = balance - $1 WHERE customer = $2")
                    .bind(withdrawal.cents)
                    .bind(&withdrawal.customer)
                    .execute(&mut *tx)
                    .await?;
            }
            if let Some(run) = run {
                run.complete_in(&mut tx, &receipt).await?;
            }
            steps.reached(Step::BeforeTheCommit).await;
            tx.commit().await?;
            steps.reached(Step::AfterTheCommit).await;
        });
        Ok(())
    }

    /// How many withdrawals are booked.
    pub(crate) async fn booked(&self) -> anyhow::Result<u64> {
        let count: i64 = on!(self, |pool| sqlx::query_scalar(
            "SELECT count(*) FROM withdrawal WHERE payment IS NOT NULL"
        )
        .fetch_one(pool)
        .await
        .context("cannot count the booked withdrawals")?);
        Ok(count.unsigned_abs())
    }

    /// Customer and balance.
    pub(crate) async fn balances(&self) -> anyhow::Result<Vec<(String, i64)>> {
        on!(self, |pool| sqlx::query_as(
            "SELECT customer, balance FROM account"
        )
        .fetch_all(pool)
        .await
        .context("cannot read the balances"))
    }

    /// Number of the withdrawal and of the payment that is booked for it.
    pub(crate) async fn payments(&self) -> anyhow::Result<Vec<(i64, Option<i64>)>> {
        on!(self, |pool| sqlx::query_as("SELECT id, payment FROM withdrawal")
            .fetch_all(pool)
            .await
            .context("cannot read the withdrawals"))
    }
}
