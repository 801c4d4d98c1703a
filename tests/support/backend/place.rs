//! Rows in any state, written past dblock.

use std::time::Duration;

use dblock::store::clock::micros;
use dblock::store::{Acquire, Action, Request, Store as _};
use dblock::{Key, LockRow, open};
use serde_json::json;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::row::clock;
use super::{Backend, Kind, Place, Row};

const HELD: &str = "lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
                    wanted_until, acquired_at, holder, revoked";

const NEXT: &str = "next_lease, next_owner, next_holder, next_ttl, next_spare, next_since, next_until";

/// The column that says who shares the lock.
fn shared(row: &LockRow) -> Option<String> {
    let holds: Vec<_> = row
        .shared
        .iter()
        .map(|hold| {
            json!({
                "lease": hold.lease_id.to_string(), "holder": hold.holder, "count": hold.count,
                "number": hold.number, "until": hold.expire_at.as_micros(),
            })
        })
        .collect();
    let next = row.next.as_ref().and_then(|next| {
        let (lease, owner) = (next.lease_id.to_string(), next.owner.to_string());
        Some(json!({ "lease": lease, "owner": owner, "limit": next.limit? }))
    });
    (!holds.is_empty() || next.is_some())
        .then(|| json!({ "phase": row.lease_id.to_string(), "holds": holds, "next": next }).to_string())
}

/// Writes rows in the place of those with the same keys, every column of them.
pub(super) async fn place(backend: &Backend, rows: &[LockRow]) {
    let table = &backend.table;
    let delete = |parameter: &str| AssertSqlSafe(format!("DELETE FROM {table} WHERE lock_key = {parameter}"));
    let insert = |row: &LockRow, parameter: fn(usize) -> String| {
        // A row without a successor has what these columns are by default.
        let (columns, count) = match row.next {
            Some(_) => (format!("{HELD}, shared, {NEXT}"), 19),
            None => (format!("{HELD}, shared"), 12),
        };
        let parameters: Vec<_> = (1..=count).map(parameter).collect();
        let parameters = parameters.join(", ");
        AssertSqlSafe(format!("INSERT INTO {table} ({columns}) VALUES ({parameters})"))
    };
    // The databases differ in the type of the key and in how they name parameters.
    macro_rules! write {
        ($pool:expr, $key:expr, $parameter:expr) => {{
            let mut transaction = $pool.begin().await.unwrap();
            for row in rows {
                let query = sqlx::query(delete(&$parameter(1))).bind($key(row));
                query.execute(&mut *transaction).await.unwrap();
                let mut query = sqlx::query(insert(row, $parameter))
                    .bind($key(row))
                    .bind(row.owner)
                    .bind(i32::try_from(row.reentrant_count).unwrap())
                    .bind(row.expire_at.as_micros())
                    .bind(row.lease_id)
                    .bind(row.fence_token)
                    .bind(row.fence_ceiling)
                    .bind(row.wanted_until.as_micros())
                    .bind(row.acquired_at.as_micros())
                    .bind(row.holder.as_str())
                    .bind(row.revoked)
                    .bind(shared(row));
                if let Some(next) = &row.next {
                    query = query
                        .bind(next.lease_id)
                        .bind(next.owner)
                        .bind(next.holder.as_str())
                        .bind(micros(next.ttl))
                        .bind(i64::from(next.spare_tokens))
                        .bind(next.since.as_micros())
                        .bind(next.until.as_micros());
                }
                query.execute(&mut *transaction).await.unwrap();
            }
            transaction.commit().await.unwrap();
        }};
    }
    let numbered = |n: usize| format!("${n}");
    let plain = |_: usize| "?".to_owned();
    let text = |row: &LockRow| row.key.as_str().to_owned();
    let bytes = |row: &LockRow| text(row).into_bytes();
    match backend.place() {
        Place::Postgres(pool, _) => write!(pool, text, numbered),
        Place::MySql(pool, _) => write!(pool, bytes, plain),
        Place::Sqlite(pool, _) => write!(pool, text, plain),
        Place::Memory(store) => open::memory::place(store, rows),
    }
}

impl Backend {
    /// Leaves a lease of `ttl` behind, as a process does that dies while it is inside.
    pub async fn die_inside(&self, key: &str, ttl: Duration) -> Row {
        let micros = i64::try_from(ttl.as_micros()).unwrap();
        let insert = |key: &str, ids: [&str; 2]| {
            let ([owner, lease], clock) = (ids, clock(self.kind));
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
                let query = sqlx::query(insert("$1", ["$2", "$3"]));
                let query = query.bind(key).bind(owner).bind(lease);
                query.execute(pool).await.unwrap();
            }
            Place::MySql(pool, _) => {
                let query = sqlx::query(insert("?", ["?", "?"]));
                let query = query.bind(key.as_bytes()).bind(owner).bind(lease);
                query.execute(pool).await.unwrap();
            }
            Place::Sqlite(pool, _) => {
                let query = sqlx::query(insert("?", ["?", "?"]));
                let query = query.bind(key).bind(owner).bind(lease);
                query.execute(pool).await.unwrap();
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
}
