//! A throw-away PostgreSQL: the files of a new cluster, and the server on them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::account::Account;
use crate::launch::{Launch, Probe, prepare};
use crate::programs::{self, Version};
use crate::{Purpose, Server};

/// The oldest version that dblock supports.
const OLDEST: Version = Version { major: 13, minor: 0 };

const USER: &str = "postgres";

/// The programs of one version of PostgreSQL.
#[derive(Debug)]
pub(crate) struct Programs {
    folder: PathBuf,
    version: Version,
}

impl Programs {
    /// The newest that Debian's packages put here, else the one in PATH.
    pub(crate) fn find() -> Option<Self> {
        let path = programs::in_path("postgres").and_then(|file| Some(file.parent()?.to_owned()));
        let folders = programs::versioned_folders(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .chain(path);
        folders
            .filter_map(Self::in_folder)
            .find(|found| found.version >= OLDEST)
    }

    fn in_folder(folder: PathBuf) -> Option<Self> {
        let complete = ["initdb", "psql", "postgres"]
            .iter()
            .all(|name| folder.join(name).is_file());
        let version = Version::parse(&programs::version_text(&folder.join("postgres"))?)?;
        complete.then_some(Self { folder, version })
    }

    /// Whether the extension that counts statements is installed, as Debian's package has it.
    fn can_count(&self) -> bool {
        let library = self.folder.join("../lib/pg_stat_statements.so");
        library.is_file()
    }

    /// Starts a server with its files in `top`.
    pub(crate) async fn start(
        &self,
        top: TempDir,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("postgres")?;
        let folder = account.folder(top.path(), "postgres")?;
        let data = folder.join("data");

        let password_file = folder.join("password");
        account.write(&password_file, password)?;
        let mut initdb = account.command(&self.folder.join("initdb"), &folder);
        initdb
            .arg("--pgdata")
            .arg(&data)
            .arg("--pwfile")
            .arg(&password_file)
            .args([
                "--username",
                USER,
                "--auth",
                "scram-sha-256",
                "--encoding",
                "UTF8",
                "--no-locale",
            ])
            // Only about the files of the empty cluster.
            .arg("--no-sync");
        prepare(initdb).await?;
        fs::remove_file(&password_file)?;

        let (programs, counts) = (
            self.folder.clone(),
            purpose == Purpose::Benches && self.can_count(),
        );
        let (client, client_folder, secret) = (self.folder.join("psql"), folder.clone(), password.to_owned());
        let launch = Launch {
            name: format!("PostgreSQL {}", self.version),
            log: folder.join("log"),
            // Fast shutdown: SIGTERM would wait for clients to leave.
            stop: Signal::INT,
            server: Box::new(move |port| {
                let mut command = account.server(&programs.join("postgres"), &folder, "INT");
                command
                    .arg("-D")
                    .arg(&data)
                    .args(["-c", "listen_addresses=127.0.0.1"]);
                // No Unix socket: the path of the folder may be too long for one.
                command.args(["-c", "unix_socket_directories=", "-c", &format!("port={port}")]);
                if let Some(connections) = purpose.connections() {
                    command.args(["-c", &format!("max_connections={connections}")]);
                }
                if purpose == Purpose::Tests {
                    command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
                }
                if counts {
                    command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
                    // Switched on where statements are counted, and off where time is measured.
                    command.args(["-c", "pg_stat_statements.track=none"]);
                }
                command
            }),
            probe: Probe::Client(Box::new(move |port| {
                let mut command = account.command(&client, &client_folder);
                command.args(["-X", "-w", "-h", "127.0.0.1", "-U", USER, "-d", "postgres"]);
                command.args(["-p", &port.to_string(), "-c", "SELECT 1"]);
                command.env("PGPASSWORD", &secret).env("PGCONNECT_TIMEOUT", "5");
                command
            })),
        };
        Server::start(launch, Signal::QUIT, top, |port| {
            format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres")
        })
        .await
    }
}
