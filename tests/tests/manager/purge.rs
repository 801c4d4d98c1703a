//! Rows that nobody uses go away; nothing else changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dblock::{InspectFilter, LockError, LockManager};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use tokio::task::JoinSet;

use crate::patient;

pub(crate) const HOUR: Duration = Duration::from_hours(1);
pub(crate) const DAY: Duration = Duration::from_hours(24);

on_every_store!(less_than_a_day_is_refused, nothing_is_purged_after_shutdown);
on_every_store!(
    databases:
    a_purge_takes_many_steps,
    locks_hold_while_rows_are_purged,
);
on_every_store!(servers: a_locked_row_is_left_for_later);

/// As if the rows had last been used `days` days ago: those that `which` says, in all or one of the columns
/// that tell.
async fn age(backend: &Backend, columns: &[&str], days: i64, which: &str) {
    let micros = days * 86_400_000_000;
    let set: Vec<String> = columns
        .iter()
        .map(|column| format!("{column} = {column} - {micros}"))
        .collect();
    let sql = format!("UPDATE {{table}} SET {} WHERE {which}", set.join(", "));
    backend.execute(&sql).await;
}

const TIMES: [&str; 5] = [
    "expire_at",
    "wanted_until",
    "fence_token",
    "fence_ceiling",
    "acquired_at",
];

async fn keys(locks: &LockManager) -> Vec<String> {
    let rows = locks
        .admin()
        .list(InspectFilter::new().include_free())
        .await
        .unwrap();
    rows.iter().map(|row| row.key.to_string()).collect()
}

async fn less_than_a_day_is_refused(backend: Backend) {
    let too_soon = Duration::from_millis(86_399_999);
    for idle in [Duration::ZERO, HOUR, too_soon] {
        let purged = backend.manager().await.admin().purge(idle).await;
        assert!(matches!(purged, Err(LockError::Invalid { .. })), "{purged:?}");
        let built = backend.builder().purge_after(idle).build_lazy();
        assert!(matches!(built, Err(LockError::Invalid { .. })), "{built:?}");
    }
    backend.builder().purge_after(DAY).build_lazy().unwrap();
    backend.builder().purge_after(None).build_lazy().unwrap();
}

async fn nothing_is_purged_after_shutdown(backend: Backend) {
    let locks = backend.manager().await;
    locks.shutdown(Duration::ZERO).await;
    let purged = locks.admin().purge(DAY).await;
    assert!(matches!(purged, Err(LockError::Shutdown { .. })), "{purged:?}");
}

async fn a_purge_takes_many_steps(backend: Backend) {
    let locks = backend.manager().await;
    locks
        .lock("key 0")
        .options(&patient())
        .run(async {})
        .await
        .unwrap();
    // More rows like it than a step takes. To lock each takes minutes on a busy machine.
    let columns = "lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, wanted_until, acquired_at, \
                   holder, revoked";
    let more = format!(
        "INSERT INTO {{table}} (lock_key, {columns})
         WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 39)
         SELECT concat('key ', 1000 + 40 * a.n + b.n), {columns} FROM numbers a, numbers b, {{table}}"
    );
    backend.execute(&more).await;
    // More than a step between those that stay.
    let old = "lock_key NOT IN ('key 1003', 'key 1800')";
    age(&backend, &TIMES, 2, old).await;
    assert_eq!(locks.admin().purge(DAY * 3).await.unwrap(), 0);
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 1_599);
    assert_eq!(keys(&locks).await, ["key 1003", "key 1800"]);
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 0);
}

async fn a_locked_row_is_left_for_later(backend: Backend) {
    let locks = backend.manager().await;
    for name in ["a", "b"] {
        locks.lock(name).options(&patient()).run(async {}).await.unwrap();
    }
    age(&backend, &TIMES, 2, "true").await;
    let mut user = Transaction::begin(&backend).await;
    let lock = format!("SELECT 1 FROM {} WHERE lock_key = 'a' FOR UPDATE", backend.table);
    user.execute(lock).await;
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 1);
    assert_eq!(keys(&locks).await, ["a"]);
    user.rollback().await;
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 1);
}

/// Rows vanish all the time under the feet of those who take the locks.
async fn locks_hold_while_rows_are_purged(backend: Backend) {
    const TURNS: usize = 40;
    let done = Arc::new(AtomicBool::new(false));
    let purged = Arc::new(AtomicU64::new(0));
    let mut spoilers = JoinSet::new();
    for key in ["a", "b"] {
        let (backend, done) = (backend.clone(), Arc::clone(&done));
        spoilers.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let free = format!("lock_key = '{key}' AND reentrant_count = 0");
                age(&backend, &TIMES, 2, &free).await;
                // Or a store of one writer has no time for anybody else.
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let operator = backend.manager().await;
    spoilers.spawn({
        let (done, purged) = (Arc::clone(&done), Arc::clone(&purged));
        async move {
            while !done.load(Ordering::Relaxed) {
                match operator.admin().purge(DAY).await {
                    Ok(rows) => drop(purged.fetch_add(rows, Ordering::Relaxed)),
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    });

    let inside = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        // Each grant and release in the row.
        let locks = backend.builder().hand_over(false).build().await.unwrap();
        for task in 0..4 {
            let (locks, backend) = (locks.clone(), backend.clone());
            let (key, inside) = [("a", &inside[0]), ("b", &inside[1])][task % 2];
            let inside = Arc::clone(inside);
            tasks.spawn(async move {
                for _ in 0..TURNS {
                    let guard = locks.lock(key).options(&patient()).acquire().await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "two are inside of {key}");
                    let row = backend.the_row(key).await;
                    assert_eq!(row.fence_token, guard.fence_token(), "the grant is in the row");
                    assert!(!row.is_free() && row.expire_at > row.now, "{row:?}");
                    assert!(inside.swap(false, Ordering::SeqCst), "two were inside of {key}");
                    guard.release().await.unwrap();
                }
            });
        }
    }
    tasks.join_all().await;
    done.store(true, Ordering::Relaxed);
    spoilers.join_all().await;
    assert!(purged.load(Ordering::Relaxed) > 0, "no row was purged meanwhile");
}
