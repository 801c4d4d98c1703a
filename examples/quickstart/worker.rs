//! The work of each process: it books withdrawals until none is open.
//!
//! [`Teller::book`] is a plain read-compute-write. Run by several processes at once it loses updates.
//! [`Teller::book_under_lock`] is the same under the attribute.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dblock::{LockManager, distributed_lock};
use sqlx::SqlitePool;

use crate::bank;
use crate::ledger::Withdrawal;
use crate::process::end_with_the_parent;
use crate::round::Mode;

/// The hidden first argument that makes this program a worker.
const WORKER: &str = "--worker";

/// The worker's arguments, from the parent.
#[derive(Debug, Clone)]
pub(crate) struct Order {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) file: PathBuf,
    /// Think for ever at the n-th booking, so that the parent surely kills it while it holds a lock.
    pub(crate) stall_at: Option<u32>,
}

impl Order {
    pub(crate) fn to_arguments(&self) -> Vec<String> {
        vec![
            WORKER.into(),
            self.name.clone(),
            self.mode.file_name().into(),
            self.file.display().to_string(),
            self.stall_at.unwrap_or(0).to_string(),
        ]
    }

    /// `None` when this program is not called as a worker.
    pub(crate) fn from_arguments(arguments: &[String]) -> Option<anyhow::Result<Self>> {
        let (_, rest) = arguments.split_first().filter(|(first, _)| *first == WORKER)?;
        let order = || {
            let [name, mode, file, stall_at] = rest else {
                anyhow::bail!("{WORKER} takes 4 arguments and is for the quickstart's own use");
            };
            Ok(Self {
                name: name.clone(),
                mode: Mode::from_file_name(mode)?,
                file: file.into(),
                stall_at: Some(stall_at.parse()?).filter(|n| *n > 0),
            })
        };
        Some(order())
    }
}

/// The whole life of a worker process.
pub(crate) async fn run(order: Order) -> anyhow::Result<()> {
    end_with_the_parent();
    let pool = bank::open(&order.file).await?;
    let locks = LockManager::connect(&format!("sqlite://{}", order.file.display()))
        .await
        .context("cannot start the lock manager")?;
    let mut teller = Teller {
        order,
        pool,
        locks,
        bookings: 0,
    };
    while let Some(withdrawal) = bank::next_open(&teller.pool).await? {
        teller.bookings += 1;
        let asked = Instant::now();
        match teller.order.mode {
            Mode::WithoutLock => teller.book(&withdrawal, asked).await,
            Mode::WithLock => teller.book_under_lock(&withdrawal, asked).await,
        }
        .with_context(|| {
            format!(
                "{} could not book withdrawal {}",
                teller.order.name, withdrawal.id
            )
        })?;
    }
    teller.locks.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

struct Teller {
    order: Order,
    pool: SqlitePool,
    locks: LockManager,
    bookings: u32,
}

impl Teller {
    /// One process at a time is inside an account. A lock whose process died is free after the ttl.
    #[distributed_lock(key = "account:{withdrawal.customer}", ttl = "6s", wait = "20s", manager = self.locks)]
    async fn book_under_lock(&self, withdrawal: &Withdrawal, asked: Instant) -> anyhow::Result<()> {
        self.book(withdrawal, asked).await
    }

    /// Reads the balance, thinks, and writes the balance back.
    async fn book(&self, withdrawal: &Withdrawal, asked: Instant) -> anyhow::Result<()> {
        let who_and_where = (self.order.name.as_str(), withdrawal.customer.as_str());
        let fence_token = dblock::current().map(|lock| lock.fence_token());
        let entry = Some((asked.elapsed(), fence_token));
        bank::log(&self.pool, "enter", who_and_where, entry).await?;

        let (balance, bookings): (i64, i64) =
            sqlx::query_as("SELECT balance, bookings FROM account WHERE customer = $1")
                .bind(&withdrawal.customer)
                .fetch_one(&self.pool)
                .await
                .context("cannot read the balance")?;
        let balance = self.think(balance - withdrawal.cents).await;
        self.write(withdrawal, balance, bookings + 1).await?;

        bank::log(&self.pool, "leave", who_and_where, None).await
    }

    /// Claims the withdrawal, writes the account and marks the withdrawal done, or does none of that: one
    /// transaction. It is short, because on SQLite it keeps every other writer out of the file.
    async fn write(&self, withdrawal: &Withdrawal, balance: i64, bookings: i64) -> anyhow::Result<()> {
        let mut tx = dblock::begin(&self.pool)
            .await
            .context("cannot begin a transaction")?;
        if let Some(lock) = dblock::current() {
            // From here to the commit nobody can take the lock over.
            lock.verify_in(&mut tx).await?;
        }
        let claimed = sqlx::query("UPDATE withdrawal SET done = 1 WHERE id = $1 AND done = 0")
            .bind(withdrawal.id)
            .execute(&mut *tx)
            .await
            .context("cannot claim the withdrawal")?;
        if claimed.rows_affected() == 0 {
            // Somebody else has booked it since we looked.
            return tx.rollback().await.context("cannot roll back");
        }
        sqlx::query("UPDATE account SET balance = $1, bookings = $2 WHERE customer = $3")
            .bind(balance)
            .bind(bookings)
            .bind(&withdrawal.customer)
            .execute(&mut *tx)
            .await
            .context("cannot write the balance")?;
        tx.commit().await.context("cannot commit the booking")
    }

    /// Takes time between reading and writing, like the question to a fraud check.
    async fn think(&self, balance: i64) -> i64 {
        if self.order.stall_at == Some(self.bookings) {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(5..20))).await;
        balance
    }
}
