//! The programs that are on this machine, and the packages of those that are not.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::{
    Kind, Purpose, Server, certificates, etcd, mariadb, pgbouncer, postgres, programs, redis,
    temporary_folder, zookeeper,
};

/// The programs of the servers that are wanted, and whether the other programs are there that tests need.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one program whether it is there"
)]
#[derive(Debug, Default)]
pub(crate) struct Programs {
    postgres: Option<postgres::Programs>,
    mysql: Option<mariadb::Programs>,
    pooler: bool,
    promtool: bool,
    chromium: bool,
    openssl: bool,
    redis: Option<redis::Programs>,
    zookeeper: Option<zookeeper::Programs>,
    etcd: Option<etcd::Programs>,
}

impl Programs {
    pub(crate) fn find(wanted: &[Kind]) -> Self {
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
            openssl: certificates::Certificates::can_be_made(),
            redis: wanted
                .iter()
                .any(|kind| matches!(kind, Kind::Redis | Kind::RedisCluster | Kind::RedisSentinel))
                .then(redis::Programs::find)
                .flatten(),
            zookeeper: wanted
                .contains(&Kind::ZooKeeper)
                .then(zookeeper::Programs::find)
                .flatten(),
            etcd: wanted.contains(&Kind::Etcd).then(etcd::Programs::find).flatten(),
        }
    }

    /// A server whose programs were found. Its files are in a temporary folder of its own.
    pub(crate) async fn start(
        &self,
        kind: Kind,
        purpose: Purpose,
        password: &str,
    ) -> anyhow::Result<Option<Server>> {
        self.start_in(temporary_folder()?, kind, purpose, password).await
    }

    /// The same in a folder that is there. A cluster of Redis takes several others instead.
    pub(crate) async fn start_in(
        &self,
        top: TempDir,
        kind: Kind,
        purpose: Purpose,
        password: &str,
    ) -> anyhow::Result<Option<Server>> {
        let (redis, zookeeper, etcd) = (&self.redis, &self.zookeeper, &self.etcd);
        let server = match (kind, &self.postgres, &self.mysql, redis, zookeeper, etcd) {
            (Kind::Postgres, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::MySql, _, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::Redis, _, _, Some(programs), ..) => programs.start(top, password, purpose).await?,
            (Kind::RedisCluster, _, _, Some(programs), ..) => {
                programs.start_cluster(password, purpose).await?
            }
            (Kind::RedisSentinel, _, _, Some(programs), ..) => {
                // Tests keep the machine so busy that a server may be late.
                let sentinels = programs.start_sentinel(1, password, purpose, 15_000);
                sentinels.await?.joined()
            }
            (Kind::ZooKeeper, .., Some(programs), _) => programs.start(top, purpose).await?,
            (Kind::Etcd, .., Some(programs)) => programs.start(top).await?,
            _ => return Ok(None),
        };
        Ok(Some(server))
    }

    /// The packages of what is wanted and was not found. The tests want the pooler, Prometheus's tool, a browser
    /// and openssl whichever servers the environment names.
    pub(crate) fn missing(&self, wanted: &[Kind], purpose: Purpose) -> Vec<&'static str> {
        let found = |kind: &&Kind| match kind {
            Kind::Postgres => self.postgres.is_some(),
            Kind::MySql => self.mysql.is_some(),
            Kind::Redis | Kind::RedisCluster | Kind::RedisSentinel => self.redis.is_some(),
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
            .chain((purpose == Purpose::Tests && !self.openssl).then_some(certificates::NAME))
            .collect();
        packages.dedup();
        packages
    }
}

/// Debian's packages of what is wanted and is not here. Tests also want the pooler, Prometheus's tool, a browser
/// and openssl.
pub fn missing(wanted: &[Kind], purpose: Purpose) -> Vec<&'static str> {
    Programs::find(wanted).missing(wanted, purpose)
}

/// Whether the server's programs are there.
pub fn is_installed(kind: Kind) -> bool {
    missing(&[kind], Purpose::Torture).is_empty()
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

/// libfaketime, which gives a process clocks of its own, where it is installed.
pub fn faketime() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    libraries.find(|library| library.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                "chromium",
                "openssl"
            ]
        );
        assert_eq!(
            none.missing(Purpose::Benches.kinds(), Purpose::Benches),
            [
                "postgresql",
                "mariadb-server",
                "redis-server",
                "zookeeper",
                "etcd-server"
            ]
        );
        assert_eq!(none.missing(&[Kind::MySql], Purpose::Torture), ["mariadb-server"]);
        let tools = Programs {
            pooler: true,
            promtool: true,
            chromium: true,
            openssl: true,
            ..none
        };
        assert!(tools.missing(&[], Purpose::Tests).is_empty());
    }
}
