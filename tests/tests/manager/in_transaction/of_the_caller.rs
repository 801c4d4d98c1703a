//! `tx = tx`: calls in a transaction that their caller begins and commits.

use std::time::Duration;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{LockManager, begin, current, distributed_lock};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::Kind;
use dblock_tests::busy_operator::beside_an_operator;
use dblock_tests::faulty_store::{FaultyStore, Kind as Asked};
use dblock_tests::{Backend, on_every_store};
use sqlx::{Database, Executor, Transaction};

use super::{Failure, Work, execute, is_free, nobody_enters, on_its_pool, passes};
use crate::{LONG, patient};

on_every_store!(databases:
    the_callers_commit_ends_the_lock,
    the_callers_rollback_takes_everything_back,
    later_calls_in_a_transaction_enter_again,
    calls_in_a_transaction_nest,
    later_calls_enter_again_after_a_ttl_too,
    no_call_waits_for_an_operator,
);
on_every_store!(sqlite: the_bodys_own_error_comes_before_that_of_the_release);
on_every_store!(servers:
    opposite_orders_end_with_an_error,
    another_transaction_waits_for_the_first,
);

#[distributed_lock(key = "{key}", ttl = "30s", wait = "30s", manager = locks, tx = tx)]
async fn add<DB>(
    locks: &LockManager,
    key: &str,
    tx: &mut Transaction<'static, DB>,
    work: &Work,
) -> Result<i64, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    execute(&mut **tx, work.insert()).await?;
    Ok(current().unwrap().fence_token())
}

/// As [`add`], twice in one.
#[distributed_lock(key = "{key}", ttl = "30s", manager = locks, tx = tx)]
async fn add_twice<DB>(
    locks: &LockManager,
    key: &str,
    tx: &mut Transaction<'static, DB>,
    work: &Work,
) -> Result<[i64; 2], Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    Ok([add(locks, key, tx, work).await?, add(locks, key, tx, work).await?])
}

async fn the_callers_commit_ends_the_lock(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let mut tx = begin(pool).await.unwrap();
        let token = add(&locks, "key", &mut tx, &work).await.unwrap();
        nobody_enters(&backend, &other).await;
        nobody_enters(&backend, &locks).await;
        tx.commit().await.unwrap();
        let next = other.lock("key").options(&patient()).acquire().await.unwrap();
        assert!(next.fence_token() > token);
        next.release().await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 1);
}

async fn the_callers_rollback_takes_everything_back(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let mut tx = begin(pool).await.unwrap();
        add(&locks, "key", &mut tx, &work).await.unwrap();
        tx.rollback().await.unwrap();
    });
    is_free(&other).await;
    assert_eq!(work.done(&backend).await, 0);
}

async fn later_calls_in_a_transaction_enter_again(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let mut tx = begin(pool).await.unwrap();
        let first = add(&locks, "key", &mut tx, &work).await.unwrap();
        for _ in 0..2 {
            assert_eq!(add(&locks, "key", &mut tx, &work).await.unwrap(), first);
            nobody_enters(&backend, &other).await;
        }
        tx.commit().await.unwrap();
        // It is over with that transaction.
        is_free(&other).await;
        let mut tx = begin(pool).await.unwrap();
        assert!(add(&locks, "key", &mut tx, &work).await.unwrap() > first);
        tx.commit().await.unwrap();
    });
    is_free(&other).await;
    assert_eq!(work.done(&backend).await, 4);
}

async fn calls_in_a_transaction_nest(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let mut tx = begin(pool).await.unwrap();
        let [one, two] = add_twice(&locks, "key", &mut tx, &work).await.unwrap();
        assert_eq!(one, two);
        nobody_enters(&backend, &other).await;
        tx.commit().await.unwrap();
    });
    is_free(&other).await;
    assert_eq!(work.done(&backend).await, 2);
}

async fn later_calls_enter_again_after_a_ttl_too(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    on_its_pool!(backend, pool => {
        let mut tx = begin(pool).await.unwrap();
        let first = brief(&locks, &mut tx).await.unwrap();
        passes(&backend, Duration::from_secs(5)).await;
        assert_eq!(brief(&locks, &mut tx).await.unwrap(), first);
        nobody_enters(&backend, &other).await;
        tx.commit().await.unwrap();
    });
    is_free(&other).await;
}

#[distributed_lock(key = "key", ttl = "4s", manager = locks, tx = tx)]
async fn brief<DB>(locks: &LockManager, tx: &mut Transaction<'static, DB>) -> Result<i64, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let _ = &tx;
    Ok(current().unwrap().fence_token())
}

/// A nested call, and a later one, ask whether their transaction keeps the lock.
async fn no_call_waits_for_an_operator(backend: Backend) {
    let work = Work::new(&backend).await;
    let calls = async |locks: LockManager| {
        on_its_pool!(backend, pool => {
            let mut tx = begin(pool).await.unwrap();
            add_twice(&locks, "key", &mut tx, &work).await.unwrap();
            add(&locks, "key", &mut tx, &work).await.unwrap();
            tx.commit().await.unwrap();
            let ours = locks.lock("other").options(&patient()).transaction(pool, async |mut tx| {
                Ok::<_, Failure>(execute(&mut **tx, work.insert()).await?)
            });
            ours.await.unwrap();
        });
    };
    beside_an_operator(&backend, calls).await;
    assert_eq!(work.done(&backend).await, 4);
}

async fn opposite_orders_end_with_an_error(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let (mut one, mut two) = (begin(pool).await.unwrap(), begin(pool).await.unwrap());
        soon(&locks, "a", &mut one).await.unwrap();
        soon(&locks, "b", &mut two).await.unwrap();
        let (first, second) = tokio::join!(soon(&locks, "b", &mut one), soon(&locks, "a", &mut two));
        let (first, second) = (first.unwrap_err().lock(), second.unwrap_err().lock());
        assert!(first.is_busy() && second.is_busy(), "{first:?} {second:?}");
        one.rollback().await.unwrap();
        backend.until("a", LONG, |row| row.reentrant_count == 0).await;
        let second = soon(&locks, "a", &mut two).await;
        if backend.kind() == Kind::MySql {
            // REPEATABLE READ: the first lock has fixed the snapshot, which is older than the second.
            assert_eq!(second.unwrap_err().kind(), StoreErrorKind::Conflict);
            two.rollback().await.unwrap();
        } else {
            second.unwrap();
            two.commit().await.unwrap();
        }
    });
    for key in ["a", "b"] {
        locks
            .lock(key)
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

#[distributed_lock(key = "{key}", ttl = "30s", wait = "2s", manager = locks, tx = tx)]
async fn soon<DB>(locks: &LockManager, key: &str, tx: &mut Transaction<'static, DB>) -> Result<(), Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let _ = &tx;
    Ok(())
}

/// And sees what it has done, although its own transaction was open before.
async fn another_transaction_waits_for_the_first(backend: Backend) {
    let store = FaultyStore::over(backend.store().await);
    let locks = store.manager();
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let (mut one, mut two) = (begin(pool).await.unwrap(), begin(pool).await.unwrap());
        let first = add(&locks, "key", &mut one, &work).await.unwrap();
        let mut second = Box::pin(add(&locks, "key", &mut two, &work));
        // It looks whether its own transaction keeps the lock, and then waits. Meanwhile the release is
        // refused.
        let refused = store.asked_to(Asked::Release).len() + 3;
        tokio::select! {
            early = second.as_mut() => panic!("{early:?}"),
            () = store.until_asked(Asked::Release, refused) => {}
        }
        one.commit().await.unwrap();
        let mut token = second.await;
        if let Err(Failure::Lock(error)) = &token
            && error.is_retryable()
        {
            // The first one ended while it looked.
            two.rollback().await.unwrap();
            two = begin(pool).await.unwrap();
            token = add(&locks, "key", &mut two, &work).await;
        }
        assert!(token.unwrap() > first);
        two.commit().await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 2);
    is_free(&locks).await;
}

/// It reads, somebody else writes, and it fails: so its release cannot be written any more.
#[distributed_lock(key = "key", ttl = "30s", manager = locks, tx = tx)]
async fn fails(
    locks: &LockManager,
    tx: &mut Transaction<'static, sqlx::Sqlite>,
    backend: &Backend,
    work: &Work,
) -> Result<(), Failure> {
    execute(&mut **tx, work.count()).await?;
    on_its_pool!(backend, pool => execute(pool, work.insert()).await?);
    Err(Failure::Own)
}

/// As [`fails`], without an error of its own.
#[distributed_lock(key = "key", ttl = "30s", manager = locks, tx = tx, on_error = |error| Some(error).filter(dblock::LockError::is_retryable))]
async fn returns(
    locks: &LockManager,
    tx: &mut Transaction<'static, sqlx::Sqlite>,
    backend: &Backend,
    work: &Work,
) -> Option<dblock::LockError> {
    execute(&mut **tx, work.count()).await.unwrap();
    on_its_pool!(backend, pool => execute(pool, work.insert()).await.unwrap());
    None
}

async fn the_bodys_own_error_comes_before_that_of_the_release(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let dblock_tests::backend::Place::Sqlite(pool, _) = backend.place() else {
        unreachable!("a SQLite file");
    };
    let mut tx = begin(pool).await.unwrap();
    let failed = fails(&locks, &mut tx, &backend, &work).await;
    assert!(matches!(failed, Err(Failure::Own)), "{failed:?}");
    tx.rollback().await.unwrap();
    is_free(&other).await;

    // Where the body has no error to tell, the lock's is told: the transaction must not be committed.
    let mut tx = begin(pool).await.unwrap();
    let told = returns(&locks, &mut tx, &backend, &work).await;
    assert!(
        told.as_ref().is_some_and(dblock::LockError::is_retryable),
        "{told:?}"
    );
    tx.rollback().await.unwrap();
    is_free(&other).await;
}
