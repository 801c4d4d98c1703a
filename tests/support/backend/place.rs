//! Rows in any state, written past dblock.

use dblock::{LockRow, open};
use sqlx::AssertSqlSafe;

use super::{Backend, Place};

const HELD: &str = "lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
                    wanted_until, acquired_at, holder, revoked";

const NEXT: &str = "next_lease, next_owner, next_holder, next_ttl, next_spare, next_since, next_until";

/// Writes rows in the place of those with the same keys, every column of them.
pub(super) async fn place(backend: &Backend, rows: &[LockRow]) {
    let table = &backend.table;
    let delete = |parameter: &str| AssertSqlSafe(format!("DELETE FROM {table} WHERE lock_key = {parameter}"));
    let insert = |row: &LockRow, parameter: fn(usize) -> String| {
        // A row without a successor has what these columns are by default.
        let (columns, count) = match row.next {
            Some(_) => (format!("{HELD}, {NEXT}"), 18),
            None => (HELD.to_owned(), 11),
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
                    .bind(row.expire_at)
                    .bind(row.lease_id)
                    .bind(row.fence_token)
                    .bind(row.fence_ceiling)
                    .bind(row.wanted_until)
                    .bind(row.acquired_at)
                    .bind(row.holder.as_str())
                    .bind(row.revoked);
                if let Some(next) = &row.next {
                    query = query
                        .bind(next.lease_id)
                        .bind(next.owner)
                        .bind(next.holder.as_str())
                        .bind(next.ttl)
                        .bind(i64::from(next.spare_tokens))
                        .bind(next.since)
                        .bind(next.until);
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
