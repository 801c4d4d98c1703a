//! A store of each kind for one test, with a look at its rows that does not go through dblock.

mod place;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::store::{Acquire, Action, MemoryStore, Request, Store};
use dblock::{InspectFilter, Key, LockManager, LockManagerBuilder, LockRow, StoreSource, open};
use dblock_conformance::Fixture;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{AssertSqlSafe, MySqlPool, PgPool, SqlitePool};
use tempfile::TempDir;
use uuid::Uuid;

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

/// A lock row as the database has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The holder, or the last one.
    pub lock_owner: Uuid,
    /// The number of holds; 0 is free.
    pub reentrant_count: i32,
    /// End of the lease, in µs on the store's clock.
    pub expire_at: i64,
    /// The lease that holds or last held it.
    pub lease_id: Uuid,
    /// The last token.
    pub fence_token: i64,
    /// The largest token that anyone may have been given.
    pub fence_ceiling: i64,
    /// Until when somebody waits.
    pub wanted_until: i64,
    /// When the lease was granted.
    pub acquired_at: i64,
    /// Host, process and function.
    pub holder: String,
    /// The store's clock when the row was read.
    pub now: i64,
}

type Columns = (Uuid, i32, i64, Uuid, i64, i64, i64, i64, String, i64);

impl<'r, R: sqlx::Row> sqlx::FromRow<'r, R> for Row
where
    Columns: sqlx::FromRow<'r, R>,
{
    fn from_row(row: &'r R) -> Result<Self, sqlx::Error> {
        let (
            lock_owner,
            reentrant_count,
            expire_at,
            lease_id,
            fence_token,
            fence_ceiling,
            wanted_until,
            acquired_at,
            holder,
            now,
        ) = Columns::from_row(row)?;
        Ok(Self {
            lock_owner,
            reentrant_count,
            expire_at,
            lease_id,
            fence_token,
            fence_ceiling,
            wanted_until,
            acquired_at,
            holder,
            now,
        })
    }
}

impl Row {
    /// Nobody is inside.
    pub fn is_free(&self) -> bool {
        self.reentrant_count == 0
    }
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
            Place::Memory(store) => store.clone().into(),
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

    /// The row of a key, whole with its namespace. Read on a connection of the test's own.
    pub async fn row(&self, key: &str) -> Option<Row> {
        let columns = "lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
                       wanted_until, acquired_at, holder";
        let read = |clock: &str, parameter: &str| {
            let table = &self.table;
            AssertSqlSafe(format!(
                "SELECT {columns}, {clock} AS now FROM {table} WHERE lock_key = {parameter}"
            ))
        };
        match self.place() {
            Place::Postgres(pool, _) => {
                let clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
                sqlx::query_as(read(clock, "$1"))
                    .bind(key)
                    .fetch_optional(pool)
                    .await
            }
            Place::MySql(pool, _) => {
                let clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
                let query = sqlx::query_as(read(clock, "?")).bind(key.as_bytes());
                query.fetch_optional(pool).await
            }
            Place::Sqlite(pool, _) => {
                let clock = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
                sqlx::query_as(read(clock, "?"))
                    .bind(key)
                    .fetch_optional(pool)
                    .await
            }
            Place::Memory(store) => return memory_row(store, key).await,
        }
        .unwrap()
    }

    /// As [`row`](Self::row), of a key that has been locked before.
    pub async fn the_row(&self, key: &str) -> Row {
        let row = self.row(key).await;
        row.unwrap_or_else(|| panic!("no row for {key:?}"))
    }

    /// Reads the row until it is as wished, for at most `within`. The row.
    pub async fn until(&self, key: &str, within: Duration, wish: impl Fn(&Row) -> bool) -> Row {
        let since = tokio::time::Instant::now();
        loop {
            let row = self.row(key).await;
            if let Some(row) = row.as_ref().filter(|row| wish(row)) {
                return row.clone();
            }
            assert!(
                since.elapsed() < within,
                "after {within:?} the row is still {row:?}"
            );
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Waits until the row is free, which must be long before any ttl of 30 seconds.
    pub async fn until_free(&self, key: &str) {
        self.until(key, Duration::from_secs(15), Row::is_free).await;
    }

    /// Leaves a lease of `ttl` behind, as a process does that dies while it is inside.
    pub async fn die_inside(&self, key: &str, ttl: Duration) -> Row {
        let micros = i64::try_from(ttl.as_micros()).unwrap();
        let insert = |clock: &str, key: &str, ids: [&str; 2]| {
            let [owner, lease] = ids;
            AssertSqlSafe(format!(
                "INSERT INTO {} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
                 fence_ceiling, wanted_until, acquired_at, holder, revoked) \
                 SELECT {key}, {owner}, 1, now + {micros}, {lease}, now, now, 0, now, 'host/dead', {no} \
                 FROM (SELECT {clock} AS now) clock",
                self.table,
                no = if self.kind == Kind::Postgres { "false" } else { "0" },
            ))
        };
        let (owner, lease) = (Uuid::now_v7(), Uuid::now_v7());
        match self.place() {
            Place::Postgres(pool, _) => {
                let clock = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
                let query = sqlx::query(insert(clock, "$1", ["$2", "$3"]));
                query
                    .bind(key)
                    .bind(owner)
                    .bind(lease)
                    .execute(pool)
                    .await
                    .unwrap();
            }
            Place::MySql(pool, _) => {
                let clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
                let query = sqlx::query(insert(clock, "?", ["?", "?"]));
                let query = query.bind(key.as_bytes()).bind(owner).bind(lease);
                query.execute(pool).await.unwrap();
            }
            Place::Sqlite(pool, _) => {
                let clock = "CAST(unixepoch('subsec') * 1000000 AS INTEGER)";
                let query = sqlx::query(insert(clock, "?", ["?", "?"]));
                query
                    .bind(key)
                    .bind(owner)
                    .bind(lease)
                    .execute(pool)
                    .await
                    .unwrap();
            }
            Place::Memory(store) => {
                let action = Action::Acquire(Acquire::new(owner, ttl, "host/dead"));
                let request = Request::new(Key::new(None, key).unwrap(), lease, action);
                for answer in store.apply(&[request]).await {
                    answer.unwrap();
                }
            }
        }
        self.the_row(key).await
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

/// Builds a manager, and tries again when the store could not be reached: a machine may stall for longer than the
/// store's patience.
async fn built(builder: impl Fn() -> LockManagerBuilder) -> LockManager {
    let mut tries = 0..5;
    loop {
        match builder().build().await {
            Err(error) if error.is_retryable() && tries.next().is_some() => {}
            manager => return manager.unwrap(),
        }
    }
}

async fn memory_row(store: &MemoryStore, key: &str) -> Option<Row> {
    let filter = InspectFilter::new().include_free().prefix(key);
    let rows = store.inspect(&filter).await.unwrap();
    let row = rows.into_iter().find(|row| row.key.as_str() == key)?;
    Some(Row {
        lock_owner: row.owner,
        reentrant_count: i32::try_from(row.reentrant_count).unwrap(),
        expire_at: row.expire_at,
        lease_id: row.lease_id,
        fence_token: row.fence_token,
        fence_ceiling: row.fence_ceiling,
        wanted_until: row.wanted_until,
        acquired_at: row.acquired_at,
        holder: row.holder,
        now: row.now,
    })
}

/// Waits until `done` is true, in real time, for at most half a minute.
pub async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(30), "still not: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
