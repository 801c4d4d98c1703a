//! A `PgBouncer` of the test's own before the `PostgreSQL` server for tests, in transaction mode: each
//! transaction may meet another session of the server.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::own_server::{self, Account};

/// How long it may take to start.
const START: Duration = Duration::from_secs(20);

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

/// A running `PgBouncer`. It is killed when this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl PgBouncer {
    /// Starts one. `None`, said loudly, when the program or the server is not there.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(setup: Setup) -> Option<Self> {
        let server = crate::postgres_url()?;
        let Some(program) = own_server::on_path("pgbouncer") else {
            assert!(
                !crate::servers_are_required(),
                "DBLOCK_TEST_REQUIRE_SERVERS=1, but pgbouncer is not installed"
            );
            let _ = writeln!(
                std::io::stderr(),
                "LEFT OUT: a test needs pgbouncer, which is not installed"
            );
            return None;
        };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, own_server::free_port()));

        let upstream = Upstream::of(&server);
        let account = own_server::account("postgres");
        if let Some(account) = account {
            account.give(folder.path());
        }
        write(
            &folder,
            "users",
            &format!("\"{}\" \"{}\"\n", upstream.user, upstream.password),
        );
        write(&folder, "settings", &settings(setup, &upstream, address));
        let child = launch(&program, &folder, account);
        let url = format!(
            "postgres://{}:{}@{address}/{}",
            upstream.user, upstream.password, upstream.database
        );
        let mut bouncer = Self { child, url, folder };
        bouncer.until_ready(address);
        Some(bouncer)
    }

    /// The server's URL, but through this.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn until_ready(&mut self, address: SocketAddr) {
        let started = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = self.child.try_wait().expect("a child can be asked");
            let log = || std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(ended.is_none(), "pgbouncer has ended:\n{}", log());
            assert!(started.elapsed() < START, "pgbouncer is not ready:\n{}", log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server behind it.
struct Upstream<'a> {
    user: &'a str,
    password: &'a str,
    host: &'a str,
    port: &'a str,
    database: &'a str,
}

impl<'a> Upstream<'a> {
    /// From a URL as the tests have it, `postgres://user:password@host:port/database`.
    fn of(url: &'a str) -> Self {
        let parts = || {
            let (login, place) = url.split_once("://")?.1.rsplit_once('@')?;
            let (address, database) = place.split_once('/')?;
            let (host, port) = address.split_once(':').unwrap_or((address, "5432"));
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            Some(Self {
                user,
                password,
                host,
                port,
                database: database.split('?').next()?,
            })
        };
        parts().expect("the URL in DBLOCK_TEST_POSTGRES_URL has a user, a host and a database")
    }
}

fn settings(setup: Setup, upstream: &Upstream<'_>, address: SocketAddr) -> String {
    let Upstream {
        host,
        port,
        database,
        user,
        password,
    } = upstream;
    let ignored = match setup {
        Setup::Refuses => "",
        Setup::Swallows => "ignore_startup_parameters = extra_float_digits, options",
    };
    format!(
        "[databases]\n{database} = host={host} port={port} user={user} password={password}\n\
         [pgbouncer]\nlisten_addr = {}\nlisten_port = {}\nunix_socket_dir =\n\
         auth_type = scram-sha-256\nauth_file = users\n\
         pool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\n{ignored}\n",
        address.ip(),
        address.port(),
    )
}

fn write(folder: &tempfile::TempDir, name: &str, text: &str) {
    use std::os::unix::fs::PermissionsExt;

    let file = folder.path().join(name);
    std::fs::write(&file, text).expect("the folder can be written");
    // The folder alone keeps others away.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("our own file");
}

fn launch(program: &Path, folder: &tempfile::TempDir, account: Option<Account>) -> Child {
    let log = std::fs::File::create(folder.path().join("log")).expect("a log file");
    let mut command = Command::new(program);
    command
        .arg("settings")
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log);
    if let Some(account) = account {
        account.take_on(&mut command);
    }
    command.spawn().expect("pgbouncer can be started")
}
