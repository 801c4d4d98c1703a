//! Transactions that take a free key themselves: no lease, and nothing that a rollback leaves behind.

use std::pin::pin;
use std::time::Duration;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{Key, LockError, LockManager, begin, distributed_lock};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::{Kind, Place};
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt as _;
use sqlx::{Database, PgPool, Pool, Transaction};
use tokio::sync::oneshot;

use super::{Failure, Work, execute, is_free, nobody_enters, of_one, on_its_pool, passes};
use crate::purge::DAY;
use crate::{LONG, RENEWED, long, patient, short};

on_every_store!(servers:
    no_lease_is_seen_and_the_commit_leaves_a_free_row,
    a_rollback_leaves_what_was_there,
    an_expired_key_is_not_taken_without_a_lease,
    a_try_that_takes_nothing_does_not_keep_the_holder_from_its_renewal,
    a_ceiling_ahead_of_the_clock_is_no_loss_of_order,
    a_full_pool_does_not_stop_others,
    a_full_pool_is_no_slow_store,
    one_after_the_other_takes_the_key,
    the_body_can_check_the_lock,
);
on_every_store!(postgres:
    another_schema_is_refused,
    a_take_below_a_savepoint_is_refused,
    a_row_that_is_locked_and_not_taken_has_the_idle_limit,
    an_old_snapshot_takes_nothing,
    a_row_that_was_made_in_advance_outlives_a_purge,
);

fn postgres(backend: &Backend) -> &PgPool {
    match backend.place() {
        Place::Postgres(pool, _) => pool,
        _ => unreachable!("these are tests of PostgreSQL"),
    }
}

/// Runs nothing in a transaction.
pub(super) async fn enters<DB>(locks: &LockManager, pool: &Pool<DB>) -> Result<i64, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let body = locks
        .lock("key")
        .options(&patient())
        .transaction(pool, async |_| {
            Ok::<_, Failure>(dblock::current().unwrap().fence_token())
        });
    body.await
}

async fn no_lease_is_seen_and_the_commit_leaves_a_free_row(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    if backend.kind() != Kind::Postgres {
        // There a new key has a lease.
        is_free(&other).await;
    }
    on_its_pool!(backend, pool => {
        for _ in 0..2 {
            let call = locks.lock("key").options(&long()).transaction(pool, async |_| {
                let row = backend.the_row("key").await;
                assert_eq!(row.reentrant_count, 0, "no lease was committed: {row:?}");
                nobody_enters(&backend, &other).await;
                let token = dblock::current().unwrap().fence_token();
                assert!(row.fence_token < token);
                Ok::<_, Failure>(token)
            });
            let token = call.await.unwrap();
            let row = backend.the_row("key").await;
            assert_eq!((row.reentrant_count, row.fence_token), (0, token));
        }
    });
    is_free(&other).await;
}

async fn a_rollback_leaves_what_was_there(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let before = backend.the_row("key").await;
    on_its_pool!(backend, pool => {
        let fails = locks.lock("key").options(&long()).transaction(pool, async |_| Err::<(), _>(Failure::Own));
        assert!(matches!(fails.await, Err(Failure::Own)));
        let row = backend.the_row("key").await;
        assert_eq!((row.lease_id, row.fence_token), (before.lease_id, before.fence_token));
        assert!(enters(&locks, pool).await.unwrap() > before.fence_token);
    });
}

/// Nothing has written the row since it expired, so a snapshot from before would not notice.
async fn an_expired_key_is_not_taken_without_a_lease(backend: Backend) {
    let (dies, locks) = (backend.manager().await, backend.manager().await);
    let guard = dies
        .lock("key")
        .options(&short().renew(false))
        .acquire()
        .await
        .unwrap();
    backend.until("key", LONG, |row| row.expire_at <= row.now).await;
    on_its_pool!(backend, pool => {
        let body = locks.lock("key").options(&patient()).transaction(pool, async |_| {
            let token = dblock::current().unwrap().fence_token();
            assert_eq!(backend.the_row("key").await.fence_token, token, "it has a lease");
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    drop(guard);
}

/// The row would stay locked by the transaction that waits for the holder.
async fn a_try_that_takes_nothing_does_not_keep_the_holder_from_its_renewal(backend: Backend) {
    let (holder, locks) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    let guard = holder
        .lock("key")
        .options(&long().ttl(RENEWED))
        .acquire()
        .await
        .unwrap();
    let first = backend.the_row("key").await;
    on_its_pool!(backend, pool => {
        let waits = tokio::spawn({
            let (locks, pool) = (locks.clone(), pool.clone());
            async move { enters(&locks, &pool).await }
        });
        let mut tx = begin(pool).await.unwrap();
        let waits_too = tokio::spawn(async move {
            let token = token_in(&locks, &mut tx).await?;
            tx.commit().await?;
            Ok::<_, Failure>(token)
        });
        backend.until("key", LONG, |row| row.expire_at > first.expire_at).await;
        guard.release().await.unwrap();
        assert_ne!(waits.await.unwrap().unwrap(), waits_too.await.unwrap().unwrap());
    });
}

#[distributed_lock(key = "key", ttl = "30s", wait = "30s", manager = locks, tx = tx)]
async fn token_in<DB>(locks: &LockManager, tx: &mut Transaction<'static, DB>) -> Result<i64, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let _ = &tx;
    Ok(dblock::current().unwrap().fence_token())
}

/// Local hand-overs use up tokens ahead of the clock.
async fn a_ceiling_ahead_of_the_clock_is_no_loss_of_order(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let ahead = backend.the_row("key").await.fence_token + 300_000_000;
    backend
        .execute(&format!(
            "UPDATE {} SET fence_token = {ahead}, fence_ceiling = {ahead}",
            backend.table
        ))
        .await;
    on_its_pool!(backend, pool => {
        assert!(enters(&locks, pool).await.unwrap() > ahead);
        let mut tx = begin(pool).await.unwrap();
        assert!(token_in(&locks, &mut tx).await.unwrap() > ahead + 1);
        tx.commit().await.unwrap();
    });
}

/// It has a table of the same name, in which nobody holds the key.
async fn another_schema_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let schema = format!("{}_other", backend.table);
    let create = format!("CREATE SCHEMA {schema}");
    execute(postgres(&backend), create).await.unwrap();
    let options = postgres(&backend).connect_options().as_ref().clone();
    let options = options.options([("search_path", schema.as_str())]);
    let elsewhere = PgPool::connect_with(options).await.unwrap();
    let there = LockManager::builder(&elsewhere)
        .table(&backend.table)
        .auto_migrate(true);
    is_free(&there.build().await.unwrap()).await;

    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    guard.release().await.unwrap();
    let refused = enters(&locks, &elsewhere).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unsupported);
    let mut tx = begin(&elsewhere).await.unwrap();
    let refused = token_in(&locks, &mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unsupported);
    tx.rollback().await.unwrap();
    enters(&locks, postgres(&backend)).await.unwrap();
    execute(postgres(&backend), format!("DROP SCHEMA {schema} CASCADE"))
        .await
        .unwrap();
}

/// It keeps the key for five seconds at most, and then its place in the queue of the pool. A connection that comes then
/// is not kept from others while the key is busy.
async fn a_full_pool_does_not_stop_others(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    on_its_pool!(backend, pool => {
        let full = of_one(pool).await;
        let taken = full.acquire().await.unwrap();
        let waits = tokio::spawn({
            let (locks, full) = (locks.clone(), full.clone());
            async move { enters(&locks, &full).await }
        });
        backend.until("key", LONG, |row| row.reentrant_count > 0).await;
        let second = enters(&locks, pool).await.unwrap();
        assert!(!waits.is_finished());
        let holds = other.lock("key").options(&long()).acquire().await.unwrap();
        let mut later = pin!(full.acquire());
        assert!(later.as_mut().now_or_never().is_none(), "it comes after the call");
        drop(taken);
        drop(later.await.unwrap());
        holds.release().await.unwrap();
        assert!(waits.await.unwrap().unwrap() > second);
    });
}

async fn a_full_pool_is_no_slow_store(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    on_its_pool!(backend, pool => {
        let full = of_one(pool).await;
        let _taken = full.acquire().await.unwrap();
        let call = locks.lock("key").wait(Duration::from_millis(200));
        let refused = call.transaction(&full, async |_| Ok::<_, LockError>(())).await.unwrap_err();
        assert!(refused.is_store(), "{refused:?}");
        assert!(refused.to_string().contains("the pool had no free connection"), "{refused}");
    });
}

/// Rolled back to it, the transaction would go on without the lock.
async fn a_take_below_a_savepoint_is_refused(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    let mut tx = begin(postgres(&backend)).await.unwrap();
    execute(&mut *tx, "SAVEPOINT inner_one".to_owned()).await.unwrap();
    let refused = token_in(&locks, &mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unsupported);
    tx.rollback().await.unwrap();
    is_free(&other).await;
}

/// The host may vanish before it ends the transaction, which keeps the holder from its renewals.
async fn a_row_that_is_locked_and_not_taken_has_the_idle_limit(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let (pool, table) = (postgres(&backend), &backend.table);
    let writes_nothing = format!(
        "CREATE FUNCTION {table}_nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER nothing BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_nothing()"
    );
    execute(pool, writes_nothing).await.unwrap();
    let mut tx = begin(pool).await.unwrap();
    let refused = token_in(&locks, &mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Conflict);
    let limit = sqlx::query_scalar::<_, String>("SHOW idle_in_transaction_session_timeout");
    assert_eq!(limit.fetch_one(&mut *tx).await.unwrap(), "1min");
    tx.rollback().await.unwrap();
    execute(pool, format!("DROP FUNCTION {table}_nothing() CASCADE"))
        .await
        .unwrap();
}

/// What others have done under the lock since would not be seen.
async fn an_old_snapshot_takes_nothing(backend: Backend) {
    let locks = backend.manager().await;
    let work = Work::new(&backend).await;
    enters(&locks, postgres(&backend)).await.unwrap();
    let mut tx = begin(postgres(&backend)).await.unwrap();
    let snapshot = format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; {}",
        work.count()
    );
    execute(&mut *tx, snapshot).await.unwrap();
    enters(&locks, postgres(&backend)).await.unwrap();
    let refused = token_in(&locks, &mut tx).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Conflict);
    tx.rollback().await.unwrap();
    enters(&locks, postgres(&backend)).await.unwrap();
}

/// By its ceiling alone, as a row whose lease ended long ago.
async fn a_row_that_was_made_in_advance_outlives_a_purge(backend: Backend) {
    let (locks, store) = (backend.manager().await, backend.store().await);
    let key = Key::new(None, "key").unwrap();
    assert!(store.make_free_rows(&[key]).await.unwrap());
    backend.execute("UPDATE {table} SET expire_at = 0").await;
    assert_eq!(locks.admin().purge(DAY).await.unwrap(), 0);
    let made = backend.the_row("key").await;
    assert!(enters(&locks, postgres(&backend)).await.unwrap() > made.fence_ceiling);
}

/// In the order in which they came, and none waits for a poll.
async fn one_after_the_other_takes_the_key(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let (begins, begun) = oneshot::channel();
    let (goes_on, may_go_on) = oneshot::channel::<()>();
    on_its_pool!(backend, pool => {
        let first = tokio::spawn({
            let (locks, pool) = (locks.clone(), pool.clone());
            async move {
                let body = locks.lock("key").options(&patient()).transaction(&pool, async |_| {
                    begins.send(()).unwrap();
                    may_go_on.await.unwrap();
                    Ok::<_, Failure>(dblock::current().unwrap().fence_token())
                });
                body.await.unwrap()
            }
        });
        begun.await.unwrap();
        let calls = (0..20).map(|_| {
            let (locks, pool) = (locks.clone(), pool.clone());
            tokio::spawn(async move { enters(&locks, &pool).await.unwrap() })
        });
        let calls: Vec<_> = calls.collect();
        passes(&backend, Duration::from_millis(100)).await;
        goes_on.send(()).unwrap();
        let mut tokens = vec![first.await.unwrap()];
        for call in calls {
            tokens.push(call.await.unwrap());
        }
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), 21);
    });
    assert_eq!(backend.the_row("key").await.reentrant_count, 0);
}

/// It is the transaction that has taken the key, before its commit and no longer after it.
async fn the_body_can_check_the_lock(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&other).await;
    on_its_pool!(backend, pool => {
        let checks = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            let lock = dblock::current().unwrap();
            lock.verify_in(&mut *tx).await.unwrap();
            let mut elsewhere = begin(pool).await?;
            let refused = lock.verify_in(&mut elsewhere).await.unwrap_err();
            assert!(refused.is_store() && !refused.is_retryable(), "{refused:?}");
            elsewhere.rollback().await?;
            lock.verify_in(&mut *tx).await.unwrap();
            execute(&mut **tx, "COMMIT".to_owned()).await?;
            Ok::<_, Failure>(lock.verify_in(&mut *tx).await?)
        });
        let over = checks.await.unwrap_err();
        assert!(matches!(&over, Failure::Lock(error) if !error.is_retryable()), "{over:?}");
    });
    is_free(&other).await;
}
