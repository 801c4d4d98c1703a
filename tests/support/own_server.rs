//! Servers of the test's own, that it may kill.

use std::io::Write as _;
use std::path::PathBuf;

use dblock_servers::pgbouncer::{self, Setup};
use dblock_servers::{Kind, Pair, Purpose, Server, is_installed};

use crate::line::Database;

/// A fresh server, whose commits do not wait for the disk. `None`, said loudly, when its programs are not installed.
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

/// A `PostgreSQL` primary with a synchronous standby. `None`, said loudly, when the programs are not installed.
///
/// # Panics
/// When they do not start.
pub async fn pair() -> Option<Pair> {
    is_there(is_installed(Kind::Postgres), "PostgreSQL")?;
    let started = Pair::start(Purpose::Tests).await;
    Some(started.unwrap_or_else(|error| panic!("{error:#}")))
}

/// A `PgBouncer` before the `PostgreSQL` server for tests. `None`, said loudly, when one of them is not there.
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
    // Not `eprintln`, which the test runner hides while a test passes.
    let _ = writeln!(
        std::io::stderr(),
        "LEFT OUT: a test needs a {program} of its own, which is not installed"
    );
    None
}
