//! Building a manager: its table, its namespace and other settings.

use std::time::Duration;

use crate::LockError;
use crate::engine::{Settings, purge};
use crate::manager::LockManager;
use crate::store::source::{self, IDLE_LIMIT, StoreSource};
use crate::store::table::{DEFAULT_TABLE, TableName};

/// Settings of a [`LockManager`]. From [`LockManager::builder`] or [`LockManager::builder_for_url`].
///
/// ```
/// use dblock::LockManager;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// // Such as postgres://app@db/app, where `auto_migrate` creates the tables.
/// let url = "memory:";
/// let locks = LockManager::builder_for_url(url)?
///     .namespace("billing")
///     .auto_migrate(true)
///     .build()
///     .await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// assert_eq!(guard.key(), "order:42");
/// assert_eq!(guard.full_key(), "billing:order:42");
/// # guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "nothing happens until `build` is awaited"]
pub struct LockManagerBuilder {
    source: StoreSource,
    namespace: Option<String>,
    table: String,
    auto_migrate: bool,
    idle_limit: Option<Duration>,
    any_server: bool,
    engine: Settings,
}

impl LockManagerBuilder {
    pub(crate) fn new(source: StoreSource) -> Self {
        let auto_migrate = source.makes_tables;
        Self {
            source,
            namespace: None,
            table: DEFAULT_TABLE.into(),
            auto_migrate,
            idle_limit: Some(IDLE_LIMIT),
            any_server: false,
            engine: Settings {
                hand_over: true,
                purge_after: Some(purge::DEFAULT_IDLE),
            },
        }
    }

    /// Puts `namespace:` before every key, so that services can share a table. Not empty, at most 100 bytes,
    /// without `:` and NUL. Default: none.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The name of the lock table: `table` or `schema.table`, with ASCII letters, digits and `_`. The version
    /// table has the same name followed by `_version`, and the table of records the same followed by
    /// `_record`. Default: `distributed_lock`. The memory store and a store of your own have no table.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// Whether [`build`](Self::build) creates or upgrades the tables. Default: only for a SQLite URL.
    pub fn auto_migrate(mut self, auto_migrate: bool) -> Self {
        self.auto_migrate = auto_migrate;
        self
    }

    /// Whether a lock may be handed over from one task of this process to the next without the database
    /// (local hand-over). Default: yes.
    ///
    /// The lock is handed over only after a normal return, and only to a waiter with `renew = true`. It is
    /// never handed over after `verify_in` or with `hold_min`, and only while at least two thirds of the
    /// waiter's ttl are confirmed. The new owner has its own, larger fence token. The row names the new owner
    /// within about 50 ms, and always before a fence check. While another process waits for the lock, local
    /// hand-overs go on for 10 ms where the store sends wake-ups (PostgreSQL), and for 100 ms elsewhere. Then
    /// the lock goes to the other process.
    ///
    /// Switch it off if the row must name every owner before its body starts. This concerns only tasks of
    /// this manager: between processes a release passes the row on to the waiting process in any case.
    pub fn hand_over(mut self, hand_over: bool) -> Self {
        self.engine.hand_over = hand_over;
        self
    }

    /// Whether to accept a server that speaks MySQL's protocol but is known not to lock rows, such as `TiDB`,
    /// which accepts `SKIP LOCKED` and ignores it. **Two processes may then hold one lock.** Default: no,
    /// such a server is an error.
    pub fn trust_any_server(mut self, trust: bool) -> Self {
        self.any_server = trust;
        self
    }

    /// Minimum idle time before a row is purged in the background; `None` keeps all rows. At least a day.
    /// Default: 7 days.
    ///
    /// A row is idle when nobody has held the lock or waited for it for this long, and all of its fence
    /// tokens are older than the database's clock by this time. The first token of a key without a row is the
    /// database's clock. It is larger than all earlier tokens of the key unless the clock was set back by
    /// more than the idle time, so choose a time longer than any error of the clock. A purge has no other
    /// visible effect.
    ///
    /// The first pass starts at a random moment of the manager's first hour, later ones after about a 24th of
    /// the idle time. A pass reads 500 rows at a time, at most ten times a second, and waits for operators'
    /// calls that are running. It covers the whole table, whatever the namespace. On the servers it needs the
    /// right to `DELETE`; without it a warning is logged and the rows stay. [`Admin::purge`](crate::Admin::purge) does a
    /// pass at once.
    pub fn purge_after(mut self, idle: impl Into<Option<Duration>>) -> Self {
        self.engine.purge_after = idle.into();
        self
    }

    /// How long a transaction may idle after `verify_in` before PostgreSQL ends it together with its session;
    /// `None` for as long as the server allows. At least a millisecond. Default: a minute.
    ///
    /// Idle means that the server waits for the next statement of the transaction. Until the transaction
    /// ends, nobody else can take the key. Without a limit, a host that vanishes inside a transaction would
    /// keep the key busy until the server's TCP notices, which takes hours by default. A lower limit of your
    /// own stays in force. The limit ends with the transaction. A transaction that was ended fails at its
    /// next statement or commit.
    ///
    /// MySQL has no such limit for a transaction: there `wait_timeout` and, on MariaDB,
    /// `idle_transaction_timeout` of your own sessions decide. A SQLite file is freed when the process is
    /// gone.
    pub fn transaction_idle_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.idle_limit = limit.into();
        self
    }

    /// Starts the manager and checks that the database has a table that fits this version.
    ///
    /// # Errors
    /// As [`build_lazy`](Self::build_lazy), and [`LockError::Store`] when the database cannot be reached, refuses, or
    /// has no table that fits this version (the message has the remedy).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, except that a migration may still be carried out.
    pub async fn build(self) -> Result<LockManager, LockError> {
        let migrates = self.auto_migrate;
        let locks = self.build_lazy()?;
        let ready = if migrates {
            locks.admin().migrate().await
        } else {
            locks.check_schema().await
        };
        if let Err(error) = ready {
            // A process that ends now leaves no open connection: SQLite would leave files beside its own.
            locks.shutdown(Duration::ZERO).await;
            return Err(error);
        }
        Ok(locks)
    }

    /// Starts the manager without asking the database anything. It is for programs that must start while the
    /// database is down, or that call [`Admin::migrate`](crate::Admin::migrate) themselves: `auto_migrate` counts for
    /// [`build`](Self::build) only. A missing table is then an error of the first acquire.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad setting.
    pub fn build_lazy(self) -> Result<LockManager, LockError> {
        let table = self.check()?;
        LockManager::start(
            self.source.open(source::Settings {
                table,
                idle_limit: self.idle_limit,
                any_server: self.any_server,
            })?,
            self.table,
            self.namespace,
            self.engine,
        )
    }

    /// Refuses settings that cannot work, before anything is sent.
    pub(crate) fn check(&self) -> Result<TableName, LockError> {
        if let Some(namespace) = &self.namespace {
            dblock_core::check_namespace(namespace)?;
        }
        if let Some(idle) = self.engine.purge_after {
            purge::check(idle)?;
        }
        if self
            .idle_limit
            .is_some_and(|limit| limit < Duration::from_millis(1))
        {
            return Err(LockError::invalid(
                "`transaction_idle_limit` must be at least a millisecond; `None` sets no limit",
            ));
        }
        TableName::parse(&self.table).map_err(LockError::invalid)
    }
}
