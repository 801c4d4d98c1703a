//! A throw-away `PgBouncer` in transaction mode: each transaction may meet another session of the server.

use std::fs;

use anyhow::Context as _;
use rustix::process::Signal;

use crate::account::Account;
use crate::launch::{Launch, Probe};
use crate::{Server, programs, temporary_folder};

/// The name of the program and of its package.
pub(crate) const NAME: &str = "pgbouncer";

/// How many sessions of the server its clients share: few, so that they meet each other's.
pub const POOL_SIZE: usize = 3;

/// How `PgBouncer` is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Its defaults: it refuses settings of a session.
    Refuses,
    /// It lets a client send settings of its session, and forgets them.
    Swallows,
}

/// Whether the program is there.
pub fn is_installed() -> bool {
    programs::in_path(NAME).is_some()
}

/// Starts one before the PostgreSQL server with that URL. It is killed when it is dropped.
///
/// # Errors
/// It is not installed, the URL has no user, host or database, or it does not start.
pub async fn start(upstream: &str, setup: Setup) -> anyhow::Result<Server> {
    let program = programs::in_path(NAME).context("pgbouncer is not installed")?;
    let upstream = Upstream::of(upstream).context("the URL has no user, host or database")?;
    let account = Account::for_server("postgres")?;
    let top = temporary_folder()?;
    let folder = account.folder(top.path(), NAME)?;
    let users = format!("\"{}\" \"{}\"\n", upstream.user, upstream.password);
    account.write(&folder.join("users"), &users)?;
    let url = upstream.clone();
    let launch = Launch {
        name: "PgBouncer".to_owned(),
        log: folder.join("log"),
        stop: Signal::KILL,
        server: Box::new(move |port| {
            // A file that cannot be written ends PgBouncer, and its log says so.
            let _ = fs::write(folder.join("settings"), upstream.settings(setup, port));
            let mut command = account.server(&program, &folder, "KILL");
            command.arg("settings");
            command
        }),
        probe: Probe::Connects,
    };
    Server::start(launch, Signal::KILL, top, |port| url.through(port)).await
}

/// The server behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Upstream {
    user: String,
    password: String,
    host: String,
    port: String,
    database: String,
}

impl Upstream {
    /// From a URL as the tests have it, `postgres://user:password@host:port/database`.
    fn of(url: &str) -> Option<Self> {
        let (login, place) = url.split_once("://")?.1.rsplit_once('@')?;
        let (address, database) = place.split_once('/')?;
        let (host, port) = address.split_once(':').unwrap_or((address, "5432"));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let database = database.split('?').next()?;
        let [user, password, host, port, database] =
            [user, password, host, port, database].map(str::to_owned);
        Some(Self {
            user,
            password,
            host,
            port,
            database,
        })
    }

    fn through(&self, port: u16) -> String {
        let Self {
            user,
            password,
            database,
            ..
        } = self;
        format!("postgres://{user}:{password}@127.0.0.1:{port}/{database}")
    }

    fn settings(&self, setup: Setup, listen_port: u16) -> String {
        let Self {
            host,
            port,
            database,
            user,
            password,
        } = self;
        let ignored = match setup {
            Setup::Refuses => "",
            Setup::Swallows => "ignore_startup_parameters = extra_float_digits, options",
        };
        format!(
            "[databases]\n{database} = host={host} port={port} user={user} password={password}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listen_port}\nunix_socket_dir =\n\
             auth_type = md5\nauth_file = users\n\
             pool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\n{ignored}\n",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Upstream;

    #[test]
    fn the_url_through_it_differs_in_the_place_alone() {
        let upstream = Upstream::of("postgres://u:p@db.example/app?sslmode=disable").unwrap();
        assert_eq!((&*upstream.host, &*upstream.port), ("db.example", "5432"));
        assert_eq!(upstream.through(7), "postgres://u:p@127.0.0.1:7/app");
        assert_eq!(Upstream::of("postgres://db.example/app"), None);
    }
}
