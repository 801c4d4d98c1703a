//! A store of each kind for one test, and managers of it.

mod place;
mod row;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::store::{MemoryStore, Store};
use dblock::{LockGuard, LockManager, LockManagerBuilder, LockRow, Source as _, StoreSource, open};
use dblock_conformance::Fixture;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use tempfile::TempDir;
use uuid::Uuid;

pub use self::row::Row;

/// The stores, and memory once more under paused time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// PostgreSQL.
    Postgres,
    /// MySQL or MariaDB.
    MySql,
    /// A SQLite file.
    Sqlite,
    /// Rows in memory.
    Memory,
    /// Rows in memory, under tokio's paused time.
    PausedMemory,
}

/// Rows of its own for one test. Clones share them.
#[derive(Debug, Clone)]
pub struct Backend {
    kind: Kind,
    /// The lock table's name.
    pub table: String,
    place: Arc<Place>,
}

/// Where the rows are, with a pool of the test's own: the "application's".
#[derive(Debug)]
pub enum Place {
    /// A table on the server of the URL.
    Postgres(PgPool, String),
    /// A table on the server of the URL.
    MySql(MySqlPool, String),
    /// A file in a folder that goes away with the test.
    Sqlite(SqlitePool, TempDir),
    /// Rows in memory.
    Memory(MemoryStore),
}

impl Backend {
    /// Fresh rows; `None` when the server is not given.
    pub async fn new(kind: Kind) -> Option<Self> {
        let backend = Self::without_table(kind).await?;
        built(|| backend.builder().auto_migrate(true)).await;
        Some(backend)
    }

    /// As [`new`](Self::new), before anybody has created the table.
    pub async fn without_table(kind: Kind) -> Option<Self> {
        let place = match kind {
            Kind::Postgres => {
                let url = crate::postgres_url()?;
                let pool = PgPoolOptions::new().max_connections(3).connect(&url).await;
                Place::Postgres(pool.unwrap(), url)
            }
            Kind::MySql => {
                let url = crate::mysql_url()?;
                let pool = MySqlPoolOptions::new().max_connections(3).connect(&url).await;
                Place::MySql(pool.unwrap(), url)
            }
            Kind::Sqlite => {
                let folder = tempfile::tempdir().unwrap();
                let options = SqliteConnectOptions::new()
                    .filename(folder.path().join("locks.db"))
                    .create_if_missing(true)
                    .busy_timeout(Duration::from_secs(10));
                let pool = SqlitePoolOptions::new()
                    .max_connections(3)
                    .connect_with(options)
                    .await;
                Place::Sqlite(pool.unwrap(), folder)
            }
            Kind::Memory | Kind::PausedMemory => Place::Memory(MemoryStore::new()),
        };
        Some(Self {
            kind,
            table: format!("suite_{}", Uuid::now_v7().simple()),
            place: Arc::new(place),
        })
    }

    /// The kind of store.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the rows are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A URL for another process; `None` for memory.
    pub fn url(&self) -> Option<String> {
        match self.place() {
            Place::Postgres(_, url) | Place::MySql(_, url) => Some(url.clone()),
            Place::Sqlite(_, folder) => {
                Some(format!("sqlite://{}", folder.path().join("locks.db").display()))
            }
            Place::Memory(_) => None,
        }
    }

    /// The source of managers: the test's pool, or the memory.
    pub fn source(&self) -> StoreSource {
        match self.place() {
            Place::Postgres(pool, _) => pool.into(),
            Place::MySql(pool, _) => pool.into(),
            Place::Sqlite(pool, _) => pool.into(),
            Place::Memory(store) => store.clone().into_source(),
        }
    }

    /// Settings of a new manager on the same rows.
    pub fn builder(&self) -> LockManagerBuilder {
        LockManager::builder(self.source()).table(&self.table)
    }

    /// A new manager on the same rows: what another process would have.
    pub async fn manager(&self) -> LockManager {
        built(|| self.builder()).await
    }

    /// A new handle on a table of the backend's database, beneath any manager.
    fn handle(&self, table: &str) -> Arc<dyn Store> {
        match self.place() {
            Place::Postgres(pool, _) => open::postgres::open((*pool.connect_options()).clone(), table),
            Place::MySql(pool, _) => open::mysql::open((*pool.connect_options()).clone(), table),
            Place::Sqlite(pool, _) => open::sqlite::open((*pool.connect_options()).clone(), table),
            Place::Memory(store) => Ok(Arc::new(store.clone()) as Arc<dyn Store>),
        }
        .unwrap()
    }

    /// Executes SQL on the test's own connection, with the table's name for `{table}`.
    ///
    /// # Panics
    /// On memory, and when the database refuses.
    pub async fn execute(&self, sql: &str) {
        let sql: Arc<str> = sql.replace("{table}", &self.table).into();
        let query = || sqlx::raw_sql(AssertSqlSafe(Arc::clone(&sql)));
        match self.place() {
            Place::Postgres(pool, _) => drop(query().execute(pool).await.unwrap()),
            Place::MySql(pool, _) => loop {
                // Rows of a range are locked one by one: a deadlock is the statement's to repeat.
                match query().execute(pool).await {
                    Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("40001") => {}
                    answer => {
                        answer.unwrap();
                        break;
                    }
                }
            },
            Place::Sqlite(pool, _) => drop(query().execute(pool).await.unwrap()),
            Place::Memory(_) => panic!("memory takes no SQL"),
        }
    }

    /// Removes the tables of a test that passed.
    pub async fn clean_up(&self) {
        if matches!(self.kind, Kind::Postgres | Kind::MySql) {
            self.execute("DROP TABLE IF EXISTS {table}").await;
            self.execute("DROP TABLE IF EXISTS {table}_version").await;
            self.execute("DROP TABLE IF EXISTS {table}_record").await;
        }
    }
}

impl Fixture for Backend {
    async fn store(&self) -> Arc<dyn Store> {
        self.handle(&self.table)
    }

    async fn place(&self, rows: &[LockRow]) -> bool {
        place::place(self, rows).await;
        true
    }

    async fn bare(&self) -> Option<Arc<dyn Store>> {
        let has_tables = !matches!(self.place(), Place::Memory(_));
        has_tables.then(|| self.handle(&format!("{}_bare", self.table)))
    }
}

/// Builds a manager, and tries again when the store could not be reached: a machine may stall for longer than
/// the store's patience.
async fn built(builder: impl Fn() -> LockManagerBuilder) -> LockManager {
    let mut tries = 0..5;
    loop {
        match builder().build().await {
            Err(error) if error.is_retryable() && tries.next().is_some() => {}
            manager => return manager.unwrap(),
        }
    }
}

/// Waits until the lease has been renewed.
pub async fn renewed(guard: &LockGuard) {
    let mut before = guard.remaining();
    eventually("the lease is renewed", || {
        let now = guard.remaining();
        std::mem::replace(&mut before, now) < now
    })
    .await;
}

/// Waits until `done` is true, in real time, for at most half a minute.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(30), "still not: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
