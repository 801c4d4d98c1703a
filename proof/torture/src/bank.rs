//! A bank of accounts in the database under test, where two owners of a lock would lose an update.
//!
//! A transfer reads both balances, computes, and writes the sums and two lines in the ledger in one
//! transaction with the fence check. Nothing but the locks keeps two transfers apart.

use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dblock::store::Store;
use dblock::{CurrentLock, LockManager, Run, StoreSource, open};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{
    Acquire as _, AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, MySqlPool, PgPool,
    SqlitePool,
};

use crate::counter::{self, Counter};
use crate::history::{AccountEnd, Count};
use crate::once::{Steps, Work};
use crate::payment::{Failure, Payment};
use crate::worker::{InTransaction, Plan, Worker, key_names};

/// Accounts are numbered from 0.
pub(crate) const ACCOUNTS: i32 = 4;

const OPENED_WITH: i64 = 1_000_000;

/// The connections of a process for its own statements.
const CONNECTIONS: u32 = 4;

/// The server ends a transaction that has idled for so long. The connection of one that a black hole swallowed stays open
/// on both sides, and the lock that ends with it stays busy.
const IDLES_FOR: Duration = Duration::from_secs(12);

/// The bank's database.
#[derive(Debug, Clone)]
pub(crate) enum Bank {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Runs the same code on any of the pools.
macro_rules! on {
    ($bank:expr, |$pool:ident| $code:expr) => {
        match $bank {
            Bank::Postgres($pool) => $code,
            Bank::MySql($pool) => $code,
            Bank::Sqlite($pool) => $code,
        }
    };
}

/// Money from one account to another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) id: i64,
    pub(crate) from: i32,
    pub(crate) to: i32,
    pub(crate) amount: i64,
}

/// A statement with numbers only, which is the same for all three databases.
fn sql(text: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(text)
}

impl Bank {
    /// A bank at a URL. Connects when it needs to, and waits for `timeout` at most.
    pub(crate) fn at(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        Ok(match scheme {
            "postgres" => Self::Postgres(
                PgPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(timeout)
                    .connect_lazy_with(
                        PgConnectOptions::from_str(url)?
                            .options([("idle_in_transaction_session_timeout", IDLES_FOR.as_millis())]),
                    ),
            ),
            "mysql" => Self::MySql(
                MySqlPoolOptions::new()
                    .max_connections(CONNECTIONS)
                    .acquire_timeout(timeout)
                    .after_connect(|connection, _| {
                        Box::pin(async move {
                            // MySQL has no such limit.
                            let limit = format!(
                                "SET /*M! SESSION idle_transaction_timeout = {}, */ @bank = 1",
                                IDLES_FOR.as_secs()
                            );
                            connection.execute(sql(limit)).await.map(drop)
                        })
                    })
                    .connect_lazy(url)?,
            ),
            "sqlite" => {
                let file = SqliteConnectOptions::from_str(url)?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(timeout);
                Self::Sqlite(
                    SqlitePoolOptions::new()
                        .max_connections(CONNECTIONS)
                        .acquire_timeout(timeout)
                        .connect_lazy_with(file),
                )
            }
            other => bail!("no bank for {other:?}"),
        })
    }

    /// For a manager over the same database.
    pub(crate) fn source(&self) -> StoreSource {
        on!(self, |pool| pool.into())
    }

    /// The store in the same database.
    pub(crate) fn store(&self) -> anyhow::Result<Arc<dyn Store>> {
        const TABLE: &str = "distributed_lock";
        Ok(match self {
            Self::Postgres(pool) => open::postgres::open((*pool.connect_options()).clone(), TABLE)?,
            Self::MySql(pool) => open::mysql::open((*pool.connect_options()).clone(), TABLE)?,
            Self::Sqlite(pool) => open::sqlite::open((*pool.connect_options()).clone(), TABLE)?,
        })
    }

    /// Opens the accounts.
    pub(crate) async fn open(&self) -> anyhow::Result<()> {
        let accounts: Vec<String> = (0..ACCOUNTS)
            .map(|account| format!("({account}, {OPENED_WITH})"))
            .collect();
        for statement in [
            "CREATE TABLE torture_account (id INT PRIMARY KEY, balance BIGINT NOT NULL)".to_owned(),
            "CREATE TABLE torture_ledger (transfer BIGINT NOT NULL, account INT NOT NULL, amount BIGINT NOT NULL, \
             PRIMARY KEY (transfer, account))"
                .to_owned(),
            "CREATE TABLE torture_once (run BIGINT NOT NULL, attempt INT NOT NULL)".to_owned(),
            format!("INSERT INTO torture_account VALUES {}", accounts.join(", ")),
        ]
        .into_iter()
        .chain(counter::tables(&key_names()))
        {
            on!(self, |pool| sqlx::raw_sql(sql(statement)).execute(pool).await.map(drop))?;
        }
        Ok(())
    }

    /// Makes a transfer under these locks, which it checks in the same transaction. A transfer that fails may
    /// have been committed.
    pub(crate) async fn transfer(&self, transfer: Transfer, locks: &[&CurrentLock]) -> anyhow::Result<()> {
        let Transfer { id, from, to, amount } = transfer;
        on!(self, |pool| {
            let mut borrowed = Borrowed::from(pool.acquire().await?);
            let connection = borrowed.connection();
            let mut sums = Vec::new();
            for (account, amount) in [(from, -amount), (to, amount)] {
                let read = sql(format!(
                    "SELECT balance FROM torture_account WHERE id = {account}"
                ));
                let balance: i64 = sqlx::query_scalar(read)
                    .persistent(false)
                    .fetch_one(&mut **connection)
                    .await?;
                sums.push((account, amount, balance + amount));
            }
            let mut tx = connection.begin().await?;
            for lock in locks {
                lock.verify_in(&mut tx).await?;
            }
            for (account, amount, sum) in sums {
                let write = format!("UPDATE torture_account SET balance = {sum} WHERE id = {account}");
                sqlx::raw_sql(sql(write)).execute(&mut *tx).await?;
                let book = format!("INSERT INTO torture_ledger VALUES ({id}, {account}, {amount})");
                sqlx::raw_sql(sql(book)).execute(&mut *tx).await?;
            }
            tx.commit().await?;
            borrowed.is_clean = true;
            Ok(())
        })
    }

    /// Makes a transfer whose lock ends with its transaction: the caller's (`own`), or the library's.
    pub(crate) async fn pay(
        &self,
        locks: &LockManager,
        payment: &Payment<'_>,
        own: bool,
    ) -> Result<(), Failure> {
        on!(self, |pool| payment.make(locks, pool, own).await)
    }

    /// Makes a call whose lock ends with its transaction.
    pub(crate) async fn in_transaction(
        &self,
        worker: &Arc<Worker>,
        call: u64,
        plan: &Plan,
    ) -> Result<(), Failure> {
        on!(self, |pool| {
            let call = InTransaction {
                worker,
                pool,
                call,
                plan,
            };
            call.make().await
        })
    }

    /// Counts in a transaction of its own that checks the lock. One that fails may have been committed.
    pub(crate) async fn count(&self, counter: &Counter<'_>, lock: &CurrentLock) -> anyhow::Result<()> {
        on!(self, |pool| {
            let mut borrowed = Borrowed::from(pool.acquire().await?);
            let mut tx = borrowed.connection().begin().await?;
            lock.verify_in(&mut tx).await?;
            let number = counter.read(&mut tx).await?;
            counter.write(number + 1, lock.fence_token(), &mut tx).await?;
            tx.commit().await?;
            borrowed.is_clean = true;
            Ok(())
        })
    }

    /// Ends a session of the server, over a connection of its own.
    pub(crate) async fn end_session(&self, session: i64) -> sqlx::Result<()> {
        match self {
            Self::Postgres(pool) => {
                let mut admin = pool.connect_options().connect().await?;
                let end = sql(format!("SELECT pg_terminate_backend({session})"));
                sqlx::raw_sql(end).execute(&mut admin).await?;
                admin.close().await
            }
            Self::MySql(pool) => {
                let mut admin = pool.connect_options().connect().await?;
                sqlx::raw_sql(sql(format!("KILL CONNECTION {session}")))
                    .execute(&mut admin)
                    .await?;
                admin.close().await
            }
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// The counters at the end.
    pub(crate) async fn counts(&self) -> anyhow::Result<Vec<Count>> {
        on!(self, |pool| {
            let numbers: Vec<(String, i64)> =
                sqlx::query_as("SELECT lock_key, number FROM torture_counter ORDER BY lock_key")
                    .fetch_all(pool)
                    .await
                    .context("reading the counters")?;
            let lines: Vec<(String, i64, i64, i64)> =
                sqlx::query_as("SELECT lock_key, number, token, id FROM torture_count ORDER BY number")
                    .fetch_all(pool)
                    .await
                    .context("reading what was counted")?;
            let of = |key: &str| {
                let lines = lines.iter().filter(|line| line.0 == key);
                lines.map(|line| (line.1, line.2, line.3)).collect()
            };
            let count = |(key, number): (String, i64)| Count {
                lines: of(&key),
                key,
                number,
            };
            Ok(numbers.into_iter().map(count).collect())
        })
    }

    /// The body of a run.
    pub(crate) async fn work_once(&self, work: &Work, run: &Run, steps: &Steps<'_>) -> Result<u32, Failure> {
        on!(self, |pool| work.attempt(pool, run, steps).await)
    }

    /// The run and the attempt of every row of work.
    pub(crate) async fn done_once(&self) -> anyhow::Result<Vec<(i64, i32)>> {
        on!(self, |pool| sqlx::query_as(
            "SELECT run, attempt FROM torture_once"
        )
        .fetch_all(pool)
        .await
        .context("reading what was done once"))
    }

    /// Whether a transaction that writes keeps all others from writing.
    pub(crate) fn has_one_writer(&self) -> bool {
        matches!(self, Self::Sqlite(_))
    }

    /// Closes the connections.
    pub(crate) async fn leave(&self) {
        on!(self, |pool| pool.close().await);
    }

    /// Keeps every connection of the pool for so long.
    pub(crate) async fn exhaust(&self, length: Duration) {
        on!(self, |pool| {
            let all = (0..CONNECTIONS).map(|_| async {
                let mut borrowed = Borrowed::from(pool.acquire().await?);
                borrowed.is_clean = true;
                tokio::time::sleep(length).await;
                drop(borrowed);
                Ok::<_, sqlx::Error>(())
            });
            futures_util::future::join_all(all).await;
        });
    }

    /// All accounts, and the transfer of every line of the ledger.
    pub(crate) async fn close(&self) -> anyhow::Result<(Vec<AccountEnd>, Vec<i64>)> {
        on!(self, |pool| {
            let balances: Vec<(i32, i64)> =
                sqlx::query_as("SELECT id, balance FROM torture_account ORDER BY id")
                    .fetch_all(pool)
                    .await
                    .context("reading the accounts")?;
            let ledger: Vec<(i64, i32, i64)> =
                sqlx::query_as("SELECT transfer, account, amount FROM torture_ledger")
                    .fetch_all(pool)
                    .await
                    .context("reading the ledger")?;
            let accounts = balances.iter().map(|&(account, balance)| AccountEnd {
                account,
                opened_with: OPENED_WITH,
                balance,
                ledger: ledger
                    .iter()
                    .filter(|line| line.1 == account)
                    .map(|line| line.2)
                    .sum(),
            });
            Ok((accounts.collect(), ledger.iter().map(|line| line.0).collect()))
        })
    }
}

/// A connection of a pool. Closed unless all went well: a future that was dropped in the middle of a statement
/// leaves it in an unknown state.
struct Borrowed<D: sqlx::Database> {
    connection: Option<sqlx::pool::PoolConnection<D>>,
    is_clean: bool,
}

impl<D: sqlx::Database> From<sqlx::pool::PoolConnection<D>> for Borrowed<D> {
    fn from(connection: sqlx::pool::PoolConnection<D>) -> Self {
        Self {
            connection: Some(connection),
            is_clean: false,
        }
    }
}

impl<D: sqlx::Database> Borrowed<D> {
    fn connection(&mut self) -> &mut sqlx::pool::PoolConnection<D> {
        self.connection.as_mut().expect("it is there until it is dropped")
    }
}

impl<D: sqlx::Database> Drop for Borrowed<D> {
    fn drop(&mut self) {
        if let Some(mut connection) = self.connection.take().filter(|_| !self.is_clean) {
            connection.close_on_drop();
        }
    }
}
