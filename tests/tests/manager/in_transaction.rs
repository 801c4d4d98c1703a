//! `locks.transaction`, and calls with `tx = tx`.

use std::future::{Future as _, poll_fn};
use std::panic::AssertUnwindSafe;
use std::task::Poll;
use std::time::Duration;

use dblock::fence::FenceConnection;
use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, begin, current, distributed_lock};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::{Kind, Place};
use dblock_tests::faulty_store::{FaultyStore, Kind as Asked};
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt as _;
use sqlx::{AssertSqlSafe, Database, Executor, Pool, Transaction};
use tokio::sync::oneshot;

use crate::{LONG, long, patient, short};

on_every_store!(databases:
    others_enter_after_the_commit,
    an_error_of_the_body_takes_its_work_back,
    a_panic_of_the_body_takes_its_work_back,
    a_call_that_is_dropped_leaves_nothing_behind,
    it_may_take_longer_than_the_ttl,
    nested_calls_enter_again,
    a_nested_transaction_leaves_the_lock_to_the_outer_call,
    the_next_task_enters_after_the_commit,
    a_pool_of_another_database_is_refused,
    the_callers_commit_ends_the_lock,
    the_callers_rollback_takes_everything_back,
    later_calls_in_a_transaction_enter_again,
    calls_in_a_transaction_nest,
    later_calls_enter_again_after_a_ttl_too,
    options_that_make_no_sense_are_refused,
);
on_every_store!(servers:
    another_transaction_cannot_check_the_lock,
    a_body_that_ends_its_transaction_fails_the_call,
    a_nested_transaction_that_is_over_fails_the_call_too,
    a_child_cannot_share_the_lock_of_a_transaction,
    a_connection_that_is_killed_frees_the_key,
    opposite_orders_end_with_an_error,
    another_transaction_waits_for_the_first,
);
on_every_store!(postgres: an_error_that_the_body_swallows_fails_the_call);
on_every_store!(memory: memory_has_no_transactions);

/// The error of the application.
#[derive(Debug)]
enum Failure {
    Lock(LockError),
    Database(sqlx::Error),
    Own,
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl Failure {
    fn lock(self) -> LockError {
        match self {
            Self::Lock(error) => error,
            Self::Database(error) => panic!("{error:?}"),
            Self::Own => panic!("the body's own error"),
        }
    }

    fn kind(self) -> StoreErrorKind {
        match self.lock() {
            LockError::Store { source, .. } => source.kind(),
            other => panic!("{other:?}"),
        }
    }
}

/// Does something with the application's pool, whichever database it is of.
macro_rules! on_its_pool {
    ($backend:expr, $pool:ident => $do:expr) => {
        match $backend.place() {
            Place::Postgres($pool, _) => $do,
            Place::MySql($pool, _) => $do,
            Place::Sqlite($pool, _) => $do,
            Place::Memory(_) => unreachable!("memory has no transactions"),
        }
    };
}

async fn execute<'c, E: Executor<'c>>(executor: E, sql: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(executor)
        .await
        .map(drop)
}

/// A table of the application's, beside the lock's.
struct Work {
    table: String,
}

impl Work {
    async fn new(backend: &Backend) -> Self {
        let table = format!("{}_work", backend.table);
        let create = format!("CREATE TABLE {table} (done INTEGER)");
        on_its_pool!(backend, pool => execute(pool, create).await.unwrap());
        Self { table }
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES (1)", self.table)
    }

    async fn done(&self, backend: &Backend) -> i64 {
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {}", self.table));
        on_its_pool!(backend, pool => sqlx::query_scalar(count).fetch_one(pool).await.unwrap())
    }
}

/// On SQLite a transaction that has written keeps every other writer out: nobody can even ask.
async fn nobody_enters(backend: &Backend, locks: &LockManager) {
    if backend.kind() != Kind::Sqlite {
        assert!(locks.try_acquire("key", long()).await.unwrap().is_none());
    }
}

/// The key is free at once, not when a ttl has passed.
async fn is_free(locks: &LockManager) {
    let guard = locks.acquire("key", patient()).await.unwrap();
    guard.release().await.unwrap();
}

/// Waits until so much of the database's time has passed.
async fn passes(backend: &Backend, time: Duration) {
    let micros = i64::try_from(time.as_micros()).unwrap();
    let start = backend.the_row("key").await.now;
    backend.until("key", LONG, |row| row.now > start + micros).await;
}

async fn others_enter_after_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    let (waits, waiting) = oneshot::channel();
    let next = tokio::spawn({
        let (other, backend) = (other.clone(), backend.clone());
        let table = work.table.clone();
        async move {
            waiting.await.unwrap();
            let guard = other.acquire("key", patient()).await.unwrap();
            let done = Work { table }.done(&backend).await;
            guard.release().await.unwrap();
            done
        }
    });
    on_its_pool!(backend, pool => {
        let value = locks.transaction(pool, "key", long(), async |mut tx| {
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
            let call = locks.transaction(&pool, "key", long(), async |mut tx| {
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

async fn an_error_of_the_body_takes_its_work_back(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let failed = locks.transaction(pool, "key", long(), async |mut tx| {
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
        let panics = locks.transaction(pool, "key", long(), async |mut tx| {
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
            let mut call = Box::pin(locks.transaction(pool, "key", patient(), async |mut tx| {
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

async fn it_may_take_longer_than_the_ttl(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    on_its_pool!(backend, pool => {
        let body = locks.transaction(pool, "key", short(), async |_| {
            passes(&backend, Duration::from_millis(2_500)).await;
            assert!(other.try_acquire("key", long()).await.unwrap().is_none());
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
        let body = locks.transaction(pool, "key", long(), async |mut tx| {
            let token = current().unwrap().fence_token();
            let nested = locks.with("key", long(), async { current().unwrap() }).await?;
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
    let outer = locks.with("key", long(), async {
        on_its_pool!(backend, pool => {
            let inner = locks.transaction(pool, "key", long(), async |mut tx| {
                execute(&mut **tx, work.insert()).await?;
                Ok::<_, Failure>(())
            });
            inner.await.unwrap();
        });
        assert!(other.try_acquire("key", long()).await.unwrap().is_none());
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
                locks.acquire("key", patient()).await.unwrap()
            }
        });
        let body = locks.transaction(pool, "key", long(), async |_| {
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

async fn a_pool_of_another_database_is_refused(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let pool = sqlx::SqlitePool::connect("sqlite::memory:").await.unwrap();
    let refused = locks.transaction(&pool, "key", long(), async |_| Ok::<_, Failure>(()));
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
    let refused = locks.transaction(&pool, "key", long(), async |_| Ok::<_, Failure>(()));
    assert_eq!(refused.await.unwrap_err().kind(), StoreErrorKind::Unsupported);
    is_free(&locks).await;
}

// ── Servers ──────────────────────────────────────────────────────────────────────────────────────────

/// It would wait for the first one, which waits for it.
async fn another_transaction_cannot_check_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let body = locks.transaction(pool, "key", long(), async |_| {
            let nested = locks.transaction(pool, "key", long(), async |_| Ok::<_, Failure>(()));
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

/// PostgreSQL would answer the commit with a rollback, and the driver would not say so.
async fn an_error_that_the_body_swallows_fails_the_call(backend: Backend) {
    let locks = backend.manager().await;
    let Place::Postgres(pool, _) = backend.place() else {
        unreachable!()
    };
    let work = Work::new(&backend).await;
    let swallows = locks.transaction(pool, "key", long(), async |mut tx| {
        execute(&mut **tx, work.insert()).await?;
        execute(&mut **tx, "SELECT 1/0".to_owned()).await.unwrap_err();
        Ok::<_, Failure>(())
    });
    let failed = swallows.await.unwrap_err().lock();
    assert!(matches!(failed, LockError::Store { .. }), "{failed:?}");
    assert_eq!(work.done(&backend).await, 0);
    is_free(&locks).await;
}

/// What comes after the end would be committed without the lock. Nobody may repeat what stands.
async fn a_body_that_ends_its_transaction_fails_the_call(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    for (end, stands) in [("ROLLBACK", 0), ("COMMIT", 1)] {
        on_its_pool!(backend, pool => {
            let ends = locks.transaction(pool, "key", patient(), async |mut tx| {
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

/// The outer call keeps the lock, so the transaction itself is what has to be found.
async fn a_nested_transaction_that_is_over_fails_the_call_too(backend: Backend) {
    let locks = backend.manager().await;
    let work = Work::new(&backend).await;
    let outer = locks.with("key", long(), async {
        on_its_pool!(backend, pool => {
            let swallows = locks.transaction(pool, "key", long(), async |mut tx| {
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
            let done = locks.transaction(pool, "key", long(), async |mut tx| {
                Ok::<_, Failure>(execute(&mut **tx, work.insert()).await?)
            });
            done.await.unwrap();
        });
    });
    outer.await.unwrap();
    assert_eq!(work.done(&backend).await, 1);
}

/// The commit would free the key under it.
async fn a_child_cannot_share_the_lock_of_a_transaction(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let body = locks.transaction(pool, "key", long(), async |_| {
            let refused = dblock::inherit(async {}).await.unwrap_err();
            assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
            Ok::<_, Failure>(())
        });
        body.await.unwrap();
    });
    is_free(&locks).await;
}

async fn a_connection_that_is_killed_frees_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let work = Work::new(&backend).await;
    on_its_pool!(backend, pool => {
        let killed = locks.transaction(pool, "key", long(), async |mut tx| {
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

// ── Calls in a transaction of the caller's ───────────────────────────────────────────────────────────

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
        let next = other.acquire("key", patient()).await.unwrap();
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
        passes(&backend, Duration::from_millis(2_500)).await;
        assert_eq!(brief(&locks, &mut tx).await.unwrap(), first);
        nobody_enters(&backend, &other).await;
        tx.commit().await.unwrap();
    });
    is_free(&other).await;
}

#[distributed_lock(key = "key", ttl = "1s", manager = locks, tx = tx)]
async fn brief<DB>(locks: &LockManager, tx: &mut Transaction<'static, DB>) -> Result<i64, Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    let _ = &tx;
    Ok(current().unwrap().fence_token())
}

/// Takes the lock with these options in a transaction of its own.
async fn enters<DB>(locks: &LockManager, pool: &Pool<DB>, options: LockOptions) -> Result<(), Failure>
where
    DB: Database,
    Transaction<'static, DB>: FenceConnection,
{
    locks.transaction(pool, "key", options, async |_| Ok(())).await
}

async fn options_that_make_no_sense_are_refused(backend: Backend) {
    let locks = backend.manager().await;
    on_its_pool!(backend, pool => {
        let refused = enters(&locks, pool, long().hold_min(Duration::from_secs(1))).await.unwrap_err();
        assert!(matches!(refused, Failure::Lock(LockError::Invalid { .. })), "{refused:?}");
    });
    assert!(backend.row("key").await.is_none(), "nothing was sent");
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
            .acquire(key, patient())
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
        // It looks whether its own transaction keeps the lock, and then waits. Meanwhile the release is refused.
        let refused = store.asked_to(Asked::Release).len() + 3;
        tokio::select! {
            early = second.as_mut() => panic!("{early:?}"),
            () = store.until_asked(Asked::Release, refused) => {}
        }
        one.commit().await.unwrap();
        assert!(second.await.unwrap() > first);
        two.commit().await.unwrap();
    });
    assert_eq!(work.done(&backend).await, 2);
    is_free(&locks).await;
}
