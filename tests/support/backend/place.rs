//! Rows in any state, written past dblock.

use dblock::conformance::open;
use dblock::store::LockRow;
use sqlx::AssertSqlSafe;

use super::{Backend, Place};

/// What a row without a successor has there.
const NOBODY: &str = "next_lease, next_owner, next_holder, next_ttl, next_spare, next_since, next_until";

/// Replaces the row of a key, every column of it.
pub(super) async fn place(backend: &Backend, row: &LockRow) {
    let table = &backend.table;
    let delete = |parameter: &str| AssertSqlSafe(format!("DELETE FROM {table} WHERE lock_key = {parameter}"));
    let insert = |parameter: fn(usize) -> String| {
        let next = row.next.as_ref().map_or(String::new(), |_| format!(", {NOBODY}"));
        let count = if row.next.is_some() { 18 } else { 11 };
        let parameters: Vec<_> = (1..=count).map(parameter).collect();
        AssertSqlSafe(format!(
            "INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
             fence_ceiling, wanted_until, acquired_at, holder, revoked{next}) VALUES ({})",
            parameters.join(", ")
        ))
    };
    // The databases differ in the type of the key and in how they count parameters.
    macro_rules! write {
        ($pool:expr, $key:expr, $parameter:expr) => {{
            let mut transaction = $pool.begin().await.unwrap();
            let query = sqlx::query(delete(&$parameter(1))).bind($key);
            query.execute(&mut *transaction).await.unwrap();
            let mut query = sqlx::query(insert($parameter))
                .bind($key)
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
            transaction.commit().await.unwrap();
        }};
    }
    let numbered = |n: usize| format!("${n}");
    let plain = |_: usize| "?".to_owned();
    match backend.place() {
        Place::Postgres(pool, _) => write!(pool, row.key.as_str(), numbered),
        Place::MySql(pool, _) => write!(pool, row.key.as_str().as_bytes(), plain),
        Place::Sqlite(pool, _) => write!(pool, row.key.as_str(), plain),
        Place::Memory(store) => open::memory::place(store, row.clone()),
    }
}
