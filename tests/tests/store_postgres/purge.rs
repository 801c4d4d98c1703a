//! A purge disturbs nobody.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::Store;
use sqlx::{AssertSqlSafe, Connection};

use crate::bench::{Bench, acquire, ask, token};

const DAY: Duration = Duration::from_hours(24);

async fn keys(store: &impl Store) -> Vec<String> {
    let rows = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    rows.into_iter().map(|row| row.key.to_string()).collect()
}

/// A row that a user's transaction has locked is left for another time, not waited for.
#[tokio::test]
async fn a_locked_row_is_left_out() {
    let Some(bench) = Bench::new("purge_locked").await else {
        return;
    };
    let store = bench.store();
    for name in ["a", "b"] {
        token(&ask(&store, &acquire(name)).await);
    }
    bench.run("UPDATE {t} SET expire_at = 0, fence_ceiling = 0").await;
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = format!("SELECT FROM {} WHERE lock_key = 'a' FOR SHARE", bench.table);
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 1);
    assert_eq!(keys(&store).await, ["a"]);
    transaction.rollback().await.unwrap();
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 1);
}
