//! A look at the rows of a store that does not go through dblock.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{MemoryStore, Store as _};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{Backend, Kind, Place};

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

/// The database's clock in SQL, in µs.
pub(super) fn clock(kind: Kind) -> &'static str {
    match kind {
        Kind::Postgres => "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        Kind::MySql => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
        Kind::Sqlite => "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
        Kind::Memory | Kind::PausedMemory => unreachable!("memory takes no SQL"),
    }
}

impl Backend {
    /// The row of a key, whole with its namespace. Read on a connection of the test's own.
    pub async fn row(&self, key: &str) -> Option<Row> {
        let columns = "lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
                       wanted_until, acquired_at, holder";
        let read = |parameter: &str| {
            let (table, clock) = (&self.table, clock(self.kind));
            AssertSqlSafe(format!(
                "SELECT {columns}, {clock} AS now FROM {table} WHERE lock_key = {parameter}"
            ))
        };
        match self.place() {
            Place::Postgres(pool, _) => {
                let query = sqlx::query_as(read("$1")).bind(key);
                query.fetch_optional(pool).await
            }
            Place::MySql(pool, _) => {
                let query = sqlx::query_as(read("?")).bind(key.as_bytes());
                query.fetch_optional(pool).await
            }
            Place::Sqlite(pool, _) => {
                let query = sqlx::query_as(read("?")).bind(key);
                query.fetch_optional(pool).await
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
}

async fn memory_row(store: &MemoryStore, key: &str) -> Option<Row> {
    let filter = InspectFilter::new().include_free().prefix(key);
    let rows = store.inspect(&filter).await.unwrap();
    let row = rows.into_iter().find(|row| row.key.as_str() == key)?;
    Some(Row {
        lock_owner: row.owner,
        reentrant_count: i32::try_from(row.reentrant_count).unwrap(),
        expire_at: row.expire_at.as_micros(),
        lease_id: row.lease_id,
        fence_token: row.fence_token,
        fence_ceiling: row.fence_ceiling,
        wanted_until: row.wanted_until.as_micros(),
        acquired_at: row.acquired_at.as_micros(),
        holder: row.holder,
        now: row.now.as_micros(),
    })
}
