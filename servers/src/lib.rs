//! Private, throw-away database servers: on the loopback, on free ports, in a temporary folder, with
//! random passwords. They are gone when [`Servers`], or the [`Server`], is dropped.
//!
//! For benches their settings are the defaults, so commits are as durable as in production. For tests they do not
//! wait for the disk: no test cuts the power, what a killed server has committed survives in the system's memory,
//! and a disk that stalls for seconds under one commit would fail a test that has nothing to do with it.

mod account;
pub mod etcd;
mod launch;
mod mariadb;
pub mod packages;
mod pair;
pub mod pgbouncer;
mod postgres;
pub mod process;
mod programs;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod server;
mod zookeeper;

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::Context as _;
use tempfile::TempDir;

pub use self::pair::Pair;
pub use self::redis_sentinel::RedisSentinel;
pub use self::server::Server;
pub use self::zookeeper::Ensemble;

/// The kinds of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MariaDB, or MySQL.
    MySql,
    /// Redis.
    Redis,
    /// ZooKeeper.
    ZooKeeper,
    /// A Redis Cluster of three servers.
    RedisCluster,
    /// etcd, with one member.
    Etcd,
}

/// The purpose of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Nothing waits for the disk.
    Tests,
    /// Also counts what a PostgreSQL server is asked, where it can.
    Benches,
    /// The server's own defaults, and Redis with each write on the disk before it is answered, as its defaults are not. The
    /// torture starts its server itself.
    Torture,
}

impl Purpose {
    /// The servers that are started.
    pub fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Tests => &[
                Kind::Postgres,
                Kind::MySql,
                Kind::Redis,
                Kind::RedisCluster,
                Kind::ZooKeeper,
                Kind::Etcd,
            ],
            Self::Benches => &[Kind::Postgres, Kind::MySql, Kind::Redis],
            Self::Torture => &[],
        }
    }

    /// How many connections a server takes, where its default is not enough: tests run side by side, and each opens
    /// connections of its own. The torture uses them up on purpose.
    pub(crate) fn connections(self) -> Option<u32> {
        (self != Self::Torture).then_some(400)
    }

    /// The alternatives to installing.
    fn otherwise(self) -> String {
        let variables: Vec<_> = self.kinds().iter().map(|kind| kind.variable()).collect();
        if variables.is_empty() {
            return String::new();
        }
        format!("\nor give running servers in {}", variables.join(", "))
    }
}

impl Kind {
    /// The environment variable that gives the tests or benches the server's URL.
    pub fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "DBLOCK_TEST_POSTGRES_URL",
            Self::MySql => "DBLOCK_TEST_MYSQL_URL",
            Self::Redis => "DBLOCK_TEST_REDIS_URL",
            Self::ZooKeeper => "DBLOCK_TEST_ZOOKEEPER_URL",
            Self::RedisCluster => "DBLOCK_TEST_REDIS_CLUSTER_URL",
            Self::Etcd => "DBLOCK_TEST_ETCD_URL",
        }
    }

    /// Debian's package.
    fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::MySql => "mariadb-server",
            Self::Redis | Self::RedisCluster => "redis-server",
            Self::ZooKeeper => "zookeeper",
            Self::Etcd => "etcd-server",
        }
    }

    /// Not every machine can have it: ZooKeeper needs a Java. So its tests can be left out, but not in CI.
    fn can_be_left_out(self) -> bool {
        matches!(self, Self::ZooKeeper | Self::Etcd) && env::var_os("CI").is_none()
    }
}

/// The servers that tests and benches run against: ours, and those that the environment names.
#[derive(Debug)]
pub struct Servers {
    running: Vec<(Kind, Server)>,
    left_out: Vec<Kind>,
}

/// The programs of the servers that are wanted, and whether the other programs are there that tests need.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one program whether it is there"
)]
#[derive(Debug, Default)]
struct Programs {
    postgres: Option<postgres::Programs>,
    mysql: Option<mariadb::Programs>,
    pooler: bool,
    promtool: bool,
    chromium: bool,
    redis: Option<redis::Programs>,
    zookeeper: Option<zookeeper::Programs>,
    etcd: Option<etcd::Programs>,
}

impl Programs {
    fn find(wanted: &[Kind]) -> Self {
        Self {
            postgres: wanted
                .contains(&Kind::Postgres)
                .then(postgres::Programs::find)
                .flatten(),
            mysql: wanted
                .contains(&Kind::MySql)
                .then(mariadb::Programs::find)
                .flatten(),
            pooler: pgbouncer::is_installed(),
            promtool: promtool().is_some(),
            chromium: chromium().is_some(),
            redis: wanted
                .iter()
                .any(|kind| matches!(kind, Kind::Redis | Kind::RedisCluster))
                .then(redis::Programs::find)
                .flatten(),
            zookeeper: wanted
                .contains(&Kind::ZooKeeper)
                .then(zookeeper::Programs::find)
                .flatten(),
            etcd: wanted.contains(&Kind::Etcd).then(etcd::Programs::find).flatten(),
        }
    }

    /// The `wanted` ones, after installing what is missing where we may.
    async fn find_or_install(wanted: &[Kind], purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Self::find(wanted);
        let missing = programs.missing(wanted, purpose);
        if missing.is_empty() {
            return Ok(programs);
        }
        packages::install(&missing, &purpose.otherwise()).await?;
        let programs = Self::find(wanted);
        let missing = programs.missing(wanted, purpose);
        anyhow::ensure!(
            missing.is_empty(),
            "still not found after the installation: {}",
            missing.join(", ")
        );
        Ok(programs)
    }

    /// A server whose programs were found. Its files are in a temporary folder of its own.
    async fn start(&self, kind: Kind, purpose: Purpose, password: &str) -> anyhow::Result<Option<Server>> {
        let top = temporary_folder()?;
        let (redis, zookeeper, etcd) = (&self.redis, &self.zookeeper, &self.etcd);
        let server = match (kind, &self.postgres, &self.mysql, redis, zookeeper, etcd) {
            (Kind::Postgres, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::MySql, _, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::Redis, _, _, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::RedisCluster, _, _, Some(programs), ..) => {
                programs.start_cluster(password, purpose).await?
            }
            (Kind::ZooKeeper, .., Some(programs), _) => programs.start(top, purpose).await?,
            (Kind::Etcd, .., Some(programs)) => programs.start(top).await?,
            _ => return Ok(None),
        };
        Ok(Some(server))
    }

    /// The packages of what is wanted and was not found. The tests want the pooler, Prometheus's tool and a browser
    /// whichever servers the environment names.
    fn missing(&self, wanted: &[Kind], purpose: Purpose) -> Vec<&'static str> {
        let found = |kind: &&Kind| match kind {
            Kind::Postgres => self.postgres.is_some(),
            Kind::MySql => self.mysql.is_some(),
            Kind::Redis | Kind::RedisCluster => self.redis.is_some(),
            Kind::ZooKeeper => self.zookeeper.is_some(),
            Kind::Etcd => self.etcd.is_some(),
        };
        let mut packages: Vec<_> = wanted
            .iter()
            .filter(|kind| !found(kind))
            .map(|kind| kind.package())
            .chain((purpose == Purpose::Tests && !self.pooler).then_some(pgbouncer::NAME))
            .chain((purpose == Purpose::Tests && !self.promtool).then_some("prometheus"))
            .chain((purpose == Purpose::Tests && !self.chromium).then_some("chromium"))
            .collect();
        packages.dedup();
        packages
    }
}

impl Servers {
    /// Starts the `wanted` servers, after installing what is missing where we may.
    ///
    /// # Errors
    /// Something is missing that is not ours to install, or a server does not start.
    pub async fn start(wanted: &[Kind], purpose: Purpose) -> anyhow::Result<Self> {
        let (wanted, left_out) = available(wanted).await;
        let programs = Programs::find_or_install(&wanted, purpose).await?;
        let password = random_password()?;
        let start = async |kind| {
            // Two kinds have the same programs.
            if !wanted.contains(&kind) {
                return anyhow::Ok((kind, None));
            }
            let server = Box::pin(programs.start(kind, purpose, &password)).await?;
            Ok((kind, server))
        };
        let (postgres, mysql, redis, cluster, zookeeper, etcd) = tokio::try_join!(
            start(Kind::Postgres),
            start(Kind::MySql),
            start(Kind::Redis),
            start(Kind::RedisCluster),
            start(Kind::ZooKeeper),
            start(Kind::Etcd)
        )?;
        let started = [postgres, mysql, redis, cluster, zookeeper, etcd].into_iter();
        let running = started.filter_map(|(kind, server)| Some((kind, server?)));
        Ok(Self {
            running: running.collect(),
            left_out,
        })
    }

    /// Starts the servers that the environment does not name.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_missing(purpose: Purpose) -> anyhow::Result<Self> {
        let given = |kind: &Kind| env::var_os(kind.variable()).is_some_and(|url| !url.is_empty());
        let (given, wanted): (Vec<Kind>, Vec<Kind>) = purpose.kinds().iter().copied().partition(given);
        for kind in given {
            eprintln!("using the server given in {}", kind.variable());
        }
        Self::start(&wanted, purpose).await
    }

    /// The servers that were wanted and that this machine cannot have.
    pub fn left_out(&self) -> &[Kind] {
        &self.left_out
    }

    /// The servers that we run, for people.
    pub fn names(&self) -> Vec<&str> {
        self.running.iter().map(|(_, server)| server.name()).collect()
    }

    /// The variables that lead tests and benches to our servers, and their values.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.running
            .iter()
            .map(|(kind, server)| (kind.variable(), server.url()))
    }
}

/// The servers that are there or can be had, and those that are left out. Says why.
async fn available(wanted: &[Kind]) -> (Vec<Kind>, Vec<Kind>) {
    let (mut there, mut left_out) = (Vec::new(), Vec::new());
    for kind in wanted {
        let installed = if kind.can_be_left_out() {
            install(*kind).await
        } else {
            Ok(())
        };
        if let Err(error) = installed {
            eprintln!("LEFT OUT: all that needs {kind:?}: {error:#}");
            left_out.push(*kind);
        } else {
            there.push(*kind);
        }
    }
    (there, left_out)
}

/// Installs what is missing of a server's programs, where we may, for somebody who starts it himself.
///
/// # Errors
/// It is not ours to install.
pub async fn install(kind: Kind) -> anyhow::Result<()> {
    Programs::find_or_install(&[kind], Purpose::Torture)
        .await
        .map(drop)
}

/// Whether the server's programs are there.
pub fn is_installed(kind: Kind) -> bool {
    Programs::find(&[kind])
        .missing(&[kind], Purpose::Torture)
        .is_empty()
}

/// Prometheus's tool, which checks the rules of alerts.
pub fn promtool() -> Option<PathBuf> {
    programs::in_path("promtool")
}

/// The browser in which pages are tested: Chromium, or Chrome, which takes the same arguments.
pub fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    names.into_iter().find_map(programs::in_path)
}

/// Whether a process can be given a wall clock of its own.
pub fn has_faketime() -> bool {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = |folder: fs::DirEntry| folder.path().join("faketime/libfaketime.so.1");
    folders.map(library).any(|library| library.is_file())
}

/// Installs a library that is of use but not needed; says why where we may not.
pub async fn install_if_we_may(package: &str) {
    if let Err(error) = packages::install(&[package], "").await {
        eprintln!("going on without {package}: {error:#}");
    }
}

/// A folder for the files of one server.
fn temporary_folder() -> anyhow::Result<TempDir> {
    let folder = tempfile::Builder::new()
        .prefix("dblock-")
        .tempdir()
        .context("no temporary folder")?;
    // A server that runs as another user has to get through to its own folder inside.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
    Ok(folder)
}

/// 128 random bits in hexadecimal, which needs no quoting in a URL, in SQL or in a shell.
fn random_password() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_fresh_and_need_no_quoting() {
        let password = random_password().unwrap();
        assert_eq!(password.len(), 32);
        assert!(password.chars().all(|c| c.is_ascii_hexdigit()));
        assert_ne!(password, random_password().unwrap());
    }

    #[test]
    fn only_what_was_wanted_can_be_missing() {
        let none = Programs::default();
        assert_eq!(
            none.missing(Purpose::Tests.kinds(), Purpose::Tests),
            [
                "postgresql",
                "mariadb-server",
                "redis-server",
                "zookeeper",
                "etcd-server",
                "pgbouncer",
                "prometheus",
                "chromium"
            ]
        );
        assert_eq!(
            none.missing(Purpose::Benches.kinds(), Purpose::Benches),
            ["postgresql", "mariadb-server", "redis-server"]
        );
        assert_eq!(none.missing(&[Kind::MySql], Purpose::Torture), ["mariadb-server"]);
        let tools = Programs {
            pooler: true,
            promtool: true,
            chromium: true,
            ..none
        };
        assert!(tools.missing(&[], Purpose::Tests).is_empty());
    }
}
