//! A test's own table, and the requests that tests make.

use std::fmt::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use dblock::Key;
use dblock::store::{
    Acquire, Action, Extend, Outcome, PostgresStore, Request, Store, StoreError, StoreErrorKind,
};
use dblock_tests::postgres_url;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection};
use uuid::Uuid;

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A test's own table, and ways to it.
pub(crate) struct Bench {
    pub(crate) url: String,
    pub(crate) table: String,
}

impl Bench {
    /// `None` without a server. The table is not there yet.
    pub(crate) async fn empty(name: &str) -> Option<Self> {
        let bench = Self {
            url: postgres_url()?,
            table: format!("test_{name}"),
        };
        let mut user = bench.user().await;
        let drop = format!("DROP TABLE IF EXISTS {0}, {0}_version", bench.table);
        sqlx::query(AssertSqlSafe(drop)).execute(&mut user).await.unwrap();
        Some(bench)
    }

    /// The same with the table.
    pub(crate) async fn new(name: &str) -> Option<Self> {
        let bench = Self::empty(name).await?;
        bench.store().migrate().await.unwrap();
        Some(bench)
    }

    /// A store as another process has it: with connections of its own.
    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::open(&self.url, &self.table).unwrap()
    }

    /// A store whose connections have other options.
    pub(crate) fn store_with(&self, change: impl FnOnce(&mut String)) -> PostgresStore {
        let mut url = self.url.clone();
        url.push(if url.contains('?') { '&' } else { '?' });
        change(&mut url);
        PostgresStore::open(&url, &self.table).unwrap()
    }

    /// Where the server listens.
    pub(crate) fn address(&self) -> SocketAddr {
        let options: PgConnectOptions = self.url.parse().unwrap();
        let mut addresses = (options.get_host(), options.get_port())
            .to_socket_addrs()
            .unwrap();
        addresses.next().unwrap()
    }

    /// A store that finds the server at another address.
    pub(crate) fn store_at(&self, address: SocketAddr) -> PostgresStore {
        self.store_with(|url| write!(url, "host={}&port={}", address.ip(), address.port()).unwrap())
    }

    /// A connection of the user's.
    pub(crate) async fn user(&self) -> PgConnection {
        self.url
            .parse::<PgConnectOptions>()
            .unwrap()
            .disable_statement_logging()
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn run(&self, sql: &str) {
        let sql = sql.replace("{t}", &self.table);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.user().await)
            .await
            .unwrap();
    }
}

pub(crate) fn key(name: impl AsRef<str>) -> Key {
    Key::new(None, name.as_ref()).unwrap()
}

pub(crate) fn acquire(name: impl AsRef<str>) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), TTL, "host/1 test");
    Request::new(key(name), Uuid::now_v7(), Action::Acquire(ask))
}

/// The payload of an acquire.
pub(crate) fn ask_of(request: &mut Request) -> &mut Acquire {
    match &mut request.action {
        Action::Acquire(ask) => ask,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn waiting(name: impl AsRef<str>, wish: Duration) -> Request {
    let mut request = acquire(name);
    ask_of(&mut request).wanted_for = Some(wish);
    request
}

/// Waits, and wants to be next.
pub(crate) fn queueing(name: impl AsRef<str>, wish: Duration) -> Request {
    let mut request = waiting(name, wish);
    ask_of(&mut request).queue = Some(Duration::ZERO);
    request
}

pub(crate) fn extend(of: &Request, count: u32) -> Request {
    Request::new(
        of.key.clone(),
        of.lease_id,
        Action::Extend(Extend::new(count, TTL)),
    )
}

pub(crate) fn release(of: &Request) -> Request {
    Request::new(of.key.clone(), of.lease_id, Action::Release)
}

pub(crate) async fn one(store: &PostgresStore, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(std::slice::from_ref(request)).await.pop().unwrap()
}

/// Asks again after a conflict, which was not carried out: on a machine that stalls an insert may wait too
/// long for another's commit.
pub(crate) async fn ask(store: &PostgresStore, request: &Request) -> Outcome {
    for _ in 0..10 {
        match one(store, request).await {
            Err(error) if error.kind() == StoreErrorKind::Conflict => {}
            answer => return answer.unwrap(),
        }
    }
    panic!("{request:?} meets nothing but conflicts");
}

/// Asks again while the row is locked by somebody else.
pub(crate) async fn insist(store: &PostgresStore, request: &Request) -> Outcome {
    loop {
        match ask(store, request).await {
            Outcome::Skipped => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
}

pub(crate) fn token(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Granted { fence_token, .. } => *fence_token,
        other => panic!("not granted: {other:?}"),
    }
}
