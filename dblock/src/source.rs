//! The place where a manager keeps its locks: a URL, a pool, a function that gives connect options, or a
//! store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::LockError;
use crate::store::Store;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::store::connect_options::OptionsSource;
use crate::store::memory::MemoryStore;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::store::sql_error::NO_TLS;
use crate::store::table::TableName;

/// The default of
/// [`LockManagerBuilder::transaction_idle_limit`](crate::LockManagerBuilder::transaction_idle_limit): longer
/// than a transaction should idle between two statements.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_mins(1);

/// The place where a manager keeps its locks: made from a `PgPool`, `MySqlPool` or `SqlitePool` of sqlx, an
/// `Arc<dyn Store>`, or, by [`into_source`](Source::into_source), a store.
pub struct StoreSource {
    kind: Kind,
    /// Whether it was made from a URL: then the file is created, and the tables with it.
    pub(crate) is_sqlite_url: bool,
}

#[allow(
    clippy::large_enum_variant,
    reason = "one lives for a moment, while a manager is built"
)]
enum Kind {
    #[cfg(feature = "postgres")]
    Postgres(Vec<OptionsSource<sqlx::postgres::PgConnectOptions>>),
    #[cfg(feature = "mysql")]
    MySql(Vec<OptionsSource<sqlx::mysql::MySqlConnectOptions>>),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::sqlite::SqliteConnectOptions),
    Ready(Arc<dyn Store>),
}

impl StoreSource {
    /// Reads a URL. Its scheme selects the store. No message repeats the URL, because it may contain a
    /// password.
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
            other if other.starts_with("redis") || other.starts_with("valkey") => Err(LockError::invalid(
                "locks in Redis or Valkey are a crate of their own: \
                 `LockManager::builder(dblock_redis::RedisStore::new(url)?)`",
            )),
            "zookeeper" => Err(LockError::invalid(
                "locks in ZooKeeper are a crate of their own: \
                 `LockManager::builder(dblock_zookeeper::ZookeeperStore::new(url)?)`",
            )),
            "etcd" => Err(LockError::invalid(
                "locks in etcd are a crate of their own: \
                 `LockManager::builder(dblock_etcd::EtcdStore::new([\"http://etcd-1:2379\"])?)`",
            )),
            other => Err(LockError::invalid(format!(
                "no lock store for the URL scheme {other:?}; use postgres, mysql, mariadb, sqlite or memory"
            ))),
        }
    }

    /// Makes the store without a manager, as a shard of a `dblock_sharded::ShardedStore`. Its settings
    /// are the defaults of [`LockManagerBuilder`](crate::LockManagerBuilder), except for the name of its
    /// `table`. It opens no connection yet.
    ///
    /// ```no_run
    /// use dblock::StoreSource;
    /// # #[cfg(feature = "postgres")]
    /// # fn open(pool: &sqlx::PgPool) -> Result<(), dblock::LockError> {
    /// let store = StoreSource::from(pool).into_store("distributed_lock")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a table name that is not allowed, and for a SQLite database in memory.
    pub fn into_store(self, table: &str) -> Result<Arc<dyn Store>, LockError> {
        let table = TableName::parse(table).map_err(LockError::invalid)?;
        self.open(table, Some(IDLE_LIMIT), false)
    }

    fn memory_url(url: &str) -> Result<Self, LockError> {
        if matches!(url.split_once(':'), Some((_, "" | "//"))) {
            return Ok(MemoryStore::new().into_source());
        }
        Err(LockError::invalid(
            "the URL memory: takes no name, because each manager that is built from it has rows of its own; for two \
             managers over the same rows, give a clone of one `dblock::store::MemoryStore` to each \
             `LockManager::builder`",
        ))
    }

    #[cfg(feature = "postgres")]
    fn postgres_url(url: &str) -> Result<Self, LockError> {
        check_tls("postgres", url, &POSTGRES_TLS)?;
        Ok(Kind::Postgres(servers("postgres", url)?).into())
    }

    #[cfg(not(feature = "postgres"))]
    fn postgres_url(_: &str) -> Result<Self, LockError> {
        Err(not_compiled_in("postgres"))
    }

    #[cfg(feature = "mysql")]
    fn mysql_url(url: &str) -> Result<Self, LockError> {
        let rest = url.split_once(':').map_or("", |(_, rest)| rest);
        check_tls("mysql", url, &MYSQL_TLS)?;
        Ok(Kind::MySql(servers("mysql", &format!("mysql:{rest}"))?).into())
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
    pub(crate) fn open(
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
            Kind::Postgres(servers) => Arc::new(
                crate::store::postgres::PostgresStore::new(servers, table).transaction_idle_limit(idle_limit),
            ),
            #[cfg(feature = "mysql")]
            Kind::MySql(servers) => {
                Arc::new(crate::store::mysql::MySqlStore::new(servers, table, any_server))
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

/// The servers of a URL: one, or several with commas between their addresses, which differ in nothing else.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn servers<O>(store: &str, url: &str) -> Result<Vec<OptionsSource<O>>, LockError>
where
    O: std::str::FromStr<Err = sqlx::Error> + Clone + Send + Sync + 'static,
{
    let (before, addresses, after) = around_addresses(url);
    if !addresses.contains(',') {
        return Ok(vec![OptionsSource::fixed(parsed(store, url)?)]);
    }
    let server = |address: &str| {
        if address.is_empty() {
            let message =
                format!("an address is missing in the {store} URL, at one of the commas between servers");
            return Err(LockError::invalid(message));
        }
        let options = parsed(store, &format!("{before}{address}{after}"))?;
        Ok(OptionsSource::fixed(options).of_server(address))
    };
    addresses.split(',').map(server).collect()
}

/// The parameters of a URL that are about TLS, as the drivers know them.
#[cfg(feature = "postgres")]
const POSTGRES_TLS: [&str; 9] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];
#[cfg(feature = "mysql")]
const MYSQL_TLS: [&str; 8] = [
    "sslmode", "ssl-mode", "sslca", "ssl-ca", "sslcert", "ssl-cert", "sslkey", "ssl-key",
];

/// The drivers ignore parameters that they do not know. Ignoring one that asks for TLS, such as a mistyped
/// `sslmode`, would send passwords in clear text.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn check_tls(store: &str, url: &str, known: &[&str]) -> Result<(), LockError> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split('#').next().unwrap_or_default();
    for parameter in query.split('&') {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let lower = name.to_ascii_lowercase();
        let is_word = lower
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if is_word && !known.contains(&name) && (lower.contains("ssl") || lower.contains("tls")) {
            return Err(LockError::invalid(format!(
                "the {store} URL has the parameter {name:?}, which is not known, so it would not be obeyed; those about TLS \
                 are {}",
                known.join(", ")
            )));
        }
        let demands = value.starts_with(['r', 'v', 'R', 'V']) && matches!(name, "sslmode" | "ssl-mode");
        if demands && cfg!(not(any(feature = "tls-rustls", feature = "tls-native-tls"))) {
            return Err(LockError::invalid(format!(
                "{name}={value} in the {store} URL {NO_TLS}"
            )));
        }
    }
    Ok(())
}

/// Splits a URL around the addresses of its servers: what is before them may contain a user and a password.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn around_addresses(url: &str) -> (&str, &str, &str) {
    let scheme = url.find("://").map_or(url.len(), |colon| colon + 3);
    let end = url[scheme..]
        .find(['/', '?', '#'])
        .map_or(url.len(), |end| scheme + end);
    let begin = url[scheme..end].rfind('@').map_or(scheme, |at| scheme + at + 1);
    (&url[..begin], &url[begin..end], &url[end..])
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

/// What [`LockManager::builder`](crate::LockManager::builder) takes: a [`Store`] by value, or anything that is
/// `Into<StoreSource>`, such as a pool. `M` only tells the two apart, and the compiler finds it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a place that keeps locks",
    label = "expected a pool or a store",
    note = "a pool of sqlx needs the database's feature of dblock: `postgres`, `mysql` or `sqlite`",
    note = "a store of your own implements `dblock::store::Store`; several managers share it as `Arc<dyn Store>`"
)]
pub trait Source<M: ?Sized> {
    /// The same as one type, for a program that chooses between several.
    fn into_source(self) -> StoreSource;
}

impl<S: Into<StoreSource>> Source<StoreSource> for S {
    fn into_source(self) -> StoreSource {
        self.into()
    }
}

impl<S: Store> Source<dyn Store> for S {
    fn into_source(self) -> StoreSource {
        Kind::Ready(Arc::new(self)).into()
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
    Kind::Postgres(vec![OptionsSource::of(move || {
        pool.connect_options().as_ref().clone()
    })])
});
from_pool!("mysql", sqlx::MySqlPool, |pool| {
    let pool = pool.clone();
    Kind::MySql(vec![OptionsSource::of(move || {
        pool.connect_options().as_ref().clone()
    })])
});
from_pool!("sqlite", sqlx::SqlitePool, |pool| {
    Kind::Sqlite(pool.connect_options().as_ref().clone())
});

macro_rules! from_options {
    ($feature:literal, $name:ident, $kind:ident, $options:ty, $example:literal) => {
        #[cfg(feature = $feature)]
        impl StoreSource {
            /// A server whose password or address may change while the program runs: `options` is called each
            /// time a connection is opened. When it fails, the server counts as unreachable.
            ///
            /// A manager that is built from a pool follows `set_connect_options` of the pool, without this.
            ///
            #[doc = concat!("```no_run\nuse dblock::{LockManager, StoreSource};\n", $example, "\n```")]
            pub fn $name<F, E>(options: impl Fn() -> F + Send + Sync + 'static) -> Self
            where
                F: Future<Output = Result<$options, E>> + Send + 'static,
                E: Into<Box<dyn std::error::Error + Send + Sync>>,
            {
                Kind::$kind(vec![OptionsSource::asked(options)]).into()
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

    #[cfg(feature = "postgres")]
    #[test]
    fn a_url_may_name_several_servers() {
        let names = |url: &str| match StoreSource::from_url(url).map(|source| source.kind) {
            Ok(Kind::Postgres(servers)) => servers.iter().map(|one| one.server().to_string()).collect(),
            Ok(_) => panic!("{url}"),
            Err(error) => vec![error.to_string()],
        };
        assert_eq!(
            names("postgres://u:a,b%40@one,two:7,[::1]:8/db?sslmode=disable"),
            ["one", "two:7", "[::1]:8"]
        );
        assert_eq!(names("postgres://one,two"), ["one", "two"]);
        // Without a second server there is nothing to name.
        for url in ["postgres://u:a,b@one/d,b", "postgres:///db?host=/run/a,b"] {
            assert_eq!(names(url), [""], "{url}");
        }
        for url in [
            "postgres://u:secret@one,/db",
            "postgres://u:secret@,one",
            "postgres://u:secret@one:x,two",
        ] {
            let said = names(url).concat();
            assert!(
                said.contains("postgres URL") && !said.contains("secret"),
                "{url}: {said}"
            );
        }
    }

    #[cfg(all(feature = "postgres", feature = "mysql"))]
    #[test]
    fn no_demand_for_tls_is_ignored() {
        let said =
            |url: &str| StoreSource::from_url(url).map_or_else(|error| error.to_string(), |_| String::new());
        for url in [
            "postgres://u:secret@h/d?sslmod=require",
            "postgres://h/d?application_name=a&SSLMODE=require",
            "postgres://h,i/d?sslcrl=x",
            "mysql://u:secret@h/d?sslrootcert=x",
            "mariadb://h/d?useTLS=true#x",
        ] {
            let said = said(url);
            assert!(
                said.contains("is not known") && !said.contains("secret"),
                "{url}: {said}"
            );
        }
        let has_tls = cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"));
        for url in [
            "postgres://h/d?sslmode=require",
            "postgres://h/d?ssl-mode=verify-full",
            "mysql://h/d?ssl-mode=REQUIRED",
        ] {
            assert_eq!(said(url).contains("`tls-rustls`"), !has_tls, "{url}");
        }
        for url in [
            "postgres://u:ssl@h/d?sslmode=prefer&connect_timeout=5",
            "postgres://h/ssl",
            "mysql://h/d?ssl-mode=PREFERRED",
        ] {
            assert_eq!(said(url), "", "{url}");
        }
    }

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
