//! The servers of a run: a database of our own on each, and what they say that they saw.

mod counts;
mod durability;
mod text;

use std::net::SocketAddr;

use anyhow::{Context as _, bail};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, MySqlConnection, PgConnection};
use tempfile::TempDir;

/// Where locks are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Postgres,
    MySql,
    Sqlite,
    Redis,
    ZooKeeper,
    Etcd,
    Memory,
}

/// The URLs of running servers.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Urls {
    /// A PostgreSQL server, for a superuser.
    #[arg(long, env = "DBLOCK_TEST_POSTGRES_URL", hide_env_values = true)]
    pub(crate) postgres: Option<String>,
    /// A MariaDB or MySQL server, for a user that may create databases.
    #[arg(long, env = "DBLOCK_TEST_MYSQL_URL", hide_env_values = true)]
    pub(crate) mysql: Option<String>,
    /// A Redis server.
    #[arg(long, env = "DBLOCK_TEST_REDIS_URL", hide_env_values = true)]
    pub(crate) redis: Option<String>,
    /// A ZooKeeper server.
    #[arg(long, env = "DBLOCK_TEST_ZOOKEEPER_URL", hide_env_values = true)]
    pub(crate) zookeeper: Option<String>,
    /// An etcd, for a program that was built with the feature `etcd`.
    #[arg(long, env = "DBLOCK_TEST_ETCD_URL", hide_env_values = true)]
    pub(crate) etcd: Option<String>,
}

/// The servers, with a fresh database on each. The observing connections are in other databases, so that
/// everything in ours is the subject's.
pub(crate) struct Servers {
    given: Urls,
    database: String,
    postgres: Option<PgConnection>,
    mysql: Option<MySqlConnection>,
    redis: Option<redis::aio::MultiplexedConnection>,
    folder: TempDir,
}

impl Servers {
    /// Connects to the servers that are given and makes a database on each.
    pub(crate) async fn prepare(mut given: Urls) -> anyhow::Result<Self> {
        if given.etcd.is_some() && !cfg!(feature = "etcd") {
            eprintln!("LEFT OUT: all of etcd, because this program was built without the feature `etcd`");
            given.etcd = None;
        }
        let database = format!("dblock_bench_{}", std::process::id());
        let mut servers = Self {
            postgres: None,
            mysql: None,
            redis: None,
            folder: tempfile::Builder::new().prefix("dblock-bench-").tempdir()?,
            given,
            database,
        };
        if let Some(url) = &servers.given.postgres {
            let mut connection = PgConnection::connect(url)
                .await
                .context("cannot reach PostgreSQL")?;
            let create = format!("CREATE DATABASE {}", servers.database);
            sqlx::raw_sql(AssertSqlSafe(create))
                .execute(&mut connection)
                .await?;
            counts::install(&mut connection).await?;
            servers.postgres = Some(connection);
        }
        if let Some(url) = &servers.given.mysql {
            let mut connection = MySqlConnection::connect(url)
                .await
                .context("cannot reach MariaDB")?;
            let create = format!("CREATE DATABASE {}", servers.database);
            sqlx::raw_sql(AssertSqlSafe(create))
                .execute(&mut connection)
                .await?;
            servers.mysql = Some(connection);
        }
        if let Some(url) = &servers.given.redis {
            let client = redis::Client::open(url.as_str())?;
            servers.redis = Some(
                client
                    .get_multiplexed_async_connection()
                    .await
                    .context("cannot reach Redis")?,
            );
        }
        Ok(servers)
    }

    /// Whether the place can be used in this run.
    pub(crate) fn has(&self, place: Place) -> bool {
        match place {
            Place::Postgres => self.postgres.is_some(),
            Place::MySql => self.mysql.is_some(),
            Place::Redis => self.redis.is_some(),
            Place::ZooKeeper => self.given.zookeeper.is_some(),
            Place::Etcd => self.given.etcd.is_some(),
            Place::Sqlite | Place::Memory => true,
        }
    }

    /// The URL of our database there.
    pub(crate) fn url(&self, place: Place) -> anyhow::Result<String> {
        let missing = |name: &str| format!("no {name} server is given");
        Ok(match place {
            Place::Postgres => {
                let url = self
                    .given
                    .postgres
                    .as_ref()
                    .with_context(|| missing("PostgreSQL"))?;
                let options: PgConnectOptions = url.parse()?;
                options.database(&self.database).to_url_lossy().to_string()
            }
            Place::MySql => {
                let url = self.given.mysql.as_ref().with_context(|| missing("MariaDB"))?;
                let options: MySqlConnectOptions = url.parse()?;
                options.database(&self.database).to_url_lossy().to_string()
            }
            Place::Redis => self.given.redis.clone().with_context(|| missing("Redis"))?,
            Place::ZooKeeper => self.zookeeper()?.to_owned(),
            Place::Etcd => self.etcd()?.to_owned(),
            Place::Memory => "memory:".to_owned(),
            Place::Sqlite => format!("sqlite://{}?mode=rwc", self.file().display()),
        })
    }

    /// Where the PostgreSQL server listens.
    pub(crate) fn postgres_address(&self) -> anyhow::Result<(String, u16)> {
        let options: PgConnectOptions = self.url(Place::Postgres)?.parse()?;
        Ok((options.get_host().to_owned(), options.get_port()))
    }

    /// The URL of our database there, by another address.
    pub(crate) fn postgres_through(&self, address: SocketAddr) -> anyhow::Result<String> {
        let options: PgConnectOptions = self.url(Place::Postgres)?.parse()?;
        let options = options.host(&address.ip().to_string()).port(address.port());
        Ok(options.to_url_lossy().to_string())
    }

    /// The SQLite file.
    fn file(&self) -> std::path::PathBuf {
        self.folder.path().join("locks.db")
    }

    /// Drops our databases. A server that is thrown away afterwards does not need it.
    pub(crate) async fn clean_up(mut self) -> anyhow::Result<()> {
        if let Some(mut connection) = self.postgres.take() {
            let drop = format!("DROP DATABASE {} WITH (FORCE)", self.database);
            sqlx::raw_sql(AssertSqlSafe(drop))
                .execute(&mut connection)
                .await?;
        }
        if let Some(mut connection) = self.mysql.take() {
            let drop = format!("DROP DATABASE {}", self.database);
            sqlx::raw_sql(AssertSqlSafe(drop))
                .execute(&mut connection)
                .await?;
        }
        Ok(())
    }

    fn postgres(&mut self) -> anyhow::Result<&mut PgConnection> {
        self.postgres.as_mut().context("no PostgreSQL server is given")
    }

    fn mysql(&mut self) -> anyhow::Result<&mut MySqlConnection> {
        self.mysql.as_mut().context("no MariaDB server is given")
    }

    fn redis(&mut self) -> anyhow::Result<&mut redis::aio::MultiplexedConnection> {
        self.redis.as_mut().context("no Redis server is given")
    }

    fn zookeeper(&self) -> anyhow::Result<&str> {
        self.given
            .zookeeper
            .as_deref()
            .context("no ZooKeeper server is given")
    }

    fn etcd(&self) -> anyhow::Result<&str> {
        self.given.etcd.as_deref().context("no etcd is given")
    }
}

impl std::fmt::Debug for Servers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Servers")
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}

/// The number in the line `name:number` of Redis' INFO, or of ZooKeeper's answer to `srvr`.
fn info_number(info: &str, name: &str) -> anyhow::Result<u64> {
    for line in info.lines() {
        if let Some(value) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')) {
            return Ok(value.trim().parse()?);
        }
    }
    bail!("the server does not name {name}")
}
