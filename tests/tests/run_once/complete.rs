//! Runs that are completed in a transaction of the application's.

use std::time::Duration;

use dblock::store::RecordState;
use dblock::{LockError, OnCrash, Once, Run, RunError, inherit};
use dblock_tests::backend::{Kind, Place};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use tokio::time::timeout;

use crate::{Effects, KEY, LONG, PayError, pay, reason, record, run, state};

on_every_store!(databases:
    the_commit_makes_work_record_and_release_stand,
    a_rollback_leaves_nothing_and_fails_the_run,
    a_transaction_that_is_not_committed_completes_nothing,
    a_body_that_fails_after_the_commit_has_succeeded,
    a_body_that_is_stopped_after_the_commit_has_succeeded,
    a_body_that_forgets_to_complete_is_told_and_not_repeated,
    a_value_that_is_too_large_is_refused_before_anything_is_written,
    completing_under_an_outer_lock_leaves_that_lock,
    no_child_stays_in_a_lock_that_a_transaction_ends,
    a_second_completion_does_not_open_the_lock,
);
on_every_store!(databases: a_paused_attempt_cannot_complete);
on_every_store!(servers: a_record_that_others_have_locked_is_asked_for_again);

/// Creates the table that the work is done in.
pub(crate) async fn with_work(backend: &Backend) {
    backend
        .execute("CREATE TABLE {table}_work (id VARCHAR(40) NOT NULL PRIMARY KEY, times INTEGER NOT NULL)")
        .await;
}

/// How often the work of `id` stands.
pub(crate) async fn times(backend: &Backend, id: &str) -> i32 {
    let read = || {
        let sql = format!("SELECT times FROM {}_work WHERE id = '{id}'", backend.table);
        sqlx::AssertSqlSafe(sql)
    };
    let times = match backend.place() {
        Place::Postgres(pool, _) => sqlx::query_scalar(read()).fetch_optional(pool).await,
        Place::MySql(pool, _) => sqlx::query_scalar(read()).fetch_optional(pool).await,
        Place::Sqlite(pool, _) => sqlx::query_scalar(read()).fetch_optional(pool).await,
        Place::Memory(_) => panic!("memory has no tables"),
    };
    times.unwrap().unwrap_or(0)
}

/// Does the work of `id` in a transaction.
pub(crate) async fn work(backend: &Backend, transaction: &mut Transaction, id: &str) {
    let table = &backend.table;
    let done = match backend.kind() {
        dblock_tests::Kind::MySql => "ON DUPLICATE KEY UPDATE times = times + 1".to_owned(),
        _ => format!("ON CONFLICT (id) DO UPDATE SET times = {table}_work.times + 1"),
    };
    let sql = format!("INSERT INTO {table}_work (id, times) VALUES ('{id}', 1) {done}");
    transaction.execute(sql).await;
}

/// Works, completes and commits.
async fn paid(backend: &Backend, run: &Run) -> Result<u32, PayError> {
    let mut transaction = Transaction::begin(backend).await;
    work(backend, &mut transaction, "a").await;
    transaction.complete(run, &7).await?;
    transaction.commit().await;
    Ok(7)
}

async fn drop_work(backend: &Backend) {
    backend.execute("DROP TABLE {table}_work").await;
}

async fn the_commit_makes_work_record_and_release_stand(backend: Backend) {
    with_work(&backend).await;
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let effects = Effects::default();
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        work(&backend, &mut transaction, "a").await;
        transaction.complete(&run, &7).await?;
        assert_eq!(
            (times(&backend, "a").await, state(&other).await.0),
            (0, RecordState::Processing)
        );
        transaction.commit().await;
        assert_eq!(
            (times(&backend, "a").await, state(&other).await.0),
            (1, RecordState::Succeeded)
        );
        assert!(backend.the_row(KEY).await.is_free());
        Ok::<_, PayError>(7)
    };
    let ran = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap();
    assert_eq!(ran, Once::Ran(7));
    assert_eq!(
        pay(&other, run(OnCrash::CompleteIn), &effects).await.unwrap(),
        Once::Replayed(7)
    );
    assert_eq!(
        pay(&locks, run(OnCrash::CompleteIn), &effects).await.unwrap(),
        Once::Replayed(7)
    );
    drop_work(&backend).await;
}

/// The limit of the session would end the statement, on MySQL perhaps with the whole transaction.
async fn a_record_that_others_have_locked_is_asked_for_again(backend: Backend) {
    let locks = backend.manager().await;
    let limit = match backend.kind() {
        Kind::MySql => {
            "SET SESSION innodb_lock_wait_timeout = 1, sql_safe_updates = 1; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; COMMIT; BEGIN"
        }
        _ => "SET LOCAL lock_timeout = '1s'",
    };
    let locked = async || {
        let mut other = Transaction::begin(&backend).await;
        let lock = format!("SELECT state FROM {}_record FOR UPDATE", backend.table);
        other.execute(lock).await;
        other
    };
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        transaction.execute(limit.to_owned()).await;
        let other = locked().await;
        let refused = timeout(LONG, transaction.complete(&run, &7)).await.unwrap();
        let refused = refused.unwrap_err();
        assert!(refused.is_store() && refused.is_retryable(), "{refused:?}");
        transaction.rollback().await;
        other.rollback().await;

        // The lease goes on, so it can be tried again.
        let mut transaction = Transaction::begin(&backend).await;
        transaction.execute(limit.to_owned()).await;
        let other = locked().await;
        let ends = async {
            tokio::time::sleep(Duration::from_millis(1500)).await;
            other.rollback().await;
        };
        let (completed, ()) = tokio::join!(transaction.complete(&run, &7), ends);
        completed?;
        transaction.commit().await;
        Ok::<_, PayError>(7)
    };
    let ran = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap();
    assert_eq!(ran, Once::Ran(7));
}

async fn a_rollback_leaves_nothing_and_fails_the_run(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        work(&backend, &mut transaction, "a").await;
        transaction.complete(&run, &7).await?;
        transaction.rollback().await;
        Err::<u32, _>(PayError::Declined)
    };
    let failed = locks
        .run_once(KEY, run(OnCrash::CompleteIn), body)
        .await
        .unwrap_err();
    assert!(matches!(failed, PayError::Declined), "{failed:?}");
    assert_eq!(
        (times(&backend, "a").await, state(&locks).await),
        (0, (RecordState::Failed, 1))
    );
    let body = async |run: Run| paid(&backend, &run).await;
    assert_eq!(
        locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap(),
        Once::Ran(7)
    );
    assert_eq!(
        (times(&backend, "a").await, state(&locks).await),
        (1, (RecordState::Succeeded, 2))
    );
    drop_work(&backend).await;
}

async fn a_transaction_that_is_not_committed_completes_nothing(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        work(&backend, &mut transaction, "a").await;
        transaction.complete(&run, &7).await?;
        transaction.rollback().await;
        Ok::<_, PayError>(7)
    };
    let refused = reason(locks.run_once(KEY, run(OnCrash::CompleteIn), body).await);
    assert!(matches!(refused, RunError::NotCommitted), "{refused:?}");
    assert_eq!(
        (times(&backend, "a").await, state(&locks).await),
        (0, (RecordState::Processing, 1))
    );
    let body = async |run: Run| paid(&backend, &run).await;
    assert_eq!(
        locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap(),
        Once::Ran(7)
    );
    assert_eq!(times(&backend, "a").await, 1);
    drop_work(&backend).await;
}

/// As when the answer to the commit is lost.
async fn a_body_that_fails_after_the_commit_has_succeeded(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let body = async |run: Run| {
        paid(&backend, &run).await?;
        Err::<u32, _>(PayError::Declined)
    };
    let ran = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap();
    assert_eq!((ran, times(&backend, "a").await), (Once::Ran(7), 1));
    assert_eq!(state(&locks).await, (RecordState::Succeeded, 1));

    let in_doubt = async |run: Run| {
        run.leave_in_doubt();
        body(run).await
    };
    assert!(locks.admin().forget(&record(&locks).await).await.unwrap());
    let ran = locks.run_once(KEY, run(OnCrash::Stop), in_doubt).await.unwrap();
    assert_eq!(
        (ran, state(&locks).await),
        (Once::Ran(7), (RecordState::Succeeded, 1))
    );
    drop_work(&backend).await;
}

async fn a_body_that_is_stopped_after_the_commit_has_succeeded(backend: Backend) {
    with_work(&backend).await;
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let body = async |run: Run| {
        paid(&backend, &run).await?;
        // Others have the key already, and this lease is stopped.
        let guard = other.lock(KEY).acquire().await.unwrap();
        drop(guard);
        locks.shutdown(std::time::Duration::ZERO).await;
        std::future::pending::<Result<u32, PayError>>().await
    };
    let ended = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await;
    assert_eq!(ended.unwrap(), Once::Ran(7), "the record decides");
    assert_eq!(
        (state(&other).await, times(&backend, "a").await),
        ((RecordState::Succeeded, 1), 1)
    );
    drop_work(&backend).await;
}

async fn a_body_that_forgets_to_complete_is_told_and_not_repeated(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let told = reason(pay(&locks, run(OnCrash::CompleteIn), &effects).await);
    assert!(matches!(told, RunError::NotCompleted), "{told:?}");
    assert!(backend.the_row(KEY).await.is_free());
    assert_eq!(
        pay(&locks, run(OnCrash::CompleteIn), &effects).await.unwrap(),
        Once::Replayed(1)
    );
}

async fn a_value_that_is_too_large_is_refused_before_anything_is_written(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        work(&backend, &mut transaction, "a").await;
        let refused = transaction.complete(&run, &1234).await.unwrap_err();
        let LockError::Run {
            reason: RunError::NotStorable { why, .. },
            ..
        } = &refused
        else {
            panic!("{refused:?}")
        };
        assert!(why.contains("4 bytes"), "{why}");
        // The transaction is as it was.
        transaction.complete(&run, &123).await?;
        transaction.commit().await;
        Ok::<_, PayError>(123)
    };
    let options = run(OnCrash::CompleteIn).max_result(3);
    assert_eq!(locks.run_once(KEY, options, body).await.unwrap(), Once::Ran(123));
    assert_eq!(times(&backend, "a").await, 1);
    drop_work(&backend).await;
}

async fn completing_under_an_outer_lock_leaves_that_lock(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let inside = async {
        let body = async |run: Run| paid(&backend, &run).await;
        let ran = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap();
        assert_eq!(backend.the_row(KEY).await.reentrant_count, 1, "the outer hold");
        ran
    };
    assert_eq!(locks.lock(KEY).run(inside).await.unwrap(), Once::Ran(7));
    assert!(backend.the_row(KEY).await.is_free());
    drop_work(&backend).await;
}

/// Somebody else has run meanwhile.
async fn a_paused_attempt_cannot_complete(backend: Backend) {
    with_work(&backend).await;
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let effects = Effects::default();
    let unrenewed = dblock::LockOptions::new()
        .ttl(crate::SHORT)
        .renew(false)
        .on_lost(dblock::OnLost::Signal);
    let body = async |run: Run| {
        let waits =
            crate::run(OnCrash::Retry).lock(dblock::LockOptions::new().ttl(crate::LONG).wait(crate::LONG));
        assert_eq!(pay(&other, waits, &effects).await?, Once::Ran(1));
        let mut transaction = Transaction::begin(&backend).await;
        work(&backend, &mut transaction, "a").await;
        let refused = transaction.complete(&run, &7).await.unwrap_err();
        assert!(refused.is_lost(), "{refused:?}");
        transaction.rollback().await;
        Ok::<_, PayError>(7)
    };
    let lost = locks
        .run_once(KEY, run(OnCrash::CompleteIn).lock(unrenewed), body)
        .await
        .unwrap_err();
    assert!(
        matches!(&lost, PayError::Lock(error) if error.is_lost()),
        "{lost:?}"
    );
    assert_eq!(
        (times(&backend, "a").await, state(&other).await),
        (0, (RecordState::Succeeded, 2))
    );
    drop_work(&backend).await;
}

/// A child enters while the run is being completed.
async fn no_child_stays_in_a_lock_that_a_transaction_ends(backend: Backend) {
    let locks = backend.manager().await;
    for polls in 1..12 {
        let key = format!("pay beside a child {polls}");
        let body = async |run: Run| {
            let mut transaction = Transaction::begin(&backend).await;
            let entered = std::cell::Cell::new(false);
            let answer = {
                let call = transaction.complete(&run, &7);
                tokio::pin!(call);
                let mut left = polls;
                let early = std::future::poll_fn(|context| {
                    left -= 1;
                    match call.as_mut().poll(context) {
                        std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
                        polled => polled.map(Some),
                    }
                })
                .await;
                let child = inherit(async {
                    entered.set(true);
                    std::future::pending::<()>().await;
                });
                tokio::pin!(child);
                let call = async {
                    match early {
                        Some(answer) => answer,
                        None => call.await,
                    }
                };
                tokio::pin!(call);
                let mut refused = false;
                loop {
                    tokio::select! {
                        biased;
                        child = &mut child, if !refused => {
                            assert!(child.is_err(), "it does not end");
                            refused = true;
                        }
                        answer = &mut call => break answer,
                    }
                }
            };
            assert!(
                answer.is_err() || !entered.get(),
                "after {polls} polls the child is inside of a lock that ends"
            );
            answer?;
            transaction.commit().await;
            Ok::<_, PayError>(7)
        };
        let _ = locks.run_once(&key, run(OnCrash::CompleteIn), body).await;
    }
}

/// The first one ends the lock, so whoever entered would stay in a lock that is free.
async fn a_second_completion_does_not_open_the_lock(backend: Backend) {
    with_work(&backend).await;
    let locks = backend.manager().await;
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        transaction.complete(&run, &7).await?;
        let mut second = Transaction::begin(&backend).await;
        second.complete(&run, &8).await.unwrap_err();
        second.rollback().await;
        let nested = locks.lock(KEY).run(async {}).await;
        let refused = nested.unwrap_err();
        assert!(refused.is_retryable() && !refused.is_lost(), "{refused:?}");
        let child = inherit(async {}).await.unwrap_err();
        assert!(matches!(child, LockError::Invalid { .. }), "{child:?}");
        transaction.commit().await;
        Ok::<_, PayError>(7)
    };
    let ran = locks.run_once(KEY, run(OnCrash::CompleteIn), body).await.unwrap();
    assert_eq!(ran, Once::Ran(7));
    assert!(backend.the_row(KEY).await.is_free());
    drop_work(&backend).await;
}
