//! Building a manager: which store, which table, which namespace.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Settings, purge};
use crate::error::LockError;
use crate::key;
use crate::manager::LockManager;
use crate::store::Store;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::store::connect_options::OptionsSource;
use crate::store::memory::MemoryStore;
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
/// let guard = locks.acquire("order:42", dblock::LockOptions::new()).await?;
/// assert_eq!(guard.key(), "billing:order:42");
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

/// Longer than a transaction should idle between two statements.
const IDLE_LIMIT: Duration = Duration::from_mins(1);

impl LockManagerBuilder {
    pub(crate) fn new(source: StoreSource) -> Self {
        let auto_migrate = source.is_sqlite_url;
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
    /// without `:`. Default: none.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// The name of the lock table: `table` or `schema.table`. The version table has the same name followed by
    /// `_version`. Default: `distributed_lock`. The memory store and a store of your own have no table.
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// Whether [`build`](Self::build) creates or upgrades the tables. Default: only for a SQLite URL.
    pub fn auto_migrate(mut self, auto_migrate: bool) -> Self {
        self.auto_migrate = auto_migrate;
        self
    }

    /// Whether a lock may be handed over from one task of this process to the next without the database (local
    /// hand-over). Default: yes.
    ///
    /// The lock is handed over only after a normal return, and only to a waiter with `renew = true`. It is never handed
    /// over after `verify_in` or with `hold_min`, and only while at least two thirds of the waiter's ttl are confirmed.
    /// The new owner has its own, larger fence token. The row names the new owner within about 50 ms, and always before
    /// a fence check. While another process waits for the lock, local hand-overs go on for 10 ms where the store sends
    /// wake-ups (PostgreSQL), and for 100 ms elsewhere. Then the lock goes to the other process.
    ///
    /// Switch it off when the row must name every owner before its body starts. The switch is this manager's alone.
    /// Between processes nothing changes: there a release passes the row on to the waiting process, whatever the
    /// settings.
    pub fn hand_over(mut self, hand_over: bool) -> Self {
        self.engine.hand_over = hand_over;
        self
    }

    /// Whether to accept a server that speaks MySQL's protocol but is known not to lock rows, such as `TiDB`, which
    /// accepts `SKIP LOCKED` and ignores it. **Two processes may then hold one lock.** Default: no, such a server is an
    /// error.
    pub fn trust_any_server(mut self, trust: bool) -> Self {
        self.any_server = trust;
        self
    }

    /// Minimum idle time before a row is purged in the background; `None` keeps all rows. At least a day.
    /// Default: 7 days.
    ///
    /// A row is idle when nobody has held the lock or waited for it for this long, and all of its fence tokens
    /// are older than the database's clock by this time. The first token of a key without a row is the database's
    /// clock. It is larger than all earlier tokens of the key unless the clock was set back by more than the
    /// idle time, so choose a time longer than any error of the clock. A purge has no other visible effect.
    ///
    /// The first pass starts at a random moment of the manager's first hour, later ones after about a 24th of the
    /// idle time. A pass reads 500 rows at a time, at most ten times a second, and waits for operators' calls that
    /// are running. It covers the whole table, whatever the namespace. On the servers it needs the right to
    /// `DELETE`; without it a warning is logged and the rows stay. [`LockManager::purge`] does a pass at once.
    pub fn purge_after(mut self, idle: impl Into<Option<Duration>>) -> Self {
        self.engine.purge_after = idle.into();
        self
    }

    /// How long a transaction may idle after `verify_in` before PostgreSQL ends it together with its session; `None`
    /// for as long as the server allows. At least a millisecond. Default: a minute.
    ///
    /// Idle means that the server waits for the next statement of the transaction. Until the transaction ends, nobody
    /// else can take the key. Without a limit, a host that vanishes inside a transaction would keep the key busy until
    /// the server's TCP notices, which takes hours by default. A lower limit of your own stays in force. The limit ends
    /// with the transaction. A transaction that was ended fails at its next statement or commit.
    ///
    /// MySQL has no such limit for a transaction: there `wait_timeout` and, on MariaDB, `idle_transaction_timeout` of
    /// your own sessions decide. A SQLite file is freed when the process is gone.
    pub fn transaction_idle_limit(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.idle_limit = limit.into();
        self
    }

    /// Starts the manager and checks that the database has a table that fits this version.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad setting, [`LockError::Store`] when the database cannot be reached,
    /// refuses, or has no table that fits this version (the message has the remedy).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, except that a migration may still be carried out.
    pub async fn build(self) -> Result<LockManager, LockError> {
        let manager = self.auto_migrate;
        let locks = self.start()?;
        if manager {
            locks.migrate().await?;
        } else {
            locks.check_schema().await?;
        }
        Ok(locks)
    }

    /// Starts the manager without asking the database anything: for programs that must start while the
    /// database is down, or that call [`LockManager::migrate`] themselves. The first acquire then reports a
    /// missing table.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad setting.
    pub fn start(self) -> Result<LockManager, LockError> {
        if let Some(namespace) = &self.namespace {
            key::check_namespace(namespace)?;
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
        let table = TableName::parse(&self.table).map_err(LockError::invalid)?;
        LockManager::start(
            self.source.open(table, self.idle_limit, self.any_server)?,
            self.namespace,
            self.engine,
        )
    }
}

/// Where a manager keeps its locks: made from a `PgPool`, `MySqlPool` or `SqlitePool` of sqlx, a
/// [`MemoryStore`], or an `Arc<dyn Store>`.
pub struct StoreSource {
    kind: Kind,
    is_sqlite_url: bool,
}

#[allow(
    clippy::large_enum_variant,
    reason = "one lives for a moment, while a manager is built"
)]
enum Kind {
    #[cfg(feature = "postgres")]
    Postgres(OptionsSource<sqlx::postgres::PgConnectOptions>),
    #[cfg(feature = "mysql")]
    MySql(OptionsSource<sqlx::mysql::MySqlConnectOptions>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::sqlite::SqliteConnectOptions),
    Ready(Arc<dyn Store>),
}

impl StoreSource {
    /// Reads a URL. Its scheme selects the store. No message repeats the URL, because it may contain a password.
    pub(crate) fn from_url(url: &str) -> Result<Self, LockError> {
        let scheme = url
            .split_once(':')
            .map_or("", |(scheme, _)| scheme)
            .to_ascii_lowercase();
        match scheme.as_str() {
            "postgres" | "postgresql" => Self::postgres_url(url),
            "mysql" | "mariadb" => Self::mysql_url(url),
            "sqlite" => Self::sqlite_url(url),
            "memory" => Self::memory_url(url),
            // Without a scheme, the text before the first colon may be a password.
            scheme if !is_scheme(scheme) => Err(LockError::invalid(
                "the database URL has no scheme; write postgres://…, mysql://…, mariadb://…, sqlite://… or memory:",
            )),
            other => Err(LockError::invalid(format!(
                "no lock store for the URL scheme {other:?}; use postgres, mysql, mariadb, sqlite or memory"
            ))),
        }
    }

    fn memory_url(url: &str) -> Result<Self, LockError> {
        if matches!(url.split_once(':'), Some((_, "" | "//"))) {
            return Ok(MemoryStore::new().into());
        }
        Err(LockError::invalid(
            "the URL memory: takes no name, because each manager that is built from it has rows of its own; for two \
             managers over the same rows, give a clone of one `dblock::store::MemoryStore` to each \
             `LockManager::builder`",
        ))
    }

    #[cfg(feature = "postgres")]
    fn postgres_url(url: &str) -> Result<Self, LockError> {
        Ok(Kind::Postgres(OptionsSource::fixed(parsed("postgres", url)?)).into())
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres_url(_: &str) -> Result<Self, LockError> {
        Err(not_compiled_in("postgres"))
    }

    #[cfg(feature = "mysql")]
    fn mysql_url(url: &str) -> Result<Self, LockError> {
        let rest = url.split_once(':').map_or("", |(_, rest)| rest);
        Ok(Kind::MySql(OptionsSource::fixed(parsed("mysql", &format!("mysql:{rest}"))?)).into())
    }

    #[cfg(not(feature = "mysql"))]
    fn mysql_url(_: &str) -> Result<Self, LockError> {
        Err(not_compiled_in("mysql"))
    }

    #[cfg(feature = "sqlite")]
    fn sqlite_url(url: &str) -> Result<Self, LockError> {
        let mut options: sqlx::sqlite::SqliteConnectOptions = parsed("sqlite", url)?;
        if !url.contains("mode=") {
            options = options.create_if_missing(true);
        }
        Ok(Self {
            kind: Kind::Sqlite(options),
            is_sqlite_url: true,
        })
    }

    #[cfg(not(feature = "sqlite"))]
    fn sqlite_url(_: &str) -> Result<Self, LockError> {
        Err(not_compiled_in("sqlite"))
    }

    #[cfg_attr(
        not(feature = "sqlite"),
        allow(clippy::unnecessary_wraps, reason = "SQLite checks its options")
    )]
    fn open(
        self,
        table: TableName,
        idle_limit: Option<Duration>,
        any_server: bool,
    ) -> Result<Arc<dyn Store>, LockError> {
        #[cfg(not(feature = "postgres"))]
        let _ = idle_limit;
        #[cfg(not(feature = "mysql"))]
        let _ = any_server;
        Ok(match self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres(options) => Arc::new(
                crate::store::postgres::PostgresStore::new(options, table).transaction_idle_limit(idle_limit),
            ),
            #[cfg(feature = "mysql")]
            Kind::MySql(options) => {
                Arc::new(crate::store::mysql::MySqlStore::new(options, table, any_server))
            }
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(options) => {
                crate::store::sqlite::SqliteStore::check_options(&options, &table)
                    .map_err(LockError::invalid)?;
                Arc::new(crate::store::sqlite::SqliteStore::new(options, table))
            }
            Kind::Ready(store) => {
                drop(table);
                store
            }
        })
    }
}

/// Whether the text is a word such as `redis` or `http+unix`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(feature = "sql")]
fn parsed<O: std::str::FromStr<Err = sqlx::Error>>(store: &str, url: &str) -> Result<O, LockError> {
    url.parse()
        .map_err(|error| LockError::invalid(format!("the {store} URL cannot be read: {error}")))
}

#[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
fn not_compiled_in(store: &str) -> LockError {
    LockError::invalid(format!(
        "the {store} store is not compiled in; write `dblock = {{ version = \"…\", features = [\"{store}\"] }}` in Cargo.toml"
    ))
}

impl fmt::Debug for StoreSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.kind {
            #[cfg(feature = "postgres")]
            Kind::Postgres(_) => "StoreSource(postgres)",
            #[cfg(feature = "mysql")]
            Kind::MySql(_) => "StoreSource(mysql)",
            #[cfg(feature = "sqlite")]
            Kind::Sqlite(_) => "StoreSource(sqlite)",
            Kind::Ready(_) => "StoreSource(store)",
        })
    }
}

impl From<Kind> for StoreSource {
    fn from(kind: Kind) -> Self {
        Self {
            kind,
            is_sqlite_url: false,
        }
    }
}

impl From<Arc<dyn Store>> for StoreSource {
    fn from(store: Arc<dyn Store>) -> Self {
        Kind::Ready(store).into()
    }
}

impl From<MemoryStore> for StoreSource {
    fn from(store: MemoryStore) -> Self {
        Kind::Ready(Arc::new(store)).into()
    }
}

macro_rules! from_pool {
    ($feature:literal, $pool:ty, $options:expr) => {
        #[cfg(feature = $feature)]
        impl From<$pool> for StoreSource {
            fn from(pool: $pool) -> Self {
                Self::from(&pool)
            }
        }

        #[cfg(feature = $feature)]
        impl From<&$pool> for StoreSource {
            fn from(pool: &$pool) -> Self {
                let options: fn(&$pool) -> Kind = $options;
                options(pool).into()
            }
        }
    };
}

// A server's pool may be given other options later, such as a new password.
from_pool!("postgres", sqlx::PgPool, |pool| {
    let pool = pool.clone();
    Kind::Postgres(OptionsSource::of(move || pool.connect_options().as_ref().clone()))
});
from_pool!("mysql", sqlx::MySqlPool, |pool| {
    let pool = pool.clone();
    Kind::MySql(OptionsSource::of(move || pool.connect_options().as_ref().clone()))
});
from_pool!("sqlite", sqlx::SqlitePool, |pool| {
    Kind::Sqlite(pool.connect_options().as_ref().clone())
});

macro_rules! from_options {
    ($feature:literal, $name:ident, $kind:ident, $options:ty, $example:literal) => {
        #[cfg(feature = $feature)]
        impl StoreSource {
            /// Locks on a server whose password or address may change while the program runs: `options` is called
            /// each time a connection is opened. When it fails, the server counts as unreachable.
            ///
            /// A manager that is built from a pool follows `set_connect_options` of the pool, without this.
            ///
            #[doc = concat!("```no_run\nuse dblock::{LockManager, StoreSource};\n", $example, "\n```")]
            pub fn $name<F, E>(options: impl Fn() -> F + Send + Sync + 'static) -> Self
            where
                F: Future<Output = Result<$options, E>> + Send + 'static,
                E: Into<Box<dyn std::error::Error + Send + Sync>>,
            {
                Kind::$kind(OptionsSource::asked(options)).into()
            }
        }
    };
}

from_options!(
    "postgres",
    postgres,
    Postgres,
    sqlx::postgres::PgConnectOptions,
    "# async fn token() -> Result<String, std::io::Error> { unimplemented!() }
let source = StoreSource::postgres(|| async {
    let options = sqlx::postgres::PgConnectOptions::new().host(\"db\").username(\"app\");
    Ok::<_, std::io::Error>(options.password(&token().await?))
});
let builder = LockManager::builder(source);"
);
from_options!(
    "mysql",
    mysql,
    MySql,
    sqlx::mysql::MySqlConnectOptions,
    "# async fn token() -> Result<String, std::io::Error> { unimplemented!() }
let source = StoreSource::mysql(|| async {
    let options = sqlx::mysql::MySqlConnectOptions::new().host(\"db\").username(\"app\").database(\"app\");
    Ok::<_, std::io::Error>(options.password(&token().await?))
});
let builder = LockManager::builder(source);"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_url_has_no_name() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        for url in ["memory:", "memory://", "MEMORY:"] {
            assert!(StoreSource::from_url(url).is_ok(), "{url}");
        }
        for url in ["memory:foo", "memory://foo", "memory:/", "memory: "] {
            let error = StoreSource::from_url(url).unwrap_err().to_string();
            assert!(error.contains("takes no name"), "{url}: {error}");
        }
    }
}
