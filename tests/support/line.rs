//! A lock table on a real server, reached through a proxy that breaks the line, and directly.

#![allow(clippy::missing_panics_doc, reason = "a test fails by panicking")]

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use dblock::store::{MySqlStore, PostgresStore, Store};
use dblock::{LockGuard, LockManager, LockRow};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, Row};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::faulty_store::row;
use crate::proxy::{Proxy, Trick};

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL
    Postgres,
    /// MySQL or MariaDB
    MySql,
}

impl Database {
    /// The variable with the URL of a superuser on a throw-away server.
    fn variable(self) -> &'static str {
        match self {
            Self::Postgres => "DBLOCK_TEST_POSTGRES_URL",
            Self::MySql => "DBLOCK_TEST_MYSQL_URL",
        }
    }

    /// The server's URL, or `None` after saying loudly that the test is left out.
    pub fn url(self) -> Option<String> {
        let url = std::env::var(self.variable()).ok();
        if url.is_none() {
            assert!(
                std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").as_deref() != Ok("1"),
                "DBLOCK_TEST_REQUIRE_SERVERS=1, but {} is not set",
                self.variable()
            );
            eprintln!(
                "LEFT OUT: a {self:?} test, because {} is not set",
                self.variable()
            );
        }
        url
    }

    fn store(self, url: &str, table: &str) -> Arc<dyn Store> {
        match self {
            Self::Postgres => Arc::new(PostgresStore::open(url, table).expect("a good URL")),
            Self::MySql => Arc::new(MySqlStore::open(url, table).expect("a good URL")),
        }
    }

    /// The bytes that carry `key` in a statement that changes its row.
    fn is_write_of(self, key: &str) -> crate::proxy::Test {
        match self {
            // The key is a parameter, which goes with the statement's execution and not with its preparation.
            Self::Postgres => {
                let key = key.as_bytes().to_vec();
                Box::new(move |bytes| contains(bytes, &key))
            }
            // The same for a request that is alone; a batch is text. A row that is there is written first of
            // all.
            Self::MySql => {
                let digits: Vec<_> = key.bytes().map(|byte| format!("{byte:02X}")).collect();
                let (key, digits) = (key.as_bytes().to_vec(), digits.concat());
                Box::new(move |bytes| {
                    let batch = contains(bytes, digits.as_bytes());
                    contains(bytes, &key)
                        || batch && (contains(bytes, b"COMMIT") || contains(bytes, b"INSERT INTO"))
                })
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// A test's own lock table, with a proxy before its server.
#[derive(Debug)]
pub struct Line {
    /// Which server.
    pub database: Database,
    /// The server's own URL.
    pub url: String,
    /// The lock table.
    pub table: String,
    /// The proxy.
    pub proxy: Proxy,
    direct: Arc<dyn Store>,
}

impl Line {
    /// A fresh table. `None` when no server is given.
    pub async fn new(database: Database) -> Option<Self> {
        Some(Self::to(database, database.url()?).await)
    }

    /// A fresh table on the server at `url`.
    pub async fn to(database: Database, url: String) -> Self {
        let table = format!("faults_{}", Uuid::now_v7().simple());
        let direct = database.store(&url, &table);
        direct.migrate().await.expect("the table can be made");
        let proxy = Proxy::start(address(&url));
        Self {
            database,
            url,
            table,
            proxy,
            direct,
        }
    }

    /// A manager behind the proxy, with its statements prepared.
    pub async fn manager(&self) -> LockManager {
        let (before, rest) = self.url.split_once("://").expect("a URL");
        let (user, rest) = rest.rsplit_once('@').expect("a URL with a user");
        let (_, name) = rest.split_once('/').expect("a URL with a database");
        let url = format!("{before}://{user}@{}/{name}", self.proxy.address());
        let locks = start(self.database.store(&url, &self.table));
        // A machine may stall for longer than a caller without a wait has patience.
        let options = || dblock::LockOptions::new().wait(Duration::from_secs(20));
        let body = async { locks.lock("warm").options(&options()).run(async {}).await };
        let warm = locks.lock("warm").options(&options()).run(body).await;
        warm.and_then(|nested| nested)
            .expect("the line is not broken yet");
        locks
    }

    /// A manager that goes past the proxy: another process.
    pub fn other_process(&self) -> LockManager {
        start(self.database.store(&self.url, &self.table))
    }

    /// Whether the server gets a request that is alone in one message. MySQL gets each as a transaction of several.
    pub async fn takes_one_message(&self) -> bool {
        if self.database == Database::Postgres {
            return true;
        }
        let mut user = MySqlConnection::connect(&self.url).await.expect("a connection");
        let version = sqlx::query_scalar("SELECT VERSION()").fetch_one(&mut user);
        let version: String = version.await.expect("a version");
        version.contains("MariaDB")
    }

    /// Plays `trick` on the next statement that changes the row of `key`.
    pub fn look_out(&self, key: &str, trick: Trick) {
        self.proxy.look_out(trick, self.database.is_write_of(key));
    }

    /// The row of a key, read past the proxy.
    pub async fn row(&self, key: &str) -> LockRow {
        row(&*self.direct, key).await.expect("the row is there")
    }

    /// Whether the row is held. A row that is not there is free.
    pub async fn is_held(&self, key: &str) -> bool {
        row(&*self.direct, key).await.is_some_and(|row| row.is_held())
    }

    /// Waits until nobody holds `key`, at most `limit`.
    ///
    /// # Panics
    /// When it is still held.
    pub async fn until_free(&self, key: &str, limit: Duration) {
        let started = Instant::now();
        while self.is_held(key).await {
            assert!(started.elapsed() < limit, "{key} is still held after {limit:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many of the manager's sessions have a transaction open and nothing to do.
    pub async fn idle_in_transaction(&self) -> usize {
        let ports = self.proxy.ports();
        let open: Vec<u16> = match self.database {
            Database::Postgres => {
                let sql = "SELECT client_port FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
                let mut user = PgConnection::connect(&self.url).await.expect("a connection");
                let rows = sqlx::query(sql).fetch_all(&mut user).await.expect("rows");
                rows.iter()
                    .map(|row| row.get::<i32, _>(0))
                    .filter_map(|port| port.try_into().ok())
                    .collect()
            }
            Database::MySql => {
                let sql = "SELECT p.HOST FROM information_schema.INNODB_TRX t \
                           JOIN information_schema.PROCESSLIST p ON p.ID = t.trx_mysql_thread_id WHERE p.COMMAND = 'Sleep'";
                let mut user = MySqlConnection::connect(&self.url).await.expect("a connection");
                let rows = sqlx::query(sql).fetch_all(&mut user).await.expect("rows");
                let host = |row: &sqlx::mysql::MySqlRow| row.get::<String, _>(0);
                rows.iter()
                    .filter_map(|row| host(row).rsplit_once(':')?.1.parse().ok())
                    .collect()
            }
        };
        open.iter().filter(|port| ports.contains(port)).count()
    }

    /// A transaction of the user's that checks `guard`'s lease and stays open.
    pub async fn verified(&self, guard: &LockGuard) -> OpenTransaction {
        match self.database {
            Database::Postgres => {
                let mut user = PgConnection::connect(&self.url).await.expect("a connection");
                execute_pg(&mut user, "BEGIN").await;
                guard.verify_in(&mut user).await.expect("the lease holds");
                OpenTransaction::Postgres(user)
            }
            Database::MySql => {
                let mut user = MySqlConnection::connect(&self.url).await.expect("a connection");
                execute_mysql(&mut user, "START TRANSACTION").await;
                guard.verify_in(&mut user).await.expect("the lease holds");
                OpenTransaction::MySql(user)
            }
        }
    }
}

/// A transaction of the user's.
#[derive(Debug)]
pub enum OpenTransaction {
    /// On PostgreSQL.
    Postgres(PgConnection),
    /// On MySQL or MariaDB.
    MySql(MySqlConnection),
}

impl OpenTransaction {
    /// Commits it.
    pub async fn commit(self) {
        match self {
            Self::Postgres(mut user) => execute_pg(&mut user, "COMMIT").await,
            Self::MySql(mut user) => execute_mysql(&mut user, "COMMIT").await,
        }
    }
}

async fn execute_pg(user: &mut PgConnection, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(user).await.expect("a statement");
}

async fn execute_mysql(user: &mut MySqlConnection, sql: &str) {
    let sql = AssertSqlSafe(sql.to_owned());
    sqlx::raw_sql(sql).execute(user).await.expect("a statement");
}

fn start(store: Arc<dyn Store>) -> LockManager {
    LockManager::builder(store)
        .build_lazy()
        .expect("a manager starts without asking the store")
}

fn address(url: &str) -> SocketAddr {
    let (_, rest) = url.rsplit_once('@').expect("a URL with a user");
    let (host, _) = rest.split_once('/').expect("a URL with a database");
    let mut addresses = host.to_socket_addrs().expect("an address with a port");
    addresses.next().expect("an address")
}
