//! Servers of the test's own, that it may kill.

use std::io::Write as _;
use std::path::PathBuf;

use dblock_servers::pgbouncer::{self, Setup};
use dblock_servers::{Galera, Kind, Pair, Purpose, Server, galera, is_installed};
use sqlx::{Connection as _, MySqlConnection};

use crate::line::Database;

/// A fresh server, whose commits do not wait for the disk. `None`, said loudly, when its programs are not
/// installed.
///
/// # Panics
/// When it does not start.
pub async fn start(database: Database) -> Option<Server> {
    let kind = match database {
        Database::Postgres => Kind::Postgres,
        Database::MySql => Kind::MySql,
    };
    is_there(is_installed(kind), &format!("{database:?}"))?;
    let started = Server::fresh(kind, Purpose::Tests).await;
    Some(started.unwrap_or_else(|error| panic!("{error:#}")))
}

/// A `PostgreSQL` primary with a synchronous standby. `None`, said loudly, when the programs are not
/// installed.
///
/// # Panics
/// When they do not start.
pub async fn pair() -> Option<Pair> {
    is_there(is_installed(Kind::Postgres), "PostgreSQL")?;
    let started = Pair::start(Purpose::Tests).await;
    Some(started.unwrap_or_else(|error| panic!("{error:#}")))
}

/// Three nodes of `MariaDB` with Galera. `None`, said loudly, when the programs are not installed: not every
/// machine can have them.
///
/// # Panics
/// When they do not start, or in CI when they are not installed.
pub async fn galera() -> Option<Galera> {
    if !galera::is_installed() {
        assert!(std::env::var_os("CI").is_none(), "Galera is not installed");
        left_out("Galera");
        return None;
    }
    let started = Galera::start(Purpose::Tests).await;
    Some(started.unwrap_or_else(|error| panic!("{error:#}")))
}

/// Makes a user of the server who may use the tables of dblock, and whom `read_only` concerns. Returns its
/// URL.
///
/// # Panics
/// When it cannot be made.
pub async fn app_of(server: &Server) -> String {
    let user = "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'secret'; \
                GRANT SELECT, INSERT, UPDATE, DELETE ON dblock.* TO app@'127.0.0.1'";
    let mut admin = MySqlConnection::connect(server.url())
        .await
        .expect("the server answers");
    sqlx::raw_sql(user)
        .execute(&mut admin)
        .await
        .expect("the superuser may do that");
    server.url_of("app", "secret")
}

/// A `PgBouncer` before the `PostgreSQL` server for tests. `None`, said loudly, when one of them is not
/// there.
///
/// # Panics
/// When it does not start.
pub async fn pgbouncer(setup: Setup) -> Option<Server> {
    let server = crate::postgres_url()?;
    is_there(pgbouncer::is_installed(), "PgBouncer")?;
    let started = pgbouncer::start(&server, setup).await;
    Some(started.unwrap_or_else(|error| panic!("{error:#}")))
}

/// The browser's program. `None`, said loudly, when it is not installed.
///
/// # Panics
/// When it is not installed although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn chromium() -> Option<PathBuf> {
    let program = dblock_servers::chromium();
    is_there(program.is_some(), "Chromium")?;
    program
}

fn is_there(installed: bool, program: &str) -> Option<()> {
    if installed {
        return Some(());
    }
    assert!(
        !crate::servers_are_required(),
        "DBLOCK_TEST_REQUIRE_SERVERS=1, but {program} is not installed"
    );
    left_out(program);
    None
}

fn left_out(program: &str) {
    // Not `eprintln`, which the test runner hides while a test passes.
    let _ = writeln!(
        std::io::stderr(),
        "LEFT OUT: a test needs a {program} of its own, which is not installed"
    );
}
