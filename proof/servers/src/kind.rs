//! The kinds of server, and the purposes for which they run.

use std::env;

use crate::packages;

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
    /// A Redis server and its replica, watched by three Sentinels.
    RedisSentinel,
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
    /// The server's own defaults, and Redis with each write on the disk before it is answered, as its
    /// defaults are not. The torture starts its server itself.
    Torture,
    /// The same, but what is answered may not be on the disk yet, to see that the torture finds what a power failure takes.
    Forgetful,
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
                Kind::RedisSentinel,
                Kind::ZooKeeper,
                Kind::Etcd,
            ],
            Self::Benches => &[
                Kind::Postgres,
                Kind::MySql,
                Kind::Redis,
                Kind::ZooKeeper,
                Kind::Etcd,
            ],
            Self::Torture | Self::Forgetful => &[],
        }
    }

    /// The servers that are wanted of us, and those that the environment gives.
    pub fn wanted(self) -> (Vec<Kind>, Vec<Kind>) {
        let given = |kind: &Kind| env::var_os(kind.variable()).is_some_and(|url| !url.is_empty());
        self.kinds().iter().copied().partition(|kind| !given(kind))
    }

    /// How many connections a server takes, where its default is not enough: tests run side by side, and each
    /// opens connections of its own. The torture uses them up on purpose.
    pub(crate) fn connections(self) -> Option<u32> {
        matches!(self, Self::Tests | Self::Benches).then_some(400)
    }

    /// The alternatives to installing.
    pub fn otherwise(self) -> String {
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
            Self::RedisSentinel => "DBLOCK_TEST_REDIS_SENTINEL_URL",
            Self::Etcd => "DBLOCK_TEST_ETCD_URL",
        }
    }

    /// Debian's package.
    pub(crate) fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::MySql => "mariadb-server",
            Self::Redis | Self::RedisCluster | Self::RedisSentinel => "redis-server",
            Self::ZooKeeper => "zookeeper",
            Self::Etcd => "etcd-server",
        }
    }

    pub(crate) fn can_be_left_out(self) -> bool {
        packages::may_be_left_out(self.package())
    }
}
