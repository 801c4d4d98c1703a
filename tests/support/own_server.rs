//! A server of the test's own, that it may kill.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::line::Database;

/// How long a server may take to start.
const START: Duration = Duration::from_mins(1);

/// How long a server that was asked to stop may take.
const STOP: Duration = Duration::from_secs(10);

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commits {
    /// The disk, as in production.
    ToDisk,
    /// No disk, which may stall for seconds: for tests, as none cuts the power. A killed server keeps them.
    ToMemory,
}

/// A running server in a temporary folder. It is stopped when this is dropped.
#[derive(Debug)]
pub struct OwnServer {
    database: Database,
    commits: Commits,
    program: PathBuf,
    port: u16,
    account: Option<Account>,
    child: Option<Child>,
    folder: tempfile::TempDir,
}

/// The servers refuse to run as root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    pub(crate) fn give(self, folder: &Path) {
        std::os::unix::fs::chown(folder, Some(self.uid), Some(self.gid))
            .expect("root may give a folder away");
    }

    pub(crate) fn take_on(self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

impl OwnServer {
    /// A fresh server. `None`, said loudly, when its programs are not installed.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(database: Database, commits: Commits) -> Option<Self> {
        let program = match database {
            Database::Postgres => postgres_programs().map(|folder| folder.join("postgres")),
            Database::MySql => on_path("mariadbd"),
        };
        let Some(program) = program else {
            assert!(
                !crate::servers_are_required(),
                "DBLOCK_TEST_REQUIRE_SERVERS=1, but the programs of {database:?} are not installed"
            );
            // Not `eprintln`, which the test runner hides while a test passes.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("LEFT OUT: a restart of {database:?}, because its programs are not installed\n"),
            );
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let account = account(match database {
            Database::Postgres => "postgres",
            Database::MySql => "mysql",
        });
        if let Some(account) = account {
            account.give(folder.path());
        }
        let mut server = Self {
            database,
            commits,
            program,
            port: free_port(),
            account,
            child: None,
            folder,
        };
        server.make_files();
        server.launch();
        server.until_ready().await;
        Some(server)
    }

    /// The URL of a superuser.
    pub fn url(&self) -> String {
        match self.database {
            Database::Postgres => format!("postgres://tester:@127.0.0.1:{}/postgres", self.port),
            Database::MySql => format!("mysql://tester:tester@127.0.0.1:{}/dblock", self.port),
        }
    }

    /// `kill -9`: nothing is written any more, nobody is told.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Tells it to stop without waiting for anybody: immediate mode on PostgreSQL, which leaves recovery to
    /// the next start; an ordinary end on MySQL, which has no such mode.
    pub fn stop_at_once(&mut self) {
        let signal = match self.database {
            Database::Postgres => Signal::QUIT,
            Database::MySql => Signal::TERM,
        };
        let Some(child) = &mut self.child else { return };
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // It has not been waited for, so its id is its own.
        if id.is_some_and(|id| kill_process(id, signal).is_ok()) {
            let deadline = Instant::now() + STOP;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    /// Starts it again, on the same port, and waits until it answers.
    pub async fn restart(&mut self) {
        self.kill();
        if self.database == Database::Postgres {
            // Its former children may still hold the shared memory for a moment.
            let started = Instant::now();
            loop {
                self.launch();
                if self.is_ready_or_ended().await {
                    return;
                }
                assert!(started.elapsed() < START, "the server does not start again");
            }
        }
        self.launch();
        self.until_ready().await;
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("a log file");
        let both = log.try_clone().expect("a second handle");
        command.stdout(log).stderr(both);
        if let Some(account) = self.account {
            account.take_on(&mut command);
        }
        command
    }

    fn make_files(&self) {
        let mut command = match self.database {
            Database::Postgres => {
                let mut command = self.command(&self.program.with_file_name("initdb"));
                command.args([
                    "--username",
                    "tester",
                    "--auth",
                    "trust",
                    "--no-sync",
                    "--no-locale",
                    "-D",
                ]);
                command.arg(self.data());
                command
            }
            Database::MySql => {
                let install = on_path("mariadb-install-db").expect("it comes with the server");
                let mut command = self.command(&install);
                command.args([
                    "--no-defaults",
                    "--auth-root-authentication-method=normal",
                    "--skip-test-db",
                ]);
                command.arg(format!("--datadir={}", self.data().display()));
                command
            }
        };
        let done = command.status().expect("the program runs");
        assert!(done.success(), "{}", self.log());
        if self.database == Database::MySql {
            let statements = "CREATE DATABASE IF NOT EXISTS dblock;\n\
                CREATE USER IF NOT EXISTS tester@'127.0.0.1' IDENTIFIED BY 'tester';\n\
                GRANT ALL ON *.* TO tester@'127.0.0.1' WITH GRANT OPTION;\n";
            std::fs::write(self.folder.path().join("first.sql"), statements).expect("a file");
        }
    }

    fn launch(&mut self) {
        // When we are killed and cannot stop it, Linux does.
        let mut command = match on_path("setpriv").filter(|_| cfg!(target_os = "linux")) {
            None => self.command(&self.program),
            Some(setpriv) => {
                let mut command = self.command(&setpriv);
                command.args(["--pdeathsig", "QUIT", "--"]).arg(&self.program);
                command
            }
        };
        match self.database {
            Database::Postgres => {
                command.arg("-D").arg(self.data());
                for setting in [
                    "listen_addresses=127.0.0.1",
                    "unix_socket_directories=",
                    &format!("port={}", self.port),
                ] {
                    command.args(["-c", setting]);
                }
                if self.commits == Commits::ToMemory {
                    command.args(["-c", "fsync=off", "-c", "full_page_writes=off"]);
                }
            }
            Database::MySql => {
                command.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-name-resolve"]);
                command.args([
                    "--socket=socket",
                    "--pid-file=pid",
                    &format!("--port={}", self.port),
                ]);
                command.arg(format!("--datadir={}", self.data().display()));
                command.arg(format!(
                    "--init-file={}",
                    self.folder.path().join("first.sql").display()
                ));
                if self.commits == Commits::ToMemory {
                    // 0 would lose some with a kill.
                    command.arg("--innodb-flush-log-at-trx-commit=2");
                }
            }
        }
        self.child = Some(command.spawn().expect("the server can be started"));
    }

    async fn until_ready(&mut self) {
        assert!(
            self.is_ready_or_ended().await,
            "the server has ended:\n{}",
            self.log()
        );
    }

    /// Waits until the server answers (true) or has ended (false).
    async fn is_ready_or_ended(&mut self) -> bool {
        let started = Instant::now();
        loop {
            let answers = match self.database {
                Database::Postgres => connect::<sqlx::PgConnection>(&self.url()).await,
                Database::MySql => connect::<sqlx::MySqlConnection>(&self.url()).await,
            };
            if answers {
                return true;
            }
            let child = self.child.as_mut().expect("it was launched");
            if child.try_wait().expect("a child can be asked").is_some() {
                return false;
            }
            assert!(
                started.elapsed() < START,
                "the server is not ready:\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for OwnServer {
    /// Not killed, which would leave shared memory behind.
    fn drop(&mut self) {
        self.stop_at_once();
    }
}

/// A port that nobody listens on, out of the range from which connections are given theirs: one of those could
/// have it while the server is down.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = fastrand::u16(20_000..32_000);
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

async fn connect<C: sqlx::Connection>(url: &str) -> bool {
    match C::connect(url).await {
        Ok(connection) => connection.close().await.is_ok(),
        Err(_) => false,
    }
}

pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Debian keeps each version in a folder of its own, out of PATH.
fn postgres_programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut folders: Vec<_> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    folders.extend(on_path("initdb").and_then(|file| Some(file.parent()?.to_owned())));
    folders
        .into_iter()
        .rev()
        .find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

/// The account `name`, which the packages made, when the test runs as root.
pub(crate) fn account(name: &str) -> Option<Account> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if uid.split_whitespace().nth(1)? != "0" {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = users
        .lines()
        .map(|line| line.split(':'))
        .find(|fields| fields.clone().next() == Some(name))?;
    let (uid, gid) = (fields.nth(2)?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Account { uid, gid })
}
