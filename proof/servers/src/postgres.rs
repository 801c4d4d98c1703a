//! A throw-away PostgreSQL: the files of a new cluster, and the server on them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use crate::account::Account;
use crate::launch::{Launch, Probe, prepare};
use crate::programs::{self, Version};
use crate::{Purpose, Server};

/// The oldest version that dblock supports.
const OLDEST: Version = Version { major: 13, minor: 0 };

const USER: &str = "postgres";

/// Names the folder of another version's server, which may have no clients.
pub const OTHER_SERVER: &str = "DBLOCK_POSTGRES";

/// The programs of one version of PostgreSQL.
#[derive(Debug)]
pub(crate) struct Programs {
    /// Where `initdb` and `postgres` are.
    folder: PathBuf,
    /// Where `psql` and `pg_basebackup` are.
    clients: PathBuf,
    version: Version,
}

impl Programs {
    /// The newest that Debian's packages put here, else the one in PATH. The server may be [another](OTHER_SERVER).
    pub(crate) fn find() -> Option<Self> {
        let path = programs::in_path("postgres").and_then(|file| Some(file.parent()?.to_owned()));
        let folders = programs::versioned_folders(Path::new("/usr/lib/postgresql"))
            .into_iter()
            .chain(path);
        let found = folders
            .filter_map(Self::in_folder)
            .find(|found| found.version >= OLDEST)?;
        let Some(folder) = env::var_os(OTHER_SERVER).map(PathBuf::from) else {
            return Some(found);
        };
        Some(Self {
            version: Self::version(&folder)?,
            folder,
            ..found
        })
    }

    fn in_folder(folder: PathBuf) -> Option<Self> {
        let complete = ["initdb", "psql", "postgres"]
            .iter()
            .all(|name| folder.join(name).is_file());
        let version = Self::version(&folder)?;
        complete.then(|| Self {
            clients: folder.clone(),
            folder,
            version,
        })
    }

    fn version(folder: &Path) -> Option<Version> {
        Version::parse(&programs::version_text(&folder.join("postgres"))?)
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
        let place = Place::new(&top)?;
        self.initialize(&place, password, purpose).await?;
        self.serve(&place, top, password, purpose).await
    }

    /// Makes the files of a new cluster.
    pub(crate) async fn initialize(
        &self,
        place: &Place,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<()> {
        // Tests and tortures log in thousands of times, and a SCRAM login is thousands of hashes, in the server too if it
        // has the password in that form: they were a quarter of what the tests computed. With md5 it keeps the
        // password as one hash.
        let login = if purpose == Purpose::Benches {
            "scram-sha-256"
        } else {
            "md5"
        };
        let Place { account, folder } = place;
        let password_file = folder.join("password");
        account.write(&password_file, password)?;
        let mut initdb = account.command(&self.folder.join("initdb"), folder);
        initdb
            .arg("--pgdata")
            .arg(place.data())
            .arg("--pwfile")
            .arg(&password_file)
            .args([
                "--username",
                USER,
                "--auth",
                login,
                "--encoding",
                "UTF8",
                "--no-locale",
            ])
            // Only about the files of the empty cluster.
            .arg("--no-sync");
        prepare(initdb).await?;
        fs::remove_file(&password_file)?;
        Ok(())
    }

    /// Makes the files of a standby: a copy of the server on a port. Files that were there before are deleted.
    pub(crate) async fn copy(&self, place: &Place, password: &str, port: u16) -> anyhow::Result<()> {
        let data = place.data();
        if data.exists() {
            fs::remove_dir_all(&data)?;
        }
        let mut copy = place
            .account
            .command(&self.clients.join("pg_basebackup"), &place.folder);
        copy.args(["-h", "127.0.0.1", "-U", USER, "-w", "-p", &port.to_string()]);
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-D"]);
        copy.arg(data).env("PGPASSWORD", password);
        prepare(copy).await
    }

    /// Carries out statements as the superuser, on a port.
    pub(crate) async fn sql(
        &self,
        place: &Place,
        password: &str,
        port: u16,
        statements: &[&str],
    ) -> anyhow::Result<()> {
        let mut psql = client(&self.clients, place, port);
        psql.args(["-v", "ON_ERROR_STOP=1"]).env("PGPASSWORD", password);
        for statement in statements {
            psql.args(["-c", statement]);
        }
        prepare(psql).await
    }

    /// Starts a server on the files that are there.
    pub(crate) async fn serve(
        &self,
        place: &Place,
        top: TempDir,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<Server> {
        let (programs, counts) = (
            self.folder.clone(),
            purpose == Purpose::Benches && self.can_count(),
        );
        // Otherwise it syncs each file when it starts after a crash: seconds on a disk in a file.
        let syncs_at_once =
            matches!(purpose, Purpose::Torture | Purpose::Forgetful) && self.version.major >= 14;
        let (at, probed, probe) = (place.clone(), place.clone(), self.clients.clone());
        let secret = password.to_owned();
        let launch = Launch {
            name: format!("PostgreSQL {}", self.version),
            log: place.folder.join("log"),
            // Fast shutdown: SIGTERM would wait for clients to leave.
            stop: Signal::INT,
            server: Box::new(move |port| {
                let mut command = at.account.server(&programs.join("postgres"), &at.folder, "INT");
                command
                    .arg("-D")
                    .arg(at.data())
                    .args(["-c", "listen_addresses=127.0.0.1"]);
                // No Unix socket: the path of the folder may be too long for one.
                command.args(["-c", "unix_socket_directories=", "-c", &format!("port={port}")]);
                if let Some(connections) = purpose.connections() {
                    command.args(["-c", &format!("max_connections={connections}")]);
                }
                if purpose == Purpose::Tests {
                    command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
                    // For transactions that are prepared; the default allows none.
                    command.args(["-c", "max_prepared_transactions=8"]);
                }
                if syncs_at_once {
                    command.args(["-c", "recovery_init_sync_method=syncfs"]);
                }
                if purpose == Purpose::Forgetful {
                    command.args(["-c", "synchronous_commit=off"]);
                }
                if counts {
                    command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
                    // Switched on where statements are counted, and off where time is measured.
                    command.args(["-c", "pg_stat_statements.track=none"]);
                }
                command
            }),
            probe: Probe::Client(Box::new(move |port| {
                let mut command = client(&probe, &probed, port);
                command.args(["-c", "SELECT 1"]).env("PGPASSWORD", &secret);
                command
            })),
        };
        Server::start(launch, Signal::QUIT, top, |port| {
            format!("postgres://{USER}:{password}@127.0.0.1:{port}/postgres")
        })
        .await
    }
}

/// The folder of a server, and the account that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    account: Account,
    folder: PathBuf,
}

impl Place {
    pub(crate) fn new(top: &TempDir) -> anyhow::Result<Self> {
        let account = Account::for_server("postgres")?;
        let folder = account.folder(top.path(), "postgres")?;
        Ok(Self { account, folder })
    }

    fn data(&self) -> PathBuf {
        self.folder.join("data")
    }
}

/// `psql` on a port. The password is still to be given.
fn client(programs: &Path, place: &Place, port: u16) -> Command {
    let mut command = place.account.command(&programs.join("psql"), &place.folder);
    command.args(["-X", "-w", "-h", "127.0.0.1", "-U", USER, "-d", "postgres"]);
    command
        .args(["-p", &port.to_string()])
        .env("PGCONNECT_TIMEOUT", "5");
    command
}
