//! The SQLite file of one round: accounts, withdrawals, and a log of who was where. The lock manager puts
//! its own table beside them.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use crate::ledger::{Ledger, Withdrawal};

/// `bookings` is read, incremented and written back together with the balance. So it says how many of the
/// updates are still in the balance; the others were overwritten.
///
/// The parent writes `killed`, for a worker that is surely dead. `log.seq` is given out by SQLite, which lets
/// one process write at a time: it is one order for the events of all processes, without comparing clocks.
const SCHEMA: &str = "
    CREATE TABLE account (customer TEXT PRIMARY KEY, balance INTEGER NOT NULL, bookings INTEGER NOT NULL) STRICT;
    CREATE TABLE withdrawal (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL,
        done INTEGER NOT NULL DEFAULT 0) STRICT;
    CREATE TABLE log (seq INTEGER PRIMARY KEY AUTOINCREMENT,
        event TEXT NOT NULL CHECK (event IN ('enter', 'leave', 'killed')), worker TEXT NOT NULL,
        customer TEXT NOT NULL, fence_token INTEGER, waited_us INTEGER,
        at_us INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1e6 AS INTEGER))) STRICT;";

/// Opens the file. It must be there.
///
/// WAL lets readers and one writer work side by side; writers wait for each other up to the busy time-out.
pub(crate) async fn open(file: &Path) -> anyhow::Result<SqlitePool> {
    connect(file, false).await
}

async fn connect(file: &Path, create: bool) -> anyhow::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(create)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(Duration::from_secs(15));
    let pool = SqlitePoolOptions::new().max_connections(2);
    let pool = pool.connect_with(options).await;
    pool.with_context(|| format!("cannot open {}", file.display()))
}

/// Creates the file with the opening balances and the withdrawals to book.
pub(crate) async fn create(file: &Path, ledger: &Ledger) -> anyhow::Result<SqlitePool> {
    let pool = connect(file, true).await?;
    let mut tx = dblock::begin(&pool).await?;
    sqlx::raw_sql(SCHEMA)
        .execute(&mut *tx)
        .await
        .context("cannot create the tables")?;
    for (customer, balance) in &ledger.opening {
        sqlx::query("INSERT INTO account VALUES ($1, $2, 0)")
            .bind(customer)
            .bind(balance)
            .execute(&mut *tx)
            .await?;
    }
    for Withdrawal { id, customer, cents } in &ledger.withdrawals {
        sqlx::query("INSERT INTO withdrawal (id, customer, cents) VALUES ($1, $2, $3)")
            .bind(id)
            .bind(customer)
            .bind(cents)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await.context("cannot write the input to the file")?;
    Ok(pool)
}

/// A withdrawal that nobody has booked yet, picked at random so that the processes meet each other.
pub(crate) async fn next_open(pool: &SqlitePool) -> anyhow::Result<Option<Withdrawal>> {
    let row: Option<(i64, String, i64)> =
        sqlx::query_as("SELECT id, customer, cents FROM withdrawal WHERE done = 0 ORDER BY random() LIMIT 1")
            .fetch_optional(pool)
            .await
            .context("cannot look for the next withdrawal")?;
    Ok(row.map(|(id, customer, cents)| Withdrawal { id, customer, cents }))
}

pub(crate) async fn done(pool: &SqlitePool) -> anyhow::Result<u64> {
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM withdrawal WHERE done = 1")
        .fetch_one(pool)
        .await
        .context("cannot count the withdrawals that are done")?;
    Ok(count.unsigned_abs())
}

/// Writes a line of the log. An entry says how long it waited, and its fence token if it is under a lock.
pub(crate) async fn log(
    pool: &SqlitePool,
    event: &str,
    (worker, customer): (&str, &str),
    entry: Option<(Duration, Option<i64>)>,
) -> anyhow::Result<()> {
    let waited_us = entry.map(|(waited, _)| i64::try_from(waited.as_micros()).unwrap_or(i64::MAX));
    sqlx::query(
        "INSERT INTO log (event, worker, customer, fence_token, waited_us) VALUES ($1, $2, $3, $4, $5)",
    )
    .bind(event)
    .bind(worker)
    .bind(customer)
    .bind(entry.and_then(|(_, fence_token)| fence_token))
    .bind(waited_us)
    .execute(pool)
    .await
    .context("cannot write the log")?;
    Ok(())
}

/// The account that the worker's `nth` entry was into, if it has come so far.
pub(crate) async fn entry(pool: &SqlitePool, worker: &str, nth: u32) -> anyhow::Result<Option<String>> {
    sqlx::query_scalar(
        "SELECT customer FROM log WHERE worker = $1 AND event = 'enter' ORDER BY seq LIMIT 1 OFFSET $2",
    )
    .bind(worker)
    .bind(nth - 1)
    .fetch_optional(pool)
    .await
    .context("cannot read the log")
}
