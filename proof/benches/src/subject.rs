//! The locks that are measured, each behind the same two calls.

mod advisory;
mod async_redis;
mod commit_notify;
mod dblock;
mod distributed_mysql;
mod distributed_postgres;
#[cfg(feature = "etcd")]
mod etcd_recipe;
mod floor;
mod guarded;
mod once;
mod plan;
mod pool;
mod redlock;
mod unit;
mod zookeeper_recipe;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ::dblock::LockOptions;
use anyhow::Context as _;

use crate::recorder;
use crate::servers::{Place, Servers};

pub(crate) use dblock::{MILLION_TABLE, manager, table_of};
pub(crate) use plan::{POOL, TIMEOUT, TTL, Use};

const ETCD_RECIPE: &str = "etcd's own calls `Lock` and `Unlock` over one connection; a lease for each task, made once and kept for all its pairs";

/// The future of one step. Boxed for every subject alike.
pub(crate) type Step<'a> = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send + 'a>>;

/// A lock library, connected to its server.
pub(crate) trait Subject: Send + Sync {
    /// The means of one task for one key.
    fn client(&self, key: &str) -> Box<dyn Client>;

    /// Closes the connections and waits until they are closed. By default it does nothing: they close with
    /// their last clone.
    fn close(&self) -> Step<'_> {
        Box::pin(async { Ok(()) })
    }
}

/// One task's lock on one key.
pub(crate) trait Client: Send {
    /// Takes the lock, however long it takes.
    fn lock(&mut self) -> Step<'_>;

    /// Gives it back, and returns when the server has confirmed that.
    fn unlock(&mut self) -> Step<'_>;
}

/// Every subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, clap::ValueEnum)]
pub(crate) enum Kind {
    DblockPostgres,
    DblockMysql,
    DblockSqlite,
    DblockRedis,
    DblockZookeeper,
    DblockEtcd,
    /// On a lock table without other rows.
    DblockEmpty,
    /// On one with a million idle rows.
    DblockMillion,
    /// On the memory store.
    DblockMemory,
    /// With a recorder of metrics.
    DblockRecorded,
    DblockMemoryRecorded,
    /// In a process that cannot listen, as behind a pooler.
    DblockDeaf,
    /// Two keys together.
    DblockTwo,
    /// Shared.
    DblockShared,
    /// Shared by at most eight.
    DblockLimit8,
    /// INSERT and DELETE of one row, each through a pool.
    FloorPostgres,
    FloorMysql,
    FloorSqlite,
    /// The same on one connection that is kept.
    BarePostgres,
    BareMysql,
    BareSqlite,
    /// Upsert and UPDATE of one row, each through a pool.
    UpsertPostgres,
    UpsertMysql,
    UpsertSqlite,
    /// One commit and one notification from process to process.
    CommitNotify,
    /// sqlx's `PgAdvisoryLock`.
    Advisory,
    /// `pg_advisory_lock_shared`.
    AdvisoryShared,
    /// distributed-lock-postgres.
    Dlpg,
    /// The same with its call that does not wait.
    DlpgTry,
    /// distributed-lock-mysql.
    Dlmy,
    Rslock,
    AsyncRedisLock,
    /// Numbered ephemeral nodes.
    ZookeeperRecipe,
    /// etcd's own lock.
    EtcdRecipe,
    /// A unit of work, by a lock that ends with its transaction.
    UnitTransaction,
    /// The same with a body that takes so long.
    UnitTransaction1ms,
    UnitTransaction100ms,
    UnitTransactionMinute,
    /// By a lock around a transaction.
    UnitLock,
    /// By a row that was made for the lock.
    UnitForUpdate,
    /// By an advisory lock of the transaction's.
    UnitXactLock,
    UnitTransactionMysql,
    UnitTransaction1msMysql,
    UnitTransaction100msMysql,
    UnitTransactionMinuteMysql,
    UnitLockMysql,
    UnitForUpdateMysql,
    /// A run that is remembered, of a new key.
    OnceRun,
    /// A lock of a new key.
    OnceLock,
    /// A run that has succeeded before.
    OnceReplay,
    /// A read of its record.
    OnceRead,
}

impl Kind {
    /// The name in tables and JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DblockPostgres => "dblock-postgres",
            Self::DblockMysql => "dblock-mysql",
            Self::DblockSqlite => "dblock-sqlite",
            Self::DblockRedis => "dblock-redis",
            Self::DblockZookeeper => "dblock-zookeeper",
            Self::DblockEtcd => "dblock-etcd",
            Self::DblockEmpty => "dblock-empty-table",
            Self::DblockMillion => "dblock-million-rows",
            Self::DblockMemory => "dblock-memory",
            Self::DblockRecorded => "dblock-recorded",
            Self::DblockMemoryRecorded => "dblock-memory-recorded",
            Self::DblockDeaf => "dblock-postgres-deaf",
            Self::DblockTwo => "dblock-two-keys",
            Self::DblockShared => "dblock-shared",
            Self::DblockLimit8 => "dblock-limit-8",
            Self::FloorPostgres => "floor-postgres",
            Self::FloorMysql => "floor-mysql",
            Self::FloorSqlite => "floor-sqlite",
            Self::BarePostgres => "bare-postgres",
            Self::BareMysql => "bare-mysql",
            Self::BareSqlite => "bare-sqlite",
            Self::UpsertPostgres => "upsert-postgres",
            Self::UpsertMysql => "upsert-mysql",
            Self::UpsertSqlite => "upsert-sqlite",
            Self::CommitNotify => "commit-and-notify",
            Self::Advisory => "sqlx-advisory",
            Self::AdvisoryShared => "advisory-shared",
            Self::Dlpg => "distributed-lock-postgres",
            Self::DlpgTry => "distributed-lock-pg (try)",
            Self::Dlmy => "distributed-lock-mysql",
            Self::Rslock => "rslock",
            Self::AsyncRedisLock => "async-redis-lock",
            Self::ZookeeperRecipe => "zookeeper-recipe",
            Self::EtcdRecipe => "etcd-recipe",
            Self::UnitTransaction => "unit-dblock-transaction",
            Self::UnitTransaction1ms => "unit-1ms",
            Self::UnitTransaction100ms => "unit-100ms",
            Self::UnitTransactionMinute => "unit-minute",
            Self::UnitLock => "unit-dblock-lock",
            Self::UnitForUpdate => "unit-for-update",
            Self::UnitXactLock => "unit-xact-lock",
            Self::UnitTransactionMysql => "unit-dblock-transaction-mysql",
            Self::UnitTransaction1msMysql => "unit-1ms-mysql",
            Self::UnitTransaction100msMysql => "unit-100ms-mysql",
            Self::UnitTransactionMinuteMysql => "unit-minute-mysql",
            Self::UnitLockMysql => "unit-dblock-lock-mysql",
            Self::UnitForUpdateMysql => "unit-for-update-mysql",
            Self::OnceRun => "once-dblock-run",
            Self::OnceLock => "once-dblock-lock",
            Self::OnceReplay => "once-dblock-replay",
            Self::OnceRead => "once-read",
        }
    }

    /// Whether it is dblock.
    pub(crate) fn is_ours(self) -> bool {
        self.name().starts_with("dblock")
    }

    /// Whether the size of its pool is ours to choose, so that the best has to be found.
    pub(crate) fn has_pool(self) -> bool {
        matches!(self, Self::Dlpg | Self::DlpgTry | Self::Dlmy)
    }

    /// Where it keeps its locks.
    pub(crate) fn place(self) -> Place {
        match self {
            Self::DblockPostgres
            | Self::DblockEmpty
            | Self::DblockMillion
            | Self::DblockRecorded
            | Self::DblockDeaf
            | Self::DblockTwo
            | Self::DblockShared
            | Self::DblockLimit8
            | Self::CommitNotify
            | Self::FloorPostgres
            | Self::BarePostgres
            | Self::UpsertPostgres
            | Self::Advisory
            | Self::AdvisoryShared
            | Self::Dlpg
            | Self::DlpgTry
            | Self::UnitTransaction
            | Self::UnitTransaction1ms
            | Self::UnitTransaction100ms
            | Self::UnitTransactionMinute
            | Self::UnitLock
            | Self::UnitForUpdate
            | Self::UnitXactLock
            | Self::OnceRun
            | Self::OnceLock
            | Self::OnceReplay
            | Self::OnceRead => Place::Postgres,
            Self::DblockMysql
            | Self::FloorMysql
            | Self::BareMysql
            | Self::UpsertMysql
            | Self::Dlmy
            | Self::UnitTransactionMysql
            | Self::UnitTransaction1msMysql
            | Self::UnitTransaction100msMysql
            | Self::UnitTransactionMinuteMysql
            | Self::UnitLockMysql
            | Self::UnitForUpdateMysql => Place::MySql,
            Self::DblockSqlite | Self::FloorSqlite | Self::BareSqlite | Self::UpsertSqlite => Place::Sqlite,
            Self::DblockRedis | Self::Rslock | Self::AsyncRedisLock => Place::Redis,
            Self::DblockZookeeper | Self::ZookeeperRecipe => Place::ZooKeeper,
            Self::DblockEtcd | Self::EtcdRecipe => Place::Etcd,
            Self::DblockMemory | Self::DblockMemoryRecorded => Place::Memory,
        }
    }

    /// Where a lock is when its caller has it: what a crash of the server leaves of it.
    pub(crate) fn kept(self) -> &'static str {
        match self {
            Self::Advisory
            | Self::AdvisoryShared
            | Self::Dlpg
            | Self::DlpgTry
            | Self::Dlmy
            | Self::UnitForUpdate
            | Self::UnitForUpdateMysql
            | Self::UnitXactLock => "memory",
            _ => match self.place() {
                Place::Postgres | Place::MySql | Place::Sqlite | Place::ZooKeeper | Place::Etcd => "disk",
                Place::Redis | Place::Memory => "memory",
            },
        }
    }

    /// How it is used, for the reader of the figures.
    pub(crate) fn settings(self) -> &'static str {
        match self {
            Self::DblockPostgres
            | Self::DblockMysql
            | Self::DblockSqlite
            | Self::DblockRedis
            | Self::DblockZookeeper
            | Self::DblockEtcd
            | Self::DblockEmpty
            | Self::DblockMillion
            | Self::DblockMemory => dblock::SETTINGS,
            Self::DblockRecorded | Self::DblockMemoryRecorded => dblock::RECORDED_SETTINGS,
            Self::DblockDeaf => dblock::DEAF_SETTINGS,
            Self::DblockTwo => dblock::TWO_SETTINGS,
            Self::DblockShared => dblock::SHARED_SETTINGS,
            Self::DblockLimit8 => dblock::LIMIT_SETTINGS,
            Self::CommitNotify => commit_notify::SETTINGS,
            Self::FloorPostgres | Self::FloorMysql | Self::FloorSqlite => floor::SETTINGS,
            Self::BarePostgres | Self::BareMysql | Self::BareSqlite => floor::BARE_SETTINGS,
            Self::UpsertPostgres | Self::UpsertMysql | Self::UpsertSqlite => floor::UPSERT_SETTINGS,
            Self::Advisory => advisory::SETTINGS,
            Self::AdvisoryShared => advisory::SHARED_SETTINGS,
            Self::Dlpg => distributed_postgres::SETTINGS,
            Self::DlpgTry => distributed_postgres::TRY_SETTINGS,
            Self::Dlmy => distributed_mysql::SETTINGS,
            Self::Rslock => redlock::SETTINGS,
            Self::AsyncRedisLock => async_redis::SETTINGS,
            Self::ZookeeperRecipe => zookeeper_recipe::SETTINGS,
            Self::EtcdRecipe => ETCD_RECIPE,
            Self::UnitTransaction
            | Self::UnitTransaction1ms
            | Self::UnitTransaction100ms
            | Self::UnitTransactionMinute
            | Self::UnitTransactionMysql
            | Self::UnitTransaction1msMysql
            | Self::UnitTransaction100msMysql
            | Self::UnitTransactionMinuteMysql => unit::TRANSACTION_SETTINGS,
            Self::UnitLock | Self::UnitLockMysql => unit::LOCK_SETTINGS,
            Self::UnitForUpdate | Self::UnitForUpdateMysql => unit::FOR_UPDATE_SETTINGS,
            Self::UnitXactLock => unit::XACT_LOCK_SETTINGS,
            Self::OnceRun => once::RUN_SETTINGS,
            Self::OnceLock => once::LOCK_SETTINGS,
            Self::OnceReplay => once::REPLAY_SETTINGS,
            Self::OnceRead => once::READ_SETTINGS,
        }
    }

    /// Connects it.
    pub(crate) async fn open(self, servers: &Servers, plan: Use) -> anyhow::Result<Box<dyn Subject>> {
        let url = servers.url(self.place())?;
        self.open_at(&url, plan)
            .await
            .with_context(|| format!("cannot open {self}"))
    }

    /// Connects it to a database whose URL is known.
    pub(crate) async fn open_at(self, url: &str, plan: Use) -> anyhow::Result<Box<dyn Subject>> {
        self.switch_recorder()?;
        Ok(match self {
            Self::DblockPostgres
            | Self::DblockMysql
            | Self::DblockSqlite
            | Self::DblockRedis
            | Self::DblockZookeeper
            | Self::DblockEtcd
            | Self::DblockMemory
            | Self::DblockRecorded
            | Self::DblockMemoryRecorded => {
                Box::new(dblock::open(url, dblock::TABLE).await?) as Box<dyn Subject>
            }
            Self::DblockEmpty => Box::new(dblock::open(url, dblock::EMPTY_TABLE).await?),
            Self::DblockMillion => Box::new(dblock::open(url, MILLION_TABLE).await?),
            Self::DblockDeaf => Box::new(dblock::open_deaf(url, dblock::TABLE)?),
            Self::DblockTwo => Box::new(dblock::Two(dblock::open(url, dblock::TABLE).await?)),
            Self::DblockShared => Box::new(dblock::open_shared(url, LockOptions::shared).await?),
            Self::DblockLimit8 => Box::new(dblock::open_shared(url, |options| options.limit(8)).await?),
            Self::CommitNotify => Box::new(commit_notify::open(url).await?),
            Self::FloorPostgres | Self::UpsertPostgres | Self::BarePostgres => {
                Box::new(floor::postgres(url, self.write(), plan).await?)
            }
            Self::FloorMysql | Self::UpsertMysql | Self::BareMysql => {
                Box::new(floor::mysql(url, self.write(), plan).await?)
            }
            Self::FloorSqlite | Self::UpsertSqlite | Self::BareSqlite => {
                Box::new(floor::sqlite(url, self.write(), plan).await?)
            }
            Self::Advisory => Box::new(advisory::open(url, plan).await?),
            Self::AdvisoryShared => Box::new(advisory::Shared(advisory::open(url, plan).await?)),
            Self::Dlpg => Box::new(distributed_postgres::open(url, plan, true).await?),
            Self::DlpgTry => Box::new(distributed_postgres::open(url, plan, false).await?),
            Self::Dlmy => Box::new(distributed_mysql::open(url, plan).await?),
            Self::Rslock => Box::new(redlock::open(url, plan)),
            Self::AsyncRedisLock => Box::new(async_redis::open(url, plan).await?),
            Self::ZookeeperRecipe => Box::new(zookeeper_recipe::open(url).await?),
            #[cfg(feature = "etcd")]
            Self::EtcdRecipe => Box::new(etcd_recipe::open(url).await?),
            #[cfg(not(feature = "etcd"))]
            Self::EtcdRecipe => anyhow::bail!("this program was built without the feature `etcd`"),
            Self::UnitTransaction
            | Self::UnitTransaction1ms
            | Self::UnitTransaction100ms
            | Self::UnitTransactionMinute => {
                Box::new(unit::postgres(url, unit::Way::Transaction(self.body()), plan).await?)
            }
            Self::UnitLock => Box::new(unit::postgres(url, unit::Way::Lock, plan).await?),
            Self::UnitForUpdate => Box::new(unit::postgres(url, unit::Way::ForUpdate, plan).await?),
            Self::UnitXactLock => Box::new(unit::postgres(url, unit::Way::XactLock, plan).await?),
            Self::UnitTransactionMysql
            | Self::UnitTransaction1msMysql
            | Self::UnitTransaction100msMysql
            | Self::UnitTransactionMinuteMysql => {
                Box::new(unit::mysql(url, unit::Way::Transaction(self.body()), plan).await?)
            }
            Self::UnitLockMysql => Box::new(unit::mysql(url, unit::Way::Lock, plan).await?),
            Self::UnitForUpdateMysql => Box::new(unit::mysql(url, unit::Way::ForUpdate, plan).await?),
            Self::OnceRun => Box::new(once::open(url, once::Way::Run).await?),
            Self::OnceLock => Box::new(once::open(url, once::Way::Lock).await?),
            Self::OnceReplay => Box::new(once::open(url, once::Way::Replay).await?),
            Self::OnceRead => Box::new(once::open(url, once::Way::Read).await?),
        })
    }

    /// Switches recording on or off for what opens next.
    pub(crate) fn switch_recorder(self) -> anyhow::Result<()> {
        recorder::switch(matches!(self, Self::DblockRecorded | Self::DblockMemoryRecorded))
    }

    /// How long the body of a transaction waits after its work.
    fn body(self) -> Duration {
        match self {
            Self::UnitTransaction1ms | Self::UnitTransaction1msMysql => Duration::from_millis(1),
            Self::UnitTransaction100ms | Self::UnitTransaction100msMysql => Duration::from_millis(100),
            Self::UnitTransactionMinute | Self::UnitTransactionMinuteMysql => Duration::from_mins(1),
            _ => Duration::ZERO,
        }
    }

    /// The work of the floor subjects.
    fn write(self) -> floor::Write {
        match self {
            Self::UpsertPostgres | Self::UpsertMysql | Self::UpsertSqlite => floor::Write::UpsertUpdate,
            Self::BarePostgres | Self::BareMysql | Self::BareSqlite => floor::Write::OnOneConnection,
            _ => floor::Write::InsertDelete,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
