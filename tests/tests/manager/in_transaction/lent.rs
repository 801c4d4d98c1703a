//! `transaction`: a transaction that the call begins, lends to its body, and commits.

use std::time::Duration;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, begin, current, distributed_lock};
use dblock_tests::backend::Kind;
use dblock_tests::{Backend, on_every_store};
use sqlx::{Database, Pool, Transaction};
use tokio::sync::oneshot;

use super::{Failure, Work, execute, is_free, nobody_enters, of_a_free_key, on_its_pool, passes};
use crate::{briefly, long, patient};

on_every_store!(databases:
    others_enter_after_the_commit,
    it_may_take_longer_than_the_ttl,
    nested_calls_enter_again,
    a_nested_transaction_leaves_the_lock_to_the_outer_call,
    the_next_task_enters_after_the_commit,
    a_pool_of_another_database_is_refused,
    options_that_make_no_sense_are_refused,
);
on_every_store!(servers:
    another_transaction_cannot_check_the_lock,
    a_child_cannot_share_the_lock_of_a_transaction,
);
on_every_store!(memory: memory_has_no_transactions);
of_a_free_key!(
    others_enter_after_the_commit,
    it_may_take_longer_than_the_ttl,
    nested_calls_enter_again,
    the_next_task_enters_after_the_commit,
    another_transaction_cannot_check_the_lock,
    a_child_cannot_share_the_lock_of_a_transaction,
);

async fn others_enter_after_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let (waits, waiting) = oneshot::channel();
    let next = tokio::spawn({
        let (other, backend) = (other.clone(), backend.clone());
        let table = work.table.clone();
        async move {
            waiting.await.unwrap();
            let guard = other.lock("key").options(&patient()).acquire().await.unwrap();
            let done = Work { table }.done(&backend).await;
            guard.release().await.unwrap();
            done
        }
    });
    on_its_pool!(backend, pool => {
        let value = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            nobody_enters(&backend, &other).await;
            waits.send(()).unwrap();
            Ok::<_, Failure>(7)
        });
        assert_eq!(value.await.unwrap(), 7);
    });
    assert_eq!(next.await.unwrap(), 1, "whoever comes next sees the work");
}

/// Compiles: such a call can be a task of its own.
#[test]
fn a_transaction_can_be_spawned() {
    #[distributed_lock(key = "{key}", manager = locks, tx = tx)]
    async fn insert(
        locks: &LockManager,
        key: &str,
        tx: &mut Transaction<'_, sqlx::Postgres>,
    ) -> Result<(), Failure> {
        sqlx::query("INSERT INTO work VALUES (1)")
            .execute(&mut **tx)
            .await?;
        Ok(())
    }
    async fn spawns(locks: LockManager, pool: sqlx::PgPool, work: Work) {
        let task = tokio::spawn(async move {
            let call = locks
                .lock("key")
                .options(&long())
                .transaction(&pool, async |mut tx| {
                    insert(&locks, &work.table, &mut tx).await?;
                    let insert = sqlx::query("INSERT INTO work VALUES (1)");
                    insert.execute(&mut **tx).await?;
                    Ok::<_, Failure>(work.insert())
                });
            call.await
        });
        task.await.unwrap().unwrap();
    }
    let _ = spawns;
}

async fn it_may_take_longer_than_the_ttl(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    on_its_pool!(backend, pool => {
        let body = locks.lock("key").options(&briefly()).transaction(pool, async |_| {
            passes(&backend, Duration::from_secs(5)).await;
            assert!(other.lock("key").options(&long()).try_acquire().await.unwrap().is_none());
            assert!(!current().unwrap().remaining().is_zero());
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    is_free(&other).await;
}

async fn nested_calls_enter_again(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    on_its_pool!(backend, pool => {
        let body = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            let token = current().unwrap().fence_token();
            let nested = locks.lock("key").options(&long()).run(async { current().unwrap() }).await?;
            assert_eq!(nested.fence_token(), token);
            current().unwrap().verify_in(&mut *tx).await?;
            assert_eq!(current().unwrap().hold_count(), 1);
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    is_free(&other).await;
}

async fn a_nested_transaction_leaves_the_lock_to_the_outer_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let outer = locks.lock("key").options(&long()).run(async {
        on_its_pool!(backend, pool => {
            let inner = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                Ok::<_, Failure>(())
            });
            inner.await.unwrap();
        });
        assert!(
            other
                .lock("key")
                .options(&long())
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
    });
    outer.await.unwrap();
    assert_eq!(work.done(&backend).await, 1);
    is_free(&other).await;
}

/// Without waiting for its poll, which may be a second away.
async fn the_next_task_enters_after_the_commit(backend: Backend) {
    let locks = backend.manager().await;
    let next = on_its_pool!(backend, pool => {
        let (waits, waiting) = oneshot::channel();
        let next = tokio::spawn({
            let locks = locks.clone();
            async move {
                waiting.await.unwrap();
                locks.lock("key").options(&patient()).acquire().await.unwrap()
            }
        });
        let body = locks.lock("key").options(&long()).transaction(pool, async |_| {
            waits.send(()).unwrap();
            Ok::<_, Failure>(current().unwrap().fence_token())
        });
        let token = body.await.unwrap();
        let next = next.await.unwrap();
        assert!(next.fence_token() > token);
        next
    });
    next.release().await.unwrap();
}

/// It would wait for the first one, which waits for it.
async fn another_transaction_cannot_check_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let body = locks.lock("key").options(&long()).transaction(pool, async |_| {
            let nested = locks.lock("key").options(&long()).transaction(pool, async |_| Ok::<_, Failure>(()));
            assert_eq!(nested.await.unwrap_err().kind(), StoreErrorKind::Unsupported);
            let mut another = begin(pool).await?;
            let refused = current().unwrap().verify_in(&mut another).await.unwrap_err();
            assert_eq!(Failure::from(refused).kind(), StoreErrorKind::Unsupported);
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    is_free(&locks).await;
}

/// The commit would free the key under it.
async fn a_child_cannot_share_the_lock_of_a_transaction(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let body = locks.lock("key").options(&long()).transaction(pool, async |_| {
            let refused = dblock::inherit(async {}).await.unwrap_err();
            assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    is_free(&locks).await;
}

async fn a_pool_of_another_database_is_refused(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
    let refused = locks
        .lock("key")
        .options(&long())
        .transaction(&pool, async |_| Ok::<_, Failure>(()));
    let kind = refused.await.unwrap_err().kind();
    let expected = match backend.kind() {
        // Of the same kind, but without the table.
        Kind::Sqlite => StoreErrorKind::Schema,
        _ => StoreErrorKind::Unsupported,
    };
    assert_eq!(kind, expected);
    is_free(&other).await;
}

async fn memory_has_no_transactions(backend: Backend) {
    let locks = backend.manager().await;
    let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
    let refused = locks
        .lock("key")
        .options(&long())
        .transaction(&pool, async |_| Ok::<_, Failure>(()));
    assert_eq!(refused.await.unwrap_err().kind(), StoreErrorKind::Unsupported);
    is_free(&locks).await;
}

/// Takes the lock with these options in a transaction of its own.
async fn enters<DB>(locks: &LockManager, pool: &Pool<DB>, options: LockOptions) -> Result<(), Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    locks
        .lock("key")
        .options(&options)
        .transaction(pool, async |_| Ok(()))
        .await
}

async fn options_that_make_no_sense_are_refused(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let refused = enters(&locks, pool, long().hold_min(Duration::from_secs(1))).await.unwrap_err();
        assert!(matches!(refused, Failure::Lock(LockError::Invalid { .. })), "{refused:?}");
    });
    assert!(backend.row("key").await.is_none(), "nothing was sent");
}
