//! The target of the torture: a server of the run's own behind a proxy for each process, or a file.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use dblock::StoreSource;
use dblock_redis::RedisStore;
use dblock_servers::{Kind, Purpose, RedisSentinel, Server};
use dblock_tests::proxy::Proxy;
use dblock_zookeeper::ZookeeperStore;
use tokio::sync::Mutex;

use crate::bank::Bank;
use crate::settings::Settings;

/// With one of two replicas down there is still one to fail over to.
const REPLICAS: usize = 2;

/// The stores that can be tortured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum StoreKind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    #[value(alias = "mariadb")]
    Mysql,
    /// A SQLite file.
    Sqlite,
    /// Redis, with each write on the disk before it is answered.
    #[value(alias = "valkey")]
    Redis,
    /// Redis with two replicas and three Sentinels, whose fail-overs may lose grants.
    RedisSentinel,
    /// A ZooKeeper server.
    Zookeeper,
}

impl StoreKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 5] = [
        Self::Postgres,
        Self::Mysql,
        Self::Sqlite,
        Self::Redis,
        Self::Zookeeper,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RedisSentinel => "redis-sentinel",
            Self::Zookeeper => "zookeeper",
        }
    }

    /// It keeps more than locks: accounts, and what is to be done once.
    pub(crate) fn has_bank(self) -> bool {
        !matches!(self, Self::Redis | Self::RedisSentinel | Self::Zookeeper)
    }
}

/// A database and the ways to it.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) store: StoreKind,
    url: String,
    /// `None` for a file.
    pub(crate) server: Option<Mutex<Server>>,
    /// In the place of `server`, where there are several.
    pub(crate) sentinel: Option<Mutex<RedisSentinel>>,
    /// One for each seat; none for a file, and none where the servers say themselves where they are.
    pub(crate) proxies: Vec<Proxy>,
}

impl Target {
    pub(crate) async fn start(store: StoreKind, seats: usize, folder: &Path) -> anyhow::Result<Self> {
        let kind = match store {
            StoreKind::Postgres => Kind::Postgres,
            StoreKind::Mysql => Kind::MySql,
            StoreKind::Redis => Kind::Redis,
            StoreKind::Zookeeper => Kind::ZooKeeper,
            StoreKind::Sqlite => {
                return Ok(Self {
                    store,
                    url: format!("sqlite://{}", folder.join("torture.db").display()),
                    server: None,
                    sentinel: None,
                    proxies: Vec::new(),
                });
            }
            StoreKind::RedisSentinel => {
                let servers = RedisSentinel::fresh(REPLICAS, Purpose::Torture).await?;
                return Ok(Self {
                    store,
                    url: servers.url().to_owned(),
                    server: None,
                    sentinel: Some(Mutex::new(servers)),
                    proxies: Vec::new(),
                });
            }
        };
        let server = Server::fresh(kind, Purpose::Torture).await?;
        let url = server.url().to_owned();
        let address = address(&url)?;
        let proxies: Vec<_> = (0..seats).map(|_| Proxy::start(address)).collect();
        for (seat, proxy) in proxies.iter().enumerate() {
            if !Settings::of_seat(seat, store, true).listens {
                // Like a pooler that lends sessions: everything goes through but this.
                proxy.refuse(Box::new(|bytes| {
                    let listens = |window: &[u8]| window == b"LISTEN " || window == b"SCRIBE\r";
                    bytes.windows(7).any(listens)
                }));
            }
        }
        Ok(Self {
            store,
            url,
            server: Some(Mutex::new(server)),
            sentinel: None,
            proxies,
        })
    }

    /// The way past all proxies.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The way of the process in a seat.
    pub(crate) fn url_of(&self, seat: usize) -> anyhow::Result<String> {
        let Some(proxy) = self.proxies.get(seat) else {
            return Ok(self.url.clone());
        };
        let (server, proxy) = (address(&self.url)?.to_string(), proxy.address().to_string());
        Ok(self.url.replacen(&server, &proxy, 1))
    }
}

/// What managers are built from at a URL, and the bank in the same database; none where it keeps nothing but locks.
pub(crate) fn source(url: &str, timeout: Duration) -> anyhow::Result<(StoreSource, Option<Bank>)> {
    if url.starts_with("redis") {
        return Ok((RedisStore::new(url)?.into(), None));
    }
    if url.starts_with("zookeeper:") {
        return Ok((ZookeeperStore::new(url)?.into(), None));
    }
    let bank = Bank::at(url, timeout)?;
    Ok((bank.source(), Some(bank)))
}

/// Host and port of a URL.
fn address(url: &str) -> anyhow::Result<SocketAddr> {
    let (_, rest) = url.split_once("://").context("the URL has a scheme")?;
    let host = rest.split('/').next().unwrap_or_default();
    let address = host.rsplit('@').next().unwrap_or_default();
    address.parse().context("the URL names an address")
}
