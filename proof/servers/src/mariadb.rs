//! A throw-away MariaDB, or MySQL where that is what the machine has.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::process::Command;

use crate::account::Account;
use crate::launch::{Launch, Probe, prepare};
use crate::programs::{self, Version};
use crate::{Purpose, Server};

const DATABASE: &str = "dblock";

/// The oldest MySQL that dblock supports; MariaDB's numbers are all higher.
const OLDEST: Version = Version { major: 8, minor: 0 };

/// The server's and the client's program.
#[derive(Debug)]
pub(crate) struct Programs {
    server: PathBuf,
    client: PathBuf,
    flavour: Flavour,
    version: Version,
}

/// Two servers with one protocol, but each with its own way to make the first files and users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    MariaDb,
    MySql,
}

impl Flavour {
    /// From the output of `--version`; `mysqld` may be either.
    fn of(version_text: &str) -> Self {
        if version_text.contains("MariaDB") {
            Self::MariaDb
        } else {
            Self::MySql
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
        }
    }

    /// Statements for the server's first start, which may be repeated when the port was taken.
    fn first_statements(self, password: &str) -> String {
        // MySQL's newer way to log in needs TLS or RSA, which the tests are built without.
        let identified = match self {
            Self::MariaDb => format!("IDENTIFIED BY '{password}'"),
            Self::MySql => format!("IDENTIFIED WITH mysql_native_password BY '{password}'"),
        };
        // One statement a line, as an init file wants it.
        format!(
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1' {identified};\n\
             ALTER USER 'root'@'127.0.0.1' {identified};\n\
             ALTER USER 'root'@'localhost' {identified};\n\
             GRANT ALL PRIVILEGES ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n\
             CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
        )
    }
}

impl Programs {
    pub(crate) fn find() -> Option<Self> {
        ["mariadbd", "mysqld"].iter().find_map(|name| {
            let server = programs::in_path(name)?;
            let text = programs::version_text(&server)?;
            let client = programs::in_path("mariadb").or_else(|| programs::in_path("mysql"))?;
            let version = Version::parse(&text).filter(|version| *version >= OLDEST)?;
            Some(Self {
                server,
                client,
                flavour: Flavour::of(&text),
                version,
            })
        })
    }

    /// Starts a server with its files in `top`.
    pub(crate) async fn start(
        &self,
        top: TempDir,
        password: &str,
        purpose: Purpose,
    ) -> anyhow::Result<Server> {
        let place = Place::new(&top)?;
        self.make_files(&place).await?;
        let statements = self.first_statements(&place, password)?;
        // It has no end that does not wait for anybody, as PostgreSQL has.
        let launch = self.launch(&place, password, purpose, Start::default());
        let server = Server::start(launch, Signal::TERM, top, |port| url(password, port)).await?;
        fs::remove_file(&statements)?;
        Ok(server)
    }

    pub(crate) fn is_mariadb(&self) -> bool {
        self.flavour == Flavour::MariaDb
    }

    /// Writes the statements for the first start. They are to be deleted when it is over.
    pub(crate) fn first_statements(&self, place: &Place, password: &str) -> anyhow::Result<PathBuf> {
        let file = place.first_statements();
        place
            .account
            .write(&file, &self.flavour.first_statements(password))?;
        Ok(file)
    }

    pub(crate) fn launch(&self, place: &Place, password: &str, purpose: Purpose, start: Start) -> Launch {
        let (flavour, place) = (self.flavour, place.clone());
        let (server, client, client_place) = (self.server.clone(), self.client.clone(), place.clone());
        let secret = password.to_owned();
        Launch {
            name: format!("{} {}", flavour.name(), self.version),
            log: place.folder.join("log"),
            stop: Signal::TERM,
            server: Box::new(move |port| {
                let mut command = match &start.script {
                    None => place.account.server(&server, &place.folder, "TERM"),
                    Some(script) => {
                        let mut command = place.account.server(Path::new("/bin/sh"), &place.folder, "TERM");
                        command.args(["-c", script, "sh"]).arg(&server);
                        command
                    }
                };
                // First of all: the distribution's settings name its own folders and users.
                command
                    .arg("--no-defaults")
                    .arg(option("datadir", &place.data()))
                    .arg(option("tmpdir", &place.folder));
                // Not there any more when it is started again.
                if place.first_statements().exists() {
                    command.arg(option("init-file", &place.first_statements()));
                }
                command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
                // Inside the data folder and named from there, so that its path cannot be too long.
                command.args(["--socket=socket", "--pid-file=pid"]);
                command.arg(format!("--port={port}"));
                if let Some(connections) = purpose.connections() {
                    command.arg(format!("--max-connections={connections}"));
                }
                if purpose == Purpose::Tests {
                    // Written at each commit, and synced once a second: 0 would lose commits with a kill.
                    command.args(["--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0"]);
                }
                if purpose == Purpose::Forgetful {
                    command.arg("--innodb-flush-log-at-trx-commit=2");
                }
                if flavour == Flavour::MySql {
                    command.args(["--loose-mysql-native-password=ON", "--loose-mysqlx=OFF"]);
                }
                command.args(&start.options);
                command
            }),
            probe: Probe::Client(Box::new(move |port| {
                ask(&client, &client_place, &secret, port, "SELECT 1")
            })),
        }
    }

    /// The answer to a query, without the names of its columns.
    pub(crate) async fn answer(
        &self,
        place: &Place,
        password: &str,
        port: u16,
        query: &str,
    ) -> anyhow::Result<String> {
        let mut client = ask(&self.client, place, password, port, query);
        let output = client.output().await.context("cannot run MariaDB's client")?;
        let said = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "{}", said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) async fn make_files(&self, place: &Place) -> anyhow::Result<()> {
        let Place { account, folder } = place;
        let mut command = match self.flavour {
            Flavour::MySql => {
                let mut command = account.command(&self.server, folder);
                command.args(["--no-defaults", "--initialize-insecure"]);
                command
            }
            Flavour::MariaDb => {
                let install = ["mariadb-install-db", "mysql_install_db"]
                    .iter()
                    .find_map(|name| programs::in_path(name))
                    .context("mariadb-install-db is missing, although MariaDB's server is there")?;
                let mut command = account.command(&install, folder);
                command.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
                command.arg("--auth-root-authentication-method=normal");
                command
            }
        };
        command
            .arg(option("datadir", &place.data()))
            .arg(option("tmpdir", folder));
        prepare(command).await
    }
}

/// Where a server has its files.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) account: Account,
    pub(crate) folder: PathBuf,
}

impl Place {
    pub(crate) fn new(top: &TempDir) -> anyhow::Result<Self> {
        let account = Account::for_server("mysql")?;
        let folder = account.folder(top.path(), "mysql")?;
        Ok(Self { account, folder })
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    fn first_statements(&self) -> PathBuf {
        self.folder.join("first.sql")
    }
}

/// How the server's program is started; by default with nothing more.
#[derive(Debug, Default)]
pub(crate) struct Start {
    /// A script of the shell that starts it in the end; its arguments are the command line.
    pub(crate) script: Option<&'static str>,
    /// More options.
    pub(crate) options: Vec<String>,
}

pub(crate) fn url(password: &str, port: u16) -> String {
    format!("mysql://root:{password}@127.0.0.1:{port}/{DATABASE}")
}

/// The client, with one query.
fn ask(client: &Path, place: &Place, password: &str, port: u16, query: &str) -> Command {
    let mut command = place.account.command(client, &place.folder);
    command.args([
        "--no-defaults",
        "--protocol=tcp",
        "--host=127.0.0.1",
        "--user=root",
        "--skip-column-names",
        "--connect-timeout=5",
    ]);
    command
        .arg(format!("--port={port}"))
        .arg(format!("--execute={query}"));
    command.arg(DATABASE).env("MYSQL_PWD", password);
    command
}

fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(format!("--{name}="));
    option.push(path);
    option
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mysqld_may_be_either_server() {
        assert_eq!(
            Flavour::of("mysqld  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu"),
            Flavour::MariaDb
        );
        assert_eq!(
            Flavour::of("mysqld  Ver 8.0.36 for Linux on x86_64"),
            Flavour::MySql
        );
    }

    #[test]
    fn first_statements_stand_on_one_line_each() {
        for flavour in [Flavour::MariaDb, Flavour::MySql] {
            let statements = flavour.first_statements("secret");
            assert!(statements.lines().all(|line| line.ends_with(';')), "{statements}");
            assert_eq!(statements.matches("'secret'").count(), 3);
        }
    }
}
