//! One account that many processes update, and the log that each of them writes. For `processes` and its
//! worker.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use dblock::{CurrentLock, LockManager, StoreSource};
use rustix::time::{ClockId, clock_gettime};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};

/// The lease of the workers: what the death of a holder costs. Longer than machines stall: behind a stall as long as
/// the lease, a body that was already asked to stop writes its last words next to its successor's.
pub const TTL: Duration = Duration::from_secs(5);

/// How many connections a process has for its own statements.
const CONNECTIONS: u32 = 2;

/// The account's database, which keeps the locks as well.
#[derive(Debug, Clone)]
pub enum Account {
    /// PostgreSQL.
    Postgres(PgPool),
    /// MySQL or MariaDB.
    MySql(MySqlPool),
    /// A SQLite file.
    Sqlite(SqlitePool),
}

/// Runs the same code on whichever pool it is.
macro_rules! on {
    ($account:expr, |$pool:ident| $code:expr) => {
        match $account {
            Account::Postgres($pool) => $code,
            Account::MySql($pool) => $code,
            Account::Sqlite($pool) => $code,
        }
    };
}

/// A statement of ours. It holds numbers only, so it is the same for all three databases. Each is another
/// text, so it is not to be prepared: on MariaDB writes took 40 to 90 ms each once the driver's statement
/// cache was full, and the test saw a fifth of the entries.
fn sql(text: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(text)
}

impl Account {
    /// Connects to `postgres://…`, `mysql://…` or `sqlite://…`.
    ///
    /// # Errors
    /// When that fails.
    pub async fn connect(url: &str) -> anyhow::Result<Self> {
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
        Ok(match scheme {
            "postgres" | "postgresql" => {
                let options = PgPoolOptions::new().max_connections(CONNECTIONS);
                Self::Postgres(options.connect(url).await?)
            }
            "mysql" | "mariadb" => {
                let options = MySqlPoolOptions::new().max_connections(CONNECTIONS);
                Self::MySql(options.connect(url).await?)
            }
            "sqlite" => {
                let file = SqliteConnectOptions::from_str(url)?
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .busy_timeout(Duration::from_secs(20));
                let options = SqlitePoolOptions::new().max_connections(CONNECTIONS);
                Self::Sqlite(options.connect_with(file).await?)
            }
            other => bail!("no store for {other:?}"),
        })
    }

    /// A lock manager on the same database.
    ///
    /// # Errors
    /// When it cannot be built.
    pub async fn lock_manager(&self) -> anyhow::Result<LockManager> {
        let source: StoreSource = on!(self, |pool| pool.into());
        let manager = LockManager::builder(source).auto_migrate(true).build();
        manager.await.context("the lock manager")
    }

    /// Creates the account with nothing on it, and the book of its updates.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn create(&self) -> anyhow::Result<()> {
        for statement in [
            "CREATE TABLE hot_account (id INT PRIMARY KEY, balance BIGINT NOT NULL)",
            "CREATE TABLE hot_update (amount BIGINT NOT NULL, fence_token BIGINT NOT NULL)",
            "INSERT INTO hot_account VALUES (1, 0)",
        ] {
            on!(self, |pool| sqlx::raw_sql(statement)
                .execute(pool)
                .await
                .map(drop))?;
        }
        Ok(())
    }

    /// Adds to the balance: reads it, computes, and writes the sum and a line in the book in one
    /// transaction. Nothing but the lock keeps two of these apart, so that an update would be lost if it
    /// did not.
    ///
    /// # Errors
    /// When the lock is lost or the database refuses.
    pub async fn add(&self, amount: i64, lock: &CurrentLock) -> anyhow::Result<()> {
        on!(self, |pool| {
            let balance: i64 = sqlx::query_scalar("SELECT balance FROM hot_account")
                .fetch_one(pool)
                .await
                .context("reading the balance")?;
            tokio::task::yield_now().await;
            let sum = balance + amount;
            let token = lock.fence_token();
            let mut tx = pool.begin().await.context("beginning")?;
            lock.verify_in(&mut tx).await?;
            sqlx::raw_sql(sql(format!("UPDATE hot_account SET balance = {sum}")))
                .execute(&mut *tx)
                .await
                .context("writing the balance")?;
            sqlx::raw_sql(sql(format!("INSERT INTO hot_update VALUES ({amount}, {token})")))
                .execute(&mut *tx)
                .await
                .context("writing the book")?;
            tx.commit().await.context("committing")
        })
    }

    /// The balance, and the sum and number of the updates that were committed.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn totals(&self) -> anyhow::Result<(i64, i64, i64)> {
        on!(self, |pool| {
            let balance = sqlx::query_scalar("SELECT balance FROM hot_account")
                .fetch_one(pool)
                .await?;
            // Summed up here, because the types of SUM differ between the databases.
            let amounts: Vec<i64> = sqlx::query_scalar("SELECT amount FROM hot_update")
                .fetch_all(pool)
                .await?;
            Ok((balance, amounts.iter().sum(), i64::try_from(amounts.len())?))
        })
    }
}

/// Nanoseconds on a clock that all processes of this host share and that nobody can set.
pub fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// A line of a worker's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A body begins under this token, after this long a wait.
    Enter {
        /// On the shared clock.
        at_ns: i64,
        /// The token of the lease.
        fence_token: i64,
        /// From the call to the body.
        waited_us: i64,
    },
    /// The body with this token has ended or was dropped.
    Leave {
        /// On the shared clock.
        at_ns: i64,
        /// The token of the lease.
        fence_token: i64,
    },
    /// A call failed in a way that leaves the worker going.
    Fault(String),
}

/// The log of one process. A line that was written stays, however the process ends.
#[derive(Debug)]
pub struct Log(File);

impl Log {
    /// Opens the file at its end.
    ///
    /// # Errors
    /// When that fails.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.map(Self)
            .with_context(|| format!("cannot open {}", path.display()))
    }

    /// Writes a line at once.
    ///
    /// # Panics
    /// When the file cannot be written: the test is worth nothing then.
    pub fn write(&self, event: &Event) {
        let line = match event {
            Event::Enter {
                at_ns,
                fence_token,
                waited_us,
            } => format!("enter {at_ns} {fence_token} {waited_us}\n"),
            Event::Leave { at_ns, fence_token } => format!("leave {at_ns} {fence_token}\n"),
            Event::Fault(text) => format!("fault {}\n", text.replace('\n', " ")),
        };
        (&self.0)
            .write_all(line.as_bytes())
            .expect("the log can be written");
    }

    /// Reads a whole log. A process that died before its first line has none.
    ///
    /// # Errors
    /// When a line cannot be read.
    pub fn read(path: &Path) -> anyhow::Result<Vec<Event>> {
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        text.lines()
            .map(|line| Event::parse(line).with_context(|| format!("a log has the line {line:?}")))
            .collect()
    }
}

impl Event {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let (kind, rest) = line.split_once(' ').context("one word")?;
        if kind == "fault" {
            return Ok(Self::Fault(rest.to_owned()));
        }
        let numbers: Vec<i64> = rest.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        match (kind, numbers[..].as_ref()) {
            ("enter", &[at_ns, fence_token, waited_us]) => Ok(Self::Enter {
                at_ns,
                fence_token,
                waited_us,
            }),
            ("leave", &[at_ns, fence_token]) => Ok(Self::Leave { at_ns, fence_token }),
            _ => bail!("not an event"),
        }
    }
}
