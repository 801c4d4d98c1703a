//! Calls that waited for a caller of their own process: they share a lease, which is checked before the commit.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, LockedTransaction, LostReason, distributed_lock};
use dblock_tests::backend::Place;
use dblock_tests::proxy::{Proxy, Traffic};
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Database, PgConnection, PgPool, Pool, Transaction};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

use super::taken::enters;
use super::{Failure, Work, execute, is_free, nobody_enters, on_its_pool};
use crate::{LONG, long, patient};

on_every_store!(postgres:
    who_waited_has_a_lease_until_the_commit,
    those_that_wait_hand_the_lease_over,
    the_row_stays_locked_until_the_commit,
    a_lease_that_is_gone_commits_nothing,
    a_body_that_ends_its_transaction_fails_the_call,
    an_error_that_the_body_swallows_fails_the_call,
    a_hold_that_outlives_the_body_fails_the_call,
    a_child_cannot_share_the_lock,
    checks_in_the_body_lock_nothing,
    an_error_of_the_body_takes_its_work_back,
    a_connection_that_hangs_does_not_keep_the_key,
    an_old_snapshot_is_a_conflict_and_the_next_call_locks_first,
    what_the_body_forbids_is_a_conflict_and_the_next_call_locks_first,
);

fn postgres(backend: &Backend) -> &PgPool {
    match backend.place() {
        Place::Postgres(pool, _) => pool,
        _ => unreachable!("these are tests of PostgreSQL"),
    }
}

/// Runs `body` in the first of two calls that wait for another one, which has taken the key.
async fn after_another<DB, T>(
    locks: &LockManager,
    pool: &Pool<DB>,
    body: impl AsyncFnOnce(LockedTransaction<DB>) -> Result<T, Failure>,
) -> Result<T, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let (begins, begun) = oneshot::channel();
    let (goes_on, may_go_on) = oneshot::channel::<()>();
    let options: LockOptions = patient();
    let first = locks.lock("key").options(&options);
    let first = first.transaction(pool, async |_| {
        begins.send(()).unwrap();
        may_go_on.await.unwrap();
        Ok::<_, Failure>(())
    });
    let second = async {
        begun.await.unwrap();
        let third = RefCell::new(None);
        let second = locks.lock("key").options(&options);
        let mut second = pin!(second.transaction(pool, async |tx| {
            third.take();
            body(tx).await
        }));
        assert!(second.as_mut().now_or_never().is_none(), "it waits");
        let mut waits = Box::pin(enters(locks, pool));
        assert!(waits.as_mut().now_or_never().is_none(), "it waits too");
        third.replace(Some(waits));
        goes_on.send(()).unwrap();
        second.await
    };
    let (first, second) = join(first, second).await;
    first.unwrap();
    second
}

async fn who_waited_has_a_lease_until_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    on_its_pool!(backend, pool => {
        let body = after_another(&locks, pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            assert_eq!(backend.the_row("key").await.reentrant_count, 1);
            nobody_enters(&backend, &other).await;
            Ok(())
        });
        body.await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 1);
    is_free(&other).await;
}

/// Without the store: the tokens follow each other. On a busy machine the time in which a lease is handed over may end
/// between two of them, but not each time.
async fn those_that_wait_hand_the_lease_over(backend: Backend) {
    for _ in 0..20 {
        if five_that_wait_have_tokens_that_follow(&backend).await {
            return;
        }
    }
    panic!("the lease always went through the store");
}

async fn five_that_wait_have_tokens_that_follow(backend: &Backend) -> bool {
    let locks = backend.manager().await;
    is_free(&locks).await;
    on_its_pool!(backend, pool => {
        let first = after_another(&locks, pool, async |_| {
            let mut calls = Vec::new();
            for _ in 0..5 {
                let (locks, pool) = (locks.clone(), pool.clone());
                let (waits, queued) = oneshot::channel();
                calls.push(tokio::spawn(async move {
                    let mut call = pin!(enters(&locks, &pool));
                    assert!(call.as_mut().now_or_never().is_none(), "it waits");
                    waits.send(()).unwrap();
                    call.await.unwrap()
                }));
                queued.await.unwrap();
            }
            Ok((dblock::current().unwrap().fence_token(), calls))
        });
        let (token, calls) = first.await.unwrap();
        let mut tokens: Vec<i64> = join_all(calls).await.into_iter().map(Result::unwrap).collect();
        tokens.sort_unstable();
        tokens == (token + 1..=token + 5).collect::<Vec<_>>()
    })
}

/// Nobody has told the body: its manager has not asked the store meanwhile.
async fn a_lease_that_is_gone_commits_nothing(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let mut next = None;
    on_its_pool!(backend, pool => {
        let body = after_another(&locks, pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            other.admin().force_release("key").await?;
            next = Some(other.lock("key").options(&long()).acquire().await?);
            Ok(())
        });
        let lost = body.await.unwrap_err().lock();
        assert!(matches!(lost, LockError::Lost { reason: LostReason::Gone, .. }), "{lost:?}");
    });
    assert_eq!(work.done(&backend).await, 0, "nothing was committed");
    next.unwrap().release().await.unwrap();
}

/// A commit may take a while, here by a deferred trigger.
async fn the_row_stays_locked_until_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (pool, work) = (postgres(&backend), Work::new(&backend).await);
    is_free(&other).await;
    let mut latch = pool.acquire().await.unwrap();
    execute(&mut *latch, "SELECT pg_advisory_lock(4711)".to_owned())
        .await
        .unwrap();
    let table = &work.table;
    let trigger = format!(
        "CREATE FUNCTION {table}_waits() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION {table}_waits()"
    );
    execute(pool, trigger).await.unwrap();
    let commits = after_another(&locks, pool, async |mut tx| {
        execute(&mut **tx, work.insert()).await?;
        Ok(())
    });
    let meanwhile = async {
        let waits =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted";
        while sqlx::query_scalar::<_, i64>(waits).fetch_one(pool).await.unwrap() == 0 {}
        let forced = other.admin().force_release("key").await;
        assert!(!matches!(forced, Ok(true)), "{forced:?}");
        nobody_enters(&backend, &other).await;
        execute(&mut *latch, "SELECT pg_advisory_unlock(4711)".to_owned())
            .await
            .unwrap();
    };
    let (committed, ()) = join(commits, meanwhile).await;
    committed.unwrap();
    assert_eq!(work.done(&backend).await, 1);
    is_free(&other).await;
}

async fn a_body_that_ends_its_transaction_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let options = postgres(&backend).connect_options().as_ref().clone();
    for ends in [
        "COMMIT",
        "COMMIT; BEGIN",
        "ROLLBACK AND CHAIN",
        "COMMIT; SET search_path = pg_catalog",
    ] {
        let pool = PgPoolOptions::new().connect_with(options.clone()).await.unwrap();
        let body = after_another(&locks, &pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            Ok(execute(&mut **tx, ends.to_owned()).await?)
        });
        assert_eq!(body.await.unwrap_err().kind(), StoreErrorKind::Other, "{ends}");
        is_free(&other).await;
    }
}

async fn an_error_that_the_body_swallows_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let body = after_another(&locks, postgres(&backend), async |mut tx| {
        execute(&mut **tx, work.insert()).await?;
        let failed = execute(&mut **tx, "SELECT 1 / 0".to_owned()).await;
        assert!(failed.is_err());
        Ok(())
    });
    assert_eq!(body.await.unwrap_err().kind(), StoreErrorKind::Conflict);
    assert_eq!(work.done(&backend).await, 0);
    is_free(&other).await;
}

/// As where the transaction itself keeps the key.
async fn a_child_cannot_share_the_lock(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&other).await;
    let body = after_another(&locks, postgres(&backend), async |_| {
        let refused = dblock::inherit(async {}).await.unwrap_err();
        assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
        Ok(())
    });
    body.await.unwrap();
    is_free(&other).await;
}

#[distributed_lock(key = "key", ttl = "30s", wait = "30s", manager = locks, tx = tx)]
async fn nested(locks: &LockManager, tx: &mut sqlx::PgTransaction<'static>) -> Result<(), Failure> {
    let _ = &tx;
    Ok(())
}

/// Or the renewals would find the row locked.
async fn checks_in_the_body_lock_nothing(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let pool = postgres(&backend);
    is_free(&other).await;
    let body = after_another(&locks, pool, async |mut tx| {
        let lock = dblock::current().unwrap();
        lock.verify_in(&mut *tx).await?;
        nested(&locks, &mut tx).await?;
        let mut elsewhere = dblock::begin(pool).await?;
        let refused = lock.verify_in(&mut elsewhere).await.unwrap_err();
        assert!(refused.is_store() && !refused.is_retryable(), "{refused:?}");
        elsewhere.rollback().await?;
        let row = other.admin().get("key").await?.unwrap();
        assert!(row.transaction.is_none() && row.reentrant_count > 0, "{row:?}");
        Ok(())
    });
    body.await.unwrap();
    is_free(&other).await;
}

/// The row cannot be locked or found any more, and could before the body.
async fn what_the_body_forbids_is_a_conflict_and_the_next_call_locks_first(backend: Backend) {
    let (pool, table) = (postgres(&backend), &backend.table);
    let other = backend.manager().await;
    is_free(&other).await;
    let elsewhere = format!("elsewhere_{}", Uuid::now_v7().simple());
    let copy =
        format!("CREATE SCHEMA {elsewhere}; CREATE TABLE {elsewhere}.{table} (LIKE {table} INCLUDING ALL)");
    sqlx::raw_sql(AssertSqlSafe(copy)).execute(pool).await.unwrap();
    for forbids in [
        "SET TRANSACTION READ ONLY".to_owned(),
        format!("SET LOCAL search_path = {elsewhere}"),
    ] {
        let locks = backend.manager().await;
        locks
            .lock("key")
            .transaction(pool, async |_| Ok::<_, Failure>(()))
            .await
            .unwrap();
        let body = async |mut tx: LockedTransaction<sqlx::Postgres>| {
            let connection: &mut PgConnection = &mut tx;
            Ok(execute(connection, forbids.clone()).await?)
        };
        let first = after_another(&locks, pool, body).await.unwrap_err();
        assert_eq!(first.kind(), StoreErrorKind::Conflict, "{forbids}");
        after_another(&locks, pool, body).await.unwrap();
        is_free(&other).await;
    }
}

async fn a_hold_that_outlives_the_body_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let mut left = None;
    on_its_pool!(backend, pool => {
        let body = after_another(&locks, pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            left = Some(locks.lock("key").options(&long()).acquire().await?);
            Ok(())
        });
        assert_eq!(body.await.unwrap_err().kind(), StoreErrorKind::Other);
    });
    assert_eq!(work.done(&backend).await, 0, "nothing was committed");
    nobody_enters(&backend, &other).await;
    drop(left);
    is_free(&other).await;
}

async fn an_error_of_the_body_takes_its_work_back(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    on_its_pool!(backend, pool => {
        let body = after_another(&locks, pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            Err::<(), _>(Failure::Own)
        });
        assert!(matches!(body.await, Err(Failure::Own)));
    });
    assert_eq!(work.done(&backend).await, 0);
    is_free(&other).await;
}

/// Neither the check before the commit nor the rollback is waited for without end.
async fn a_connection_that_hangs_does_not_keep_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let options = postgres(&backend).connect_options().as_ref().clone();
    is_free(&other).await;
    for fails in [false, true] {
        let proxy = Proxy::start(SocketAddr::new([127, 0, 0, 1].into(), options.get_port()));
        let far = options.clone().port(proxy.address().port());
        let far = PgPoolOptions::new().connect_with(far).await.unwrap();
        let body = after_another(&locks, &far, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            proxy.set(Traffic::BlackHole);
            if fails { Err(Failure::Own) } else { Ok(()) }
        });
        let error = timeout(LONG, body).await.expect("the call hangs").unwrap_err();
        if fails {
            assert!(matches!(error, Failure::Own), "{error:?}");
        } else {
            assert_eq!(error.kind(), StoreErrorKind::Other);
        }
        is_free(&other).await;
    }
    assert_eq!(work.done(&backend).await, 0, "nothing was committed");
}

/// Whoever waits for the lock writes its row, perhaps after the snapshot.
async fn an_old_snapshot_is_a_conflict_and_the_next_call_locks_first(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let options = postgres(&backend).connect_options().as_ref().clone();
    let options = options.options([("default_transaction_isolation", "repeatable read")]);
    let strict = PgPoolOptions::new().connect_with(options).await.unwrap();
    let mut waits = None;
    let body = after_another(&locks, &strict, async |mut tx| {
        execute(&mut **tx, work.insert()).await?;
        let other = other.clone();
        waits = Some(tokio::spawn(async move { is_free(&other).await }));
        backend.until("key", LONG, |row| row.wanted_until > row.now).await;
        Ok(())
    });
    let refused = body.await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Conflict);
    waits.unwrap().await.unwrap();
    assert_eq!(work.done(&backend).await, 0);
    let body = after_another(&locks, &strict, async |mut tx| {
        execute(&mut **tx, work.insert()).await?;
        let row = other.admin().get("key").await?.unwrap();
        assert!(row.transaction.is_some(), "{row:?}");
        Ok(())
    });
    body.await.unwrap();
    assert_eq!(work.done(&backend).await, 1);
}
