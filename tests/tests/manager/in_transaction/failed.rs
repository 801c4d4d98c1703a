//! `transaction` whose body, call or transaction does not come to its end: nothing of it stands, and
//! the key is free.

use std::future::{Future as _, pending, poll_fn};
use std::panic::AssertUnwindSafe;
use std::task::Poll;

use dblock::optimistic::Conflict as _;
use dblock::store::StoreErrorKind;
use dblock::{LockError, current};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::{Kind, Place};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind as Asked};
use dblock_tests::line::{self, Line};
use dblock_tests::proxy::Traffic;
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt as _;
use sqlx::Connection as _;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Failure, Work, execute, is_free, of_a_free_key, of_one, on_its_pool};
use crate::{LONG, briefly, long, patient};

on_every_store!(databases:
    an_error_of_the_body_takes_its_work_back,
    a_panic_of_the_body_takes_its_work_back,
    a_call_that_is_dropped_leaves_nothing_behind,
    a_nested_transaction_that_was_dropped_while_it_began_is_no_silent_rollback,
    a_pool_without_a_free_connection_does_not_keep_the_key,
    a_hold_that_outlives_the_body_fails_the_call,
    a_body_that_ends_its_transaction_spoils_no_connection,
);
on_every_store!(servers:
    a_body_that_ends_its_transaction_fails_the_call,
    a_check_in_a_transaction_that_is_over_is_no_reason_to_repeat,
    a_nested_transaction_that_is_over_fails_the_call_too,
    a_nested_transaction_that_its_body_ends_fails_the_call,
    a_connection_that_is_killed_frees_the_key,
    a_store_that_is_down_before_the_body_is_told_as_that,
    a_guard_that_outlives_the_body_is_lost,
);
on_every_store!(postgres: an_error_that_the_body_swallows_fails_the_call);
on_every_store!(mysql:
    a_deadlock_that_the_body_swallows_fails_the_call,
    the_answer_of_an_abandoned_statement_is_not_taken_for_that_of_the_commit,
);
of_a_free_key!(
    an_error_of_the_body_takes_its_work_back,
    a_panic_of_the_body_takes_its_work_back,
    a_call_that_is_dropped_leaves_nothing_behind,
    a_body_that_ends_its_transaction_fails_the_call,
    a_nested_transaction_that_was_dropped_while_it_began_is_no_silent_rollback,
    a_check_in_a_transaction_that_is_over_is_no_reason_to_repeat,
    a_connection_that_is_killed_frees_the_key,
    a_guard_that_outlives_the_body_is_lost,
    a_deadlock_that_the_body_swallows_fails_the_call,
    the_answer_of_an_abandoned_statement_is_not_taken_for_that_of_the_commit,
);

async fn an_error_of_the_body_takes_its_work_back(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let failed = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            Err::<(), _>(Failure::Own)
        });
        assert!(matches!(failed.await, Err(Failure::Own)));
    });
    assert_eq!(work.done(&backend).await, 0);
    is_free(&other).await;
}

async fn a_panic_of_the_body_takes_its_work_back(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let panics = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            panic!("the body");
            #[expect(unreachable_code, reason = "gives the body its type")]
            Ok::<(), Failure>(())
        });
        AssertUnwindSafe(panics).catch_unwind().await.unwrap_err();
    });
    is_free(&other).await;
    assert_eq!(work.done(&backend).await, 0);
}

/// Dropped at each of its awaits.
async fn a_call_that_is_dropped_leaves_nothing_behind(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    for polls in 1.. {
        let before = work.done(&backend).await;
        let mut answered = false;
        on_its_pool!(backend, pool => {
            let mut call = Box::pin(locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                Ok::<_, Failure>(())
            }));
            let mut polled = 0;
            poll_fn(|context| {
                polled += 1;
                match call.as_mut().poll(context) {
                    Poll::Pending if polled < polls => Poll::Pending,
                    Poll::Pending => Poll::Ready(()),
                    Poll::Ready(result) => {
                        result.unwrap();
                        answered = true;
                        Poll::Ready(())
                    }
                }
            })
            .await;
        });
        is_free(&other).await;
        let done = work.done(&backend).await - before;
        assert!(done == 1 || done == 0 && !answered, "{done} after {polls} polls");
        if answered {
            return;
        }
    }
}

/// The end of the transaction frees the key beside it, whichever way it ends.
async fn a_guard_that_outlives_the_body_is_lost(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let nested = || locks.lock("key").options(&patient()).acquire();
    on_its_pool!(backend, pool => {
        let mut left = None;
        let fails = locks.lock("key").options(&patient()).transaction(pool, async |_| {
            left = Some(nested().await?);
            Err::<(), _>(Failure::Own)
        });
        assert!(matches!(fails.await, Err(Failure::Own)));
        let guard = left.take().unwrap();
        assert!(guard.is_lost());
        drop(guard);
        is_free(&other).await;

        let (inside, is_inside) = oneshot::channel();
        let call = locks.lock("key").options(&patient()).transaction(pool, async |_| {
            left = Some(nested().await?);
            inside.send(()).unwrap();
            pending::<Result<(), Failure>>().await
        });
        tokio::select! {
            ended = call => panic!("{ended:?}"),
            told = is_inside => told.unwrap(),
        }
        let guard = left.take().unwrap();
        assert!(guard.is_lost());
        drop(guard);
        is_free(&other).await;
    });
}

/// The commit would free the key beside it; on SQLite the call would end before its lock does.
async fn a_hold_that_outlives_the_body_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    is_free(&other).await;
    let mut left = None;
    on_its_pool!(backend, pool => {
        let call = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            left = Some(locks.lock("key").options(&long()).acquire().await?);
            execute(&mut **tx, work.insert()).await?;
            Ok::<_, Failure>(())
        });
        let refused = call.await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Other);
    });
    assert_eq!(work.done(&backend).await, 0, "nothing was committed");
    drop(left);
    is_free(&other).await;
}

/// PostgreSQL would answer the commit with a rollback, and the driver would not say so.
async fn an_error_that_the_body_swallows_fails_the_call(backend: Backend) {
    let locks = backend.manager().await;
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!()
    };
    let work = Work::new(&backend).await;
    let swallows = locks
        .lock("key")
        .options(&long())
        .transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            execute(&mut **tx, "SELECT 1/0".to_owned()).await.unwrap_err();
            Ok::<_, Failure>(())
        });
    assert_eq!(swallows.await.unwrap_err().kind(), StoreErrorKind::Conflict);
    assert_eq!(work.done(&backend).await, 0);
    is_free(&locks).await;
}

/// Statements after the end would be committed without the lock. Nobody may repeat what stands.
async fn a_body_that_ends_its_transaction_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    for (end, stands) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        on_its_pool!(backend, pool => {
            let ends = locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                execute(&mut **tx, end.to_owned()).await?;
                Ok::<_, Failure>(())
            });
            let kind = ends.await.unwrap_err().kind();
            assert_eq!(kind, StoreErrorKind::Other, "{end}");
        });
        assert_eq!(work.done(&backend).await, stands, "{end}");
        is_free(&other).await;
    }
}

async fn a_body_that_ends_its_transaction_spoils_no_connection(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let pool = of_one(pool).await;
        let call = async |end: Option<&str>, result: Result<(), Failure>| {
            let call = locks.lock("key").options(&patient()).transaction(&pool, async |mut tx| {
                if let Some(end) = end {
                    execute(&mut **tx, end.to_owned()).await?;
                } else if result.is_ok() {
                    execute(&mut **tx, work.insert()).await?;
                }
                result
            });
            call.await
        };
        call(Some("ROLLBACK"), Ok(())).await.unwrap_err();
        call(None, Err(Failure::Own)).await.unwrap_err();
        call(None, Ok(())).await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 1);
    is_free(&other).await;
}

/// sqlx 0.9.0 rolls the outer transaction back then, but not on MySQL.
async fn a_nested_transaction_that_was_dropped_while_it_began_is_no_silent_rollback(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let stands;
    on_its_pool!(backend, pool => {
        let call = locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            drop((**tx).begin().now_or_never());
            Ok::<_, Failure>(())
        });
        stands = match call.await {
            Ok(()) => 1,
            Err(failed) => {
                assert_eq!(failed.kind(), StoreErrorKind::Other);
                0
            }
        };
    });
    assert_eq!(work.done(&backend).await, stands);
    is_free(&other).await;
}

/// As above, and the body notices. What it has written before or since stands.
async fn a_check_in_a_transaction_that_is_over_is_no_reason_to_repeat(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    for end in ["ROLLBACK", "COMMIT"] {
        on_its_pool!(backend, pool => {
            let ends = locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                execute(&mut **tx, end.to_owned()).await?;
                execute(&mut **tx, work.insert()).await?;
                current().unwrap().verify_in(&mut *tx).await?;
                Ok::<_, Failure>(())
            });
            is_final(&ends.await.unwrap_err().lock(), end);
        });
        is_free(&other).await;
    }
    assert_eq!(work.done(&backend).await, 3);
}

/// On MySQL the manager's own read tells whether the transaction still keeps the lock.
#[tokio::test]
async fn a_check_that_the_managers_store_does_not_answer_is_no_reason_to_repeat() {
    let Some(line) = Line::new(line::Database::MySql).await else {
        return;
    };
    let locks = line.manager().await;
    let pool = sqlx::MySqlPool::connect(&line.url).await.unwrap();
    let checks = locks
        .lock("key")
        .options(&patient())
        .transaction(&pool, async |mut tx| {
            line.proxy.set(Traffic::Refused);
            let checked = current().unwrap().verify_in(&mut *tx).await;
            line.proxy.set(Traffic::Flows);
            Ok::<_, Failure>(checked?)
        });
    is_final(&checks.await.unwrap_err().lock(), "no answer");
}

#[track_caller]
fn is_final(error: &LockError, when: &str) {
    assert!(
        error.is_store() && !error.is_retryable() && !error.is_conflict(),
        "{when}: {error:?}"
    );
}

/// The victim's statements go on, each by itself: what it writes then stands.
async fn a_deadlock_that_the_body_swallows_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let rows = format!("{}_rows", backend.table);
    let update = |id: u32| format!("UPDATE {rows} SET n = n + 1 WHERE id = {id}");
    let all = (0..50)
        .map(|id| format!("({id}, 0)"))
        .collect::<Vec<_>>()
        .join(", ");
    backend
        .execute(&format!(
            "CREATE TABLE {rows} (id INTEGER PRIMARY KEY, n INTEGER)"
        ))
        .await;
    backend.execute(&format!("INSERT INTO {rows} VALUES {all}")).await;
    on_its_pool!(backend, pool => {
        let mut theirs = dblock::begin(pool).await.unwrap();
        // It has written more, so it is not the victim.
        execute(&mut *theirs, format!("UPDATE {rows} SET n = n + 1 WHERE id > 0")).await.unwrap();
        let swallows = locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
            execute(&mut **tx, update(0)).await?;
            let theirs_waits = execute(&mut *theirs, update(0));
            let ours_fails = execute(&mut **tx, update(1));
            let (theirs, ours) = futures_util::join!(theirs_waits, ours_fails);
            theirs.unwrap();
            ours.unwrap_err();
            Ok::<_, Failure>(execute(&mut **tx, work.insert()).await?)
        });
        assert_eq!(swallows.await.unwrap_err().kind(), StoreErrorKind::Other);
        theirs.rollback().await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 1);
    backend.execute(&format!("DROP TABLE {rows}")).await;
    is_free(&other).await;
}

/// It waits for a table, gives up, and has committed the transaction before.
async fn the_answer_of_an_abandoned_statement_is_not_taken_for_that_of_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (work, busy) = (Work::new(&backend).await, format!("{}_busy", backend.table));
    on_its_pool!(backend, pool => {
        execute(pool, format!("CREATE TABLE {busy} (done INTEGER)")).await.unwrap();
        let mut reader = pool.begin().await.unwrap();
        execute(&mut *reader, format!("SELECT * FROM {busy}")).await.unwrap();
        let call = locks.lock("key").options(&patient()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            execute(&mut **tx, "SET SESSION lock_wait_timeout = 1".to_owned()).await?;
            let alters = execute(&mut **tx, format!("ALTER TABLE {busy} ADD COLUMN more INTEGER"));
            assert!(alters.now_or_never().is_none(), "it waits for the reader");
            Ok::<_, Failure>(())
        });
        is_final(&call.await.unwrap_err().lock(), "ALTER TABLE");
        reader.rollback().await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 1, "the statement has committed it");
    is_free(&other).await;
}

/// The outer call keeps the lock, so the transaction itself is what has to be found.
async fn a_nested_transaction_that_is_over_fails_the_call_too(backend: Backend) {
    let locks = backend.manager().await;
    let work = Work::new(&backend).await;
    let outer = locks.lock("key").options(&long()).run(async {
        on_its_pool!(backend, pool => {
            let swallows = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                if backend.kind() == Kind::Postgres {
                    execute(&mut **tx, "SELECT 1/0".to_owned()).await.unwrap_err();
                } else {
                    // As a deadlock would.
                    execute(&mut **tx, "ROLLBACK".to_owned()).await?;
                }
                Ok::<_, Failure>(())
            });
            let failed = swallows.await.unwrap_err().lock();
            assert!(failed.is_store(), "{failed:?}");
            let done = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
                Ok::<_, Failure>(execute(&mut **tx, work.insert()).await?)
            });
            done.await.unwrap();
        });
    });
    outer.await.unwrap();
    assert_eq!(work.done(&backend).await, 1);
}

/// As above; and another one that the body has begun by itself is not committed in its place.
async fn a_nested_transaction_that_its_body_ends_fails_the_call(backend: Backend) {
    let locks = backend.manager().await;
    let work = Work::new(&backend).await;
    let outer = locks.lock("key").options(&long()).run(async {
        for end in ["ROLLBACK", "COMMIT", "COMMIT; BEGIN"] {
            on_its_pool!(backend, pool => {
                let ends = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
                    execute(&mut **tx, end.to_owned()).await?;
                    Ok::<_, Failure>(execute(&mut **tx, work.insert()).await?)
                });
                assert_eq!(ends.await.unwrap_err().kind(), StoreErrorKind::Other, "{end}");
            });
        }
    });
    outer.await.unwrap();
    // Those that ran in no transaction.
    assert_eq!(work.done(&backend).await, 2);
}

async fn a_connection_that_is_killed_frees_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let killed = locks.lock("key").options(&long()).transaction(pool, async |mut tx| {
            execute(&mut **tx, work.insert()).await?;
            let (id, kill) = match backend.kind() {
                Kind::Postgres => ("SELECT pg_backend_pid()::bigint", "SELECT pg_terminate_backend"),
                _ => ("SELECT CAST(connection_id() AS SIGNED)", "KILL "),
            };
            let id: i64 = sqlx::query_scalar(id).fetch_one(&mut **tx).await?;
            execute(pool, format!("{kill}({id})")).await?;
            Ok::<_, Failure>(())
        });
        let failed = killed.await.unwrap_err();
        assert!(matches!(failed, Failure::Lock(LockError::Store { .. })), "{failed:?}");
    });
    assert_eq!(work.done(&backend).await, 0);
    is_free(&other).await;
}

async fn a_pool_without_a_free_connection_does_not_keep_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    on_its_pool!(backend, pool => {
        let full = of_one(pool).await;
        let taken = full.acquire().await.unwrap();
        let call = locks.lock("key").options(&briefly()).transaction(&full, async |_| Ok::<_, Failure>(()));
        let refused = timeout(LONG, call).await.expect("the call hangs").unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unreachable);
        is_free(&other).await;
        drop(taken);
    });
}

/// The lock was handed over locally, so the transaction waits until its row names the owner.
async fn a_store_that_is_down_before_the_body_is_told_as_that(backend: Backend) {
    let store = FaultyStore::over(backend.store().await);
    let (locks, other) = (store.manager(), backend.manager().await);
    store.always(Asked::Extend, Fault::Fail(StoreErrorKind::Unreachable));
    let first = other.lock("key").options(&patient()).acquire().await.unwrap();
    let waits = briefly().wait(LONG);
    on_its_pool!(backend, pool => {
        // All are in the wait queue before the release. The first of them asked before the others came, so the second
        // one is who hands over.
        let former = async || locks.lock("key").options(&patient()).acquire().await.unwrap().release().await.unwrap();
        let call = locks.lock("key").options(&waits).transaction(pool, async |_| {
            panic!("the body runs without its lock");
            #[expect(unreachable_code, reason = "gives the body its type")]
            Ok::<(), Failure>(())
        });
        let release = async { first.release().await.unwrap() };
        let ((), (), failed, ()) = tokio::join!(former(), former(), call, release);
        let failed = failed.unwrap_err().lock();
        assert!(failed.is_store() && failed.is_retryable(), "{failed:?}");
    });
}
