//! Private, throw-away database servers: on the loopback, on free ports, in a temporary folder, with
//! random passwords. They are gone when [`Servers`], or the [`Server`], is dropped.
//!
//! For benches their settings are the defaults, so commits are as durable as in production. For tests they do
//! not wait for the disk: no test cuts the power, what a killed server has committed survives in the system's
//! memory, and a disk that stalls for seconds under one commit would fail a test that has nothing to do with
//! it.

mod account;
pub mod certificates;
pub mod disk;
mod ensemble;
pub mod etcd;
pub mod galera;
mod installed;
mod kind;
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
pub mod slow_disk;
pub mod zookeeper;

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

pub use self::ensemble::Ensemble;
pub use self::galera::Galera;
use self::installed::Programs;
pub use self::installed::{chromium, faketime, is_installed, missing, promtool};
pub use self::kind::{Kind, Purpose};
pub use self::pair::Pair;
pub use self::postgres::OTHER_SERVER as OTHER_POSTGRES;
pub use self::redis_sentinel::RedisSentinel;
pub use self::server::Server;

/// The servers that tests and benches run against: ours, and those that the environment names.
#[derive(Debug)]
pub struct Servers {
    running: Vec<(Kind, Server)>,
    left_out: Vec<Kind>,
}

impl Servers {
    /// Starts the `wanted` servers. Leaves out those that may be left out and are not installed.
    ///
    /// # Errors
    /// Something else is not installed, or a server does not start.
    pub async fn start(wanted: &[Kind], purpose: Purpose) -> anyhow::Result<Self> {
        let here = |kind: &Kind| !kind.can_be_left_out() || is_installed(*kind);
        let (wanted, left_out): (Vec<Kind>, Vec<Kind>) = wanted.iter().partition(|kind| here(kind));
        let programs = Programs::find(&wanted);
        let missing = programs.missing(&wanted, purpose);
        ensure!(missing.is_empty(), "not installed: {}", missing.join(", "));
        let password = random_password()?;
        let start = async |kind| {
            // Two kinds have the same programs.
            if !wanted.contains(&kind) {
                return anyhow::Ok((kind, None));
            }
            let server = Box::pin(programs.start(kind, purpose, &password)).await?;
            Ok((kind, server))
        };
        let (postgres, mysql, redis, cluster, sentinel, zookeeper, etcd) = tokio::try_join!(
            start(Kind::Postgres),
            start(Kind::MySql),
            start(Kind::Redis),
            start(Kind::RedisCluster),
            start(Kind::RedisSentinel),
            start(Kind::ZooKeeper),
            start(Kind::Etcd)
        )?;
        let started = [postgres, mysql, redis, cluster, sentinel, zookeeper, etcd].into_iter();
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
        let (wanted, given) = purpose.wanted();
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
}
