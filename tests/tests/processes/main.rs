//! Eight OS processes of eight tasks each on one key, and now and then the holder is killed with SIGKILL:
//! no overlap, no lost update, tokens only grow, and no row is held after everyone left.
//!
//! Runs for at least `DBLOCK_PROCESS_SECONDS` on each store, 6 by default; 30 is the full run. The servers are those
//! of `DBLOCK_TEST_POSTGRES_URL` and `DBLOCK_TEST_MYSQL_URL`; a store without one is left out, loudly, or
//! fails when `DBLOCK_TEST_REQUIRE_SERVERS=1`. `--nocapture` shows the figures.
//!
//! Overlaps are found by time: every process writes when a body begins and ends, on a clock that they share.
//! Lost updates are found by money: the balance must be the sum of the updates that were committed.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod crew;
mod history;

use std::io::Write as _;
use std::time::{Duration, Instant};

use dblock::InspectFilter;
use dblock_tests::hot_account::Account;
use sqlx::{AssertSqlSafe, Connection as _, MySqlConnection, PgConnection};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crew::Crew;
use history::History;

const PROCESSES: usize = 8;

/// From a takeover to the next kill.
const WORK: Duration = Duration::from_secs(1);

/// How long it may take to catch a process inside, or until its lock is taken over. Machines stall for seconds.
const FIND_A_HOLDER: Duration = Duration::from_secs(30);

/// The full run.
const FULL_LENGTH: Duration = Duration::from_secs(30);

/// One store at a time, so that the figures mean something.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test]
async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("hot.db").display());
    torture("SQLite", &url).await;
}

#[tokio::test]
async fn postgres() {
    let Some(server) = server("DBLOCK_TEST_POSTGRES_URL") else {
        return;
    };
    let name = fresh_name();
    let mut connection = PgConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    torture("PostgreSQL", &with_database(&server, &name)).await;
    let remove = AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
    sqlx::raw_sql(remove).execute(&mut connection).await.unwrap();
}

#[tokio::test]
async fn mysql() {
    let Some(server) = server("DBLOCK_TEST_MYSQL_URL") else {
        return;
    };
    let name = fresh_name();
    let mut connection = MySqlConnection::connect(&server).await.unwrap();
    let create = AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::raw_sql(create).execute(&mut connection).await.unwrap();
    torture("MySQL", &with_database(&server, &name)).await;
    let remove = AssertSqlSafe(format!("DROP DATABASE {name}"));
    sqlx::raw_sql(remove).execute(&mut connection).await.unwrap();
}

/// `None` when the server is not given and may be left out.
fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        assert!(
            std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").as_deref() != Ok("1"),
            "DBLOCK_TEST_REQUIRE_SERVERS=1, but {variable} is not set"
        );
        // Not `eprintln!`, which the test runner keeps to itself.
        let _ = writeln!(
            std::io::stderr(),
            "LEFT OUT: the processes test, because {variable} is not set"
        );
    }
    url
}

fn fresh_name() -> String {
    format!("dblock_processes_{}", uuid::Uuid::now_v7().simple())
}

fn with_database(server: &str, name: &str) -> String {
    let (authority, _) = server.rsplit_once('/').unwrap();
    format!("{authority}/{name}")
}

/// The whole test on one store.
async fn torture(store: &str, url: &str) {
    let _turn = TURN.lock().await;
    let seconds = std::env::var("DBLOCK_PROCESS_SECONDS").map_or(6, |text| text.parse().unwrap());
    let length = Duration::from_secs(seconds);
    let logs = tempfile::tempdir().unwrap();
    let account = Account::connect(url).await.unwrap();
    account.create().await.unwrap();
    let locks = account.lock_manager().await.unwrap();

    let start = Instant::now();
    let mut crew = Crew::start(url, logs.path());
    let end = start + length;
    let mut next_kill = start + WORK;
    // At least once.
    loop {
        tokio::time::sleep_until(next_kill.into()).await;
        let kill = timeout(FIND_A_HOLDER, crew.kill_the_holder(&locks)).await;
        kill.expect("somebody is inside now and then");
        // The killed lease must have ended when everyone leaves, for then no row may be held.
        let taken_over = timeout(FIND_A_HOLDER, crew.until_taken_over()).await;
        taken_over.expect("a dead process' lock is taken over");
        next_kill = Instant::now() + WORK;
        if next_kill >= end {
            break;
        }
    }
    tokio::time::sleep_until(next_kill.into()).await;
    crew.dismiss().await;

    let held = locks.inspect(InspectFilter::new()).await.unwrap();
    assert!(held.is_empty(), "held after everyone left: {held:#?}");
    let history = History::read(&crew.former);
    history.print(store, length);
    history.check(length);
    let (balance, committed, updates) = account.totals().await.unwrap();
    eprintln!(
        "  {updates} updates committed, {} lost to the balance",
        committed - balance
    );
    assert_eq!(balance, committed, "updates were lost");
    locks.shutdown(Duration::from_secs(1)).await;
}
