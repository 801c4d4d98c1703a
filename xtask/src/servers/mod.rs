//! Private, throw-away database servers: on the loopback, on free ports, in a temporary folder, with
//! random passwords. They are gone when [`Servers`] is dropped.
//!
//! For benches their settings are the defaults, so commits are as durable as in production. For tests they do not
//! wait for the disk: no test cuts the power, what a killed server has committed survives in the system's memory,
//! and a disk that stalls for seconds under one commit would fail a test that has nothing to do with it.

mod account;
mod launch;
mod mariadb;
pub(crate) mod packages;
mod postgres;
mod programs;
mod redis;

use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;

use anyhow::Context as _;
use tempfile::TempDir;

use crate::process::Process;

/// Tests run side by side, and each opens connections of its own; the default of 100 to 151 is soon used up
/// on a machine with many cores.
const CONNECTIONS: u32 = 400;

/// Tests start it themselves, before the PostgreSQL server. The name of the program is that of the package.
const POOLER: &str = "pgbouncer";

/// The kinds of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    MySql,
    /// For libraries that dblock is measured beside.
    Redis,
}

/// What the servers are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Tests,
    /// Also counts what a PostgreSQL server is asked, where it can.
    Benches,
    /// The torture starts its server itself.
    Torture,
}

impl Purpose {
    /// The servers that are started.
    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Tests => &[Kind::Postgres, Kind::MySql],
            Self::Benches => &[Kind::Postgres, Kind::MySql, Kind::Redis],
            Self::Torture => &[],
        }
    }

    /// What can be done instead of installing.
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
    pub(crate) fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "DBLOCK_TEST_POSTGRES_URL",
            Self::MySql => "DBLOCK_TEST_MYSQL_URL",
            Self::Redis => "DBLOCK_BENCH_REDIS_URL",
        }
    }

    /// Debian's package.
    fn package(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::MySql => "mariadb-server",
            Self::Redis => "redis-server",
        }
    }
}

/// A running server.
#[derive(Debug)]
struct Server {
    #[expect(dead_code, reason = "held for its drop, which stops the server")]
    process: Process,
    /// Product and version.
    name: String,
    url: String,
}

/// What tests and benches run against: servers of ours, and those that the environment names.
#[derive(Debug)]
pub(crate) struct Servers {
    // Dropped in this order: the folder goes when nobody writes to it any more.
    running: Vec<(Kind, Server)>,
    #[expect(dead_code, reason = "held for its drop, which removes the folder")]
    folder: TempDir,
}

/// The programs of the servers that are wanted, and whether the pooler is there.
#[derive(Debug, Default)]
struct Programs {
    postgres: Option<postgres::Programs>,
    mysql: Option<mariadb::Programs>,
    pooler: bool,
    redis: Option<redis::Programs>,
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
            pooler: programs::in_path(POOLER).is_some(),
            redis: wanted
                .contains(&Kind::Redis)
                .then(redis::Programs::find)
                .flatten(),
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

    /// The packages of what is wanted and was not found. The tests want the pooler whichever servers the
    /// environment names.
    fn missing(&self, wanted: &[Kind], purpose: Purpose) -> Vec<&'static str> {
        let found = |kind: &&Kind| match kind {
            Kind::Postgres => self.postgres.is_some(),
            Kind::MySql => self.mysql.is_some(),
            Kind::Redis => self.redis.is_some(),
        };
        wanted
            .iter()
            .filter(|kind| !found(kind))
            .map(|kind| kind.package())
            .chain((purpose == Purpose::Tests && !self.pooler).then_some(POOLER))
            .collect()
    }
}

impl Servers {
    /// Starts the `wanted` servers, after installing what is missing where we may.
    async fn start(wanted: &[Kind], purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Programs::find_or_install(wanted, purpose).await?;
        let folder = tempfile::Builder::new()
            .prefix("dblock-")
            .tempdir()
            .context("no temporary folder")?;
        // A server that runs as another user has to get through to its own folder inside.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711))?;
        let password = random_password()?;
        let (postgres, mysql, redis) = tokio::try_join!(
            async {
                let Some(programs) = &programs.postgres else {
                    return Ok(None);
                };
                programs.start(folder.path(), &password, purpose).await.map(Some)
            },
            async {
                let Some(programs) = &programs.mysql else {
                    return Ok(None);
                };
                programs.start(folder.path(), &password, purpose).await.map(Some)
            },
            async {
                let Some(programs) = &programs.redis else {
                    return anyhow::Ok(None);
                };
                programs.start(folder.path(), &password).await.map(Some)
            },
        )?;
        let running = [
            (Kind::Postgres, postgres),
            (Kind::MySql, mysql),
            (Kind::Redis, redis),
        ];
        let running = running
            .into_iter()
            .filter_map(|(kind, server)| Some((kind, server?)))
            .collect();
        Ok(Self { running, folder })
    }

    /// Starts the servers that the environment does not name.
    pub(crate) async fn start_missing(purpose: Purpose) -> anyhow::Result<Self> {
        let given = |kind: &Kind| env::var_os(kind.variable()).is_some_and(|url| !url.is_empty());
        let (given, wanted): (Vec<Kind>, Vec<Kind>) = purpose.kinds().iter().copied().partition(given);
        for kind in given {
            eprintln!("using the server given in {}", kind.variable());
        }
        Self::start(&wanted, purpose).await
    }

    /// The servers that we run, for people.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.running
            .iter()
            .map(|(_, server)| server.name.as_str())
            .collect()
    }

    /// The variables that lead tests and benches to our servers, and their values.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.running
            .iter()
            .map(|(kind, server)| (kind.variable(), server.url.as_str()))
    }
}

/// Installs what is missing of a server's programs, where we may, for somebody who starts it himself.
pub(crate) async fn install(kind: Kind) -> anyhow::Result<()> {
    Programs::find_or_install(&[kind], Purpose::Torture)
        .await
        .map(drop)
}

/// Whether a process can be given a wall clock of its own.
pub(crate) fn has_faketime() -> bool {
    let folders = fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let library = |folder: fs::DirEntry| folder.path().join("faketime/libfaketime.so.1");
    folders.map(library).any(|library| library.is_file())
}

/// Installs a library that is of use but not needed; says why where we may not.
pub(crate) async fn install_if_we_may(package: &str) {
    if let Err(error) = packages::install(&[package], "").await {
        eprintln!("going on without {package}: {error:#}");
    }
}

/// `cargo xtask servers`: the servers for the tests, until a signal ends this future.
pub(crate) async fn serve() -> anyhow::Result<ExitCode> {
    let servers = Servers::start(Purpose::Tests.kinds(), Purpose::Tests).await?;
    eprintln!(
        "{} run until Ctrl-C. In another terminal:",
        servers.names().join(" and ")
    );
    println!("{}", exports(servers.variables()));
    std::future::pending().await
}

/// Lines for a shell. The URLs hold nothing that a shell would interpret inside single quotes.
fn exports<'a>(variables: impl Iterator<Item = (&'static str, &'a str)>) -> String {
    let lines = variables.map(|(name, url)| format!("export {name}='{url}'"));
    lines.collect::<Vec<_>>().join("\n")
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
    fn exports_are_lines_for_a_shell() {
        let variables = [("A_URL", "postgres://u:p@h:1/d"), ("B_URL", "mysql://u:p@h:2/d")];
        assert_eq!(
            exports(variables.into_iter()),
            "export A_URL='postgres://u:p@h:1/d'\nexport B_URL='mysql://u:p@h:2/d'"
        );
    }

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
            ["postgresql", "mariadb-server", "pgbouncer"]
        );
        assert_eq!(
            none.missing(Purpose::Benches.kinds(), Purpose::Benches),
            ["postgresql", "mariadb-server", "redis-server"]
        );
        assert_eq!(none.missing(&[Kind::MySql], Purpose::Torture), ["mariadb-server"]);
        let pooler = Programs { pooler: true, ..none };
        assert!(pooler.missing(&[], Purpose::Tests).is_empty());
    }
}
