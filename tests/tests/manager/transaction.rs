//! A lock that ends with a transaction of the application's.

use std::future::{Future as _, poll_fn};
use std::task::Poll;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, begin};
use dblock_tests::backend::{Kind, Place};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use sqlx::ConnectOptions as _;

use crate::{LONG, briefly, long, patient};

on_every_store!(databases:
    others_enter_after_the_commit_and_not_before,
    a_rollback_frees_the_key,
    a_transaction_that_is_dropped_frees_the_key,
    a_transaction_longer_than_the_ttl_keeps_the_key,
    a_nested_guard_leaves_the_lock_to_the_outer_one,
    a_lost_lease_cannot_end_with_a_transaction,
    a_lock_with_hold_min_cannot_end_with_a_transaction,
);
on_every_store!(servers: a_snapshot_from_before_the_lock_is_a_conflict);
on_every_store!(postgres:
    a_lock_cannot_end_with_a_savepoint,
    the_commit_wakes_the_next_one,
    a_begin_that_is_dropped_leaves_no_transaction,
);

fn kind(error: LockError) -> StoreErrorKind {
    match error {
        LockError::Store { source, .. } => source.kind(),
        other => panic!("{other:?}"),
    }
}

/// On SQLite the transaction keeps every other writer out: nobody can even ask.
async fn nobody_enters(backend: &Backend, processes: [&LockManager; 2]) {
    if backend.kind() != Kind::Sqlite {
        for locks in processes {
            assert!(
                locks
                    .lock("key")
                    .options(&long())
                    .try_acquire()
                    .await
                    .unwrap()
                    .is_none()
            );
        }
    }
}

async fn others_enter_after_the_commit_and_not_before(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let token = guard.fence_token();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    nobody_enters(&backend, [&locks, &other]).await;
    let next = tokio::spawn(async move { other.lock("key").options(&patient()).acquire().await });
    let same_process = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock("key").options(&patient()).run(async {}).await }
    });
    let row = backend.the_row("key").await;
    assert_eq!(
        (row.reentrant_count, row.fence_token),
        (1, token),
        "not committed"
    );
    assert!(!next.is_finished() && !same_process.is_finished());
    transaction.commit().await;
    let next = next.await.unwrap().unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
    same_process.await.unwrap().unwrap();
}

async fn a_rollback_frees_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    transaction.rollback().await;
    other
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_transaction_that_is_dropped_frees_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    drop(transaction);
    other
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_transaction_longer_than_the_ttl_keeps_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&briefly()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    backend
        .until("key", LONG, |row| row.now > row.expire_at + 500_000)
        .await;
    nobody_enters(&backend, [&locks, &other]).await;
    transaction.commit().await;
    other
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_nested_guard_leaves_the_lock_to_the_outer_one(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let body = locks.lock("key").options(&long()).run(async {
        let nested = locks.lock("key").options(&long()).acquire().await.unwrap();
        let mut transaction = Transaction::begin(&backend).await;
        transaction.release(nested).await.unwrap();
        transaction.commit().await;
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
    body.await.unwrap();
    other
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_lost_lease_cannot_end_with_a_transaction(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    other.admin().force_release("key").await.unwrap();
    let next = other.lock("key").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    let lost = transaction.release(guard).await.unwrap_err();
    assert!(lost.is_lost(), "{lost:?}");
    transaction.commit().await;
    let row = backend.the_row("key").await;
    assert_eq!((row.reentrant_count, row.fence_token), (1, next.fence_token()));
    next.release().await.unwrap();
}

async fn a_lock_with_hold_min_cannot_end_with_a_transaction(backend: Backend) {
    let locks = backend.manager().await;
    let options = long().hold_min(Duration::from_millis(1));
    let guard = locks.lock("key").options(&options).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    let error = transaction.release(guard).await.unwrap_err();
    assert!(matches!(error, LockError::Invalid { .. }), "{error:?}");
    transaction.rollback().await;
}

async fn a_snapshot_from_before_the_lock_is_a_conflict(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    other
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let table = &backend.table;
    let mut transaction = Transaction::begin(&backend).await;
    match &mut transaction {
        Transaction::Postgres(_) => {
            let isolation = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";
            transaction.execute(isolation.to_owned()).await;
        }
        // The default.
        Transaction::MySql(_) => {}
        Transaction::Sqlite(_) => unreachable!("it has one writer"),
    }
    transaction.execute(format!("SELECT * FROM {table}")).await;
    let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let error = transaction.release(guard).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    assert_eq!(kind(error), StoreErrorKind::Conflict);
    transaction.rollback().await;
    other
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

async fn a_lock_cannot_end_with_a_savepoint(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.execute("SAVEPOINT here".to_owned()).await;
    let error = transaction.release(guard).await.unwrap_err();
    assert!(error.to_string().contains("lock store failed"), "{error}");
    assert_eq!(kind(error), StoreErrorKind::Unsupported);
    transaction.rollback().await;
    locks
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// The other process does not poll in this time: it asks about once a second as the successor.
async fn the_commit_wakes_the_next_one(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let next = tokio::spawn(async move { other.lock("key").options(&patient()).acquire().await });
    backend.until("key", LONG, |row| row.wanted_until > row.now).await;
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!()
    };
    let mut listener = sqlx::postgres::PgListener::connect_with(pool).await.unwrap();
    let channel = format!("SELECT concat('dblock_', '{}'::regclass::oid)", backend.table);
    let channel: String = sqlx::query_scalar(sqlx::AssertSqlSafe(channel))
        .fetch_one(pool)
        .await
        .unwrap();
    listener.listen(&channel).await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    transaction.commit().await;
    let told = tokio::time::timeout(LONG, listener.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(told.payload(), "rkey");
    next.await.unwrap().unwrap().release().await.unwrap();
}

/// Dropped at each of its awaits.
async fn a_begin_that_is_dropped_leaves_no_transaction(backend: Backend) {
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!()
    };
    let mut observer = pool.connect_options().connect().await.unwrap();
    for polls in 1..20 {
        let mut begins = Box::pin(begin(pool));
        let mut polled = 0;
        let dropped = poll_fn(|context| {
            polled += 1;
            match begins.as_mut().poll(context) {
                Poll::Pending if polled < polls => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        dropped.await;
        drop(begins);
        let mut connection = pool.acquire().await.unwrap();
        let process: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut *connection)
            .await
            .unwrap();
        let state: String = sqlx::query_scalar("SELECT state FROM pg_stat_activity WHERE pid = $1")
            .bind(process)
            .fetch_one(&mut observer)
            .await
            .unwrap();
        assert_eq!(state, "idle", "a transaction was left open after {polls} polls");
    }
}
