//! A throw-away PostgreSQL: the files of a new cluster, and the server on them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;

use super::account::Account;
use super::launch::{Launch, prepare};
use super::programs::{self, Version};
use super::{CONNECTIONS, Purpose, Server};

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

    /// Starts a server with its files in `parent`.
    pub(crate) async fn start(
        &self,
        parent: &Path,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<Server> {
        let account = Account::for_server("postgres")?;
        let folder = account.folder(parent, "postgres")?;
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

        let name = format!("PostgreSQL {}", self.version);
        let launch = Launch {
            name: &name,
            log: &folder.join("log"),
            // Fast shutdown: SIGTERM would wait for clients to leave.
            stop: Signal::INT,
            server: &|port| {
                let mut command = account.server(&self.folder.join("postgres"), &folder, "INT");
                command
                    .arg("-D")
                    .arg(&data)
                    .args(["-c", "listen_addresses=127.0.0.1"]);
                // No Unix socket: the path of the folder may be too long for one.
                command.args(["-c", "unix_socket_directories=", "-c", &format!("port={port}")]);
                command.args(["-c", &format!("max_connections={CONNECTIONS}")]);
                if purpose == Purpose::Tests {
                    command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
                }
                if purpose == Purpose::Benches && self.can_count() {
                    command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
                    // Switched on where statements are counted, and off where time is measured.
                    command.args(["-c", "pg_stat_statements.track=none"]);
                }
                command
            },
            probe: &|port| {
                let mut command = account.command(&self.folder.join("psql"), &folder);
                command.args(["-X", "-w", "-h", "127.0.0.1", "-U", USER, "-d", "postgres"]);
                command.args(["-p", &port.to_string(), "-c", "SELECT 1"]);
                command.env("PGPASSWORD", password).env("PGCONNECT_TIMEOUT", "5");
                command
            },
        };
        let (process, port) = launch.run().await?;
        let url = format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres");
        Ok(Server { process, name, url })
    }
}
