//! Calls that waited for a caller of their own process: they share a lease, which is checked before the commit.

use std::cell::RefCell;
use std::pin::pin;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, LockedTransaction, LostReason};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt;
use futures_util::future::{join, join_all};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Database, Pool, Transaction};
use tokio::sync::oneshot;

use super::taken::enters;
use super::{Failure, Work, execute, is_free, nobody_enters, on_its_pool};
use crate::{LONG, long, patient};

on_every_store!(servers:
    who_waited_has_a_lease_until_the_commit,
    those_that_wait_hand_the_lease_over,
    a_lease_that_is_gone_commits_nothing,
    a_hold_that_outlives_the_body_fails_the_call,
    an_error_of_the_body_takes_its_work_back,
);
on_every_store!(postgres: an_old_snapshot_is_a_conflict_and_the_next_call_locks_first);

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

/// Without the store: the tokens follow each other.
async fn those_that_wait_hand_the_lease_over(backend: Backend) {
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
        assert_eq!(tokens, (token + 1..=token + 5).collect::<Vec<_>>());
    });
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

/// Whoever waits for the lock writes its row, perhaps after the snapshot.
async fn an_old_snapshot_is_a_conflict_and_the_next_call_locks_first(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!("it is a test of PostgreSQL")
    };
    let options = pool.connect_options().as_ref().clone();
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
