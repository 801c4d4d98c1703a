//! The store under test: servers of the run's own, behind proxies for each process, or a file.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use dblock::{Source as _, StoreSource};
use dblock_redis::RedisStore;
use dblock_servers::disk::Disk;
use dblock_servers::{Ensemble, Kind, Purpose, RedisSentinel, Server};
use dblock_tests::proxy::Proxy;
use dblock_zookeeper::ZookeeperStore;
use tokio::sync::Mutex;

use crate::bank::Bank;
use crate::clocks::ServerClock;
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
    /// Three ZooKeeper servers.
    Zookeeper,
    /// Three members of an etcd. Needs the feature `etcd`.
    Etcd,
}

/// What a server that is alone, or a file, has on its disk, which can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Durability {
    /// All that was answered.
    Durable,
    /// What was answered comes later: the run must find what a power failure takes.
    Forgetful,
}

impl StoreKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 6] = [
        Self::Postgres,
        Self::Mysql,
        Self::Sqlite,
        Self::Redis,
        Self::Zookeeper,
        Self::Etcd,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::RedisSentinel => "redis-sentinel",
            Self::Zookeeper => "zookeeper",
            Self::Etcd => "etcd",
        }
    }

    /// A server that is alone.
    pub(crate) fn has_one_server(self) -> bool {
        matches!(self, Self::Postgres | Self::Mysql | Self::Redis)
    }

    /// Three servers that agree on everything, of which one leads.
    pub(crate) fn is_ensemble(self) -> bool {
        matches!(self, Self::Zookeeper | Self::Etcd)
    }

    /// Its disk can fail: it is a file, or has one server.
    pub(crate) fn has_one_disk(self) -> bool {
        matches!(self, Self::Postgres | Self::Mysql | Self::Redis | Self::Sqlite)
    }

    /// It keeps more than locks: accounts, and what is to be done once.
    pub(crate) fn has_bank(self) -> bool {
        !matches!(self, Self::Redis | Self::RedisSentinel) && !self.is_ensemble()
    }
}

/// The servers and their proxies.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) store: StoreKind,
    url: String,
    /// That of a file, if it can fail. A server has its own.
    pub(crate) disk: Option<Mutex<Disk>>,
    /// `None` for a file and for several servers.
    pub(crate) server: Option<Mutex<Server>>,
    pub(crate) sentinel: Option<Mutex<RedisSentinel>>,
    pub(crate) ensemble: Option<Mutex<Ensemble>>,
    /// The server's clock, if it has one of its own.
    pub(crate) clock: Option<ServerClock>,
    /// For each slot a proxy before each server. Empty for a file, and for Sentinels, which name the servers'
    /// addresses themselves.
    pub(crate) proxies: Vec<Vec<Proxy>>,
    /// The servers behind the proxies of a slot.
    addresses: Vec<SocketAddr>,
}

impl Target {
    pub(crate) async fn start(
        store: StoreKind,
        disk: Option<Durability>,
        slots: usize,
        folder: &Path,
        clock: Option<ServerClock>,
    ) -> anyhow::Result<Self> {
        let mut target = Self {
            store,
            url: String::new(),
            disk: None,
            server: None,
            sentinel: None,
            ensemble: None,
            clock,
            proxies: Vec::new(),
            addresses: Vec::new(),
        };
        let kind = match store {
            StoreKind::Sqlite => {
                let mut folder = folder.to_owned();
                if disk.is_some() {
                    folder.push("disk");
                    std::fs::create_dir(&folder)?;
                    target.disk = Some(Mutex::new(Disk::make(&folder).await?));
                }
                target.url = format!("sqlite://{}", folder.join("torture.db").display());
                return Ok(target);
            }
            StoreKind::RedisSentinel => {
                let servers = RedisSentinel::fresh(REPLICAS, Purpose::Torture).await?;
                servers.url().clone_into(&mut target.url);
                target.sentinel = Some(Mutex::new(servers));
                return Ok(target);
            }
            StoreKind::Postgres => Kind::Postgres,
            StoreKind::Mysql => Kind::MySql,
            StoreKind::Redis => Kind::Redis,
            StoreKind::Zookeeper => Kind::ZooKeeper,
            StoreKind::Etcd => Kind::Etcd,
        };
        if store.is_ensemble() {
            let ensemble = Ensemble::fresh(kind, Purpose::Torture).await?;
            ensemble.url().clone_into(&mut target.url);
            target.addresses = addresses(&ensemble.servers)?;
            target.ensemble = Some(Mutex::new(ensemble));
        } else {
            let mut server = match disk {
                None => Server::fresh(kind, Purpose::Torture).await?,
                Some(Durability::Durable) => Server::on_disk(kind, Purpose::Torture).await?,
                Some(Durability::Forgetful) => Server::on_disk(kind, Purpose::Forgetful).await?,
            };
            if let Some(clock) = &mut target.clock {
                server.restart_with(clock.variables()).await?;
                clock.pid = server.pid();
            }
            server.url().clone_into(&mut target.url);
            target.addresses = addresses(std::slice::from_ref(&server))?;
            target.server = Some(Mutex::new(server));
        }
        for slot in 0..slots {
            let before = target.addresses.iter().copied();
            let proxies: Vec<_> = before.map(Proxy::start).collect();
            if !Settings::of_slot(slot, store, true).listens {
                // Like a pooler of sessions: everything passes but LISTEN and SUBSCRIBE.
                for proxy in &proxies {
                    proxy.refuse(Box::new(|bytes| {
                        let listens = |window: &[u8]| window == b"LISTEN " || window == b"SCRIBE\r";
                        bytes.windows(7).any(listens)
                    }));
                }
            }
            target.proxies.push(proxies);
        }
        Ok(target)
    }

    /// Copies the log of a server that is alone. The history is worth something without it.
    pub(crate) async fn copy_log(&self, to: &Path) {
        if let Some(server) = &self.server
            && let Err(error) = std::fs::copy(server.lock().await.log(), to)
        {
            eprintln!("LEFT OUT: the server's log: {error}");
        }
    }

    /// The URL past all proxies.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the process in a slot, through its proxies.
    pub(crate) fn url_of(&self, slot: usize) -> String {
        let proxies = self.proxies.get(slot).map_or(&[][..], Vec::as_slice);
        let servers = self.addresses.iter().zip(proxies);
        servers.fold(self.url.clone(), |url, (server, proxy)| {
            url.replacen(&server.to_string(), &proxy.address().to_string(), 1)
        })
    }
}

/// The source of managers at a URL, and the bank in the same database, if the store has one.
pub(crate) fn source(url: &str, timeout: Duration) -> anyhow::Result<(StoreSource, Option<Bank>)> {
    if url.starts_with("redis") {
        return Ok((RedisStore::new(url)?.into_source(), None));
    }
    if url.starts_with("zookeeper:") {
        return Ok((ZookeeperStore::new(url)?.into_source(), None));
    }
    if url.starts_with("http:") {
        return Ok((etcd(url)?, None));
    }
    let bank = Bank::at(url, timeout)?;
    Ok((bank.source(), Some(bank)))
}

#[cfg(feature = "etcd")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature it fails")]
fn etcd(url: &str) -> anyhow::Result<StoreSource> {
    Ok(dblock_etcd::EtcdStore::new(url.split(','))?.into_source())
}

#[cfg(not(feature = "etcd"))]
fn etcd(_url: &str) -> anyhow::Result<StoreSource> {
    anyhow::bail!("this program was built without the feature `etcd`, which needs `protoc`")
}

fn addresses(servers: &[Server]) -> anyhow::Result<Vec<SocketAddr>> {
    let addresses = servers.iter().map(|server| server.address().parse());
    addresses
        .collect::<Result<_, _>>()
        .context("a server has an address")
}
