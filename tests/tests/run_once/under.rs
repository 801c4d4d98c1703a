//! Runs under a lock whose row a transaction of the caller's keeps locked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::store::{
    RecordChange, RecordEntry, RecordState, RecordWrite, Records, Store, StoreError, StoreErrorKind,
    StoreFuture,
};
use dblock::{Key, LockError, LockManager, LockOptions, OnCrash, Once, TimeoutCause};
use dblock_conformance::Fixture as _;
use dblock_tests::around::{Around, Between};
use dblock_tests::backend::Place;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, Kind, on_every_store};
use tokio::time::Instant;

use crate::{Effects, KEY, LONG, PayError, SHORT, pay, run};

on_every_store!(databases: a_run_under_a_lock_that_a_transaction_keeps_is_refused_at_once);
on_every_store!(servers: a_run_under_a_lock_that_a_transaction_has_checked_is_busy);
on_every_store!(servers: a_write_under_a_lease_waits_for_no_row);

/// It would wait for a row that this very transaction keeps.
async fn a_run_under_a_lock_that_a_transaction_keeps_is_refused_at_once(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let calls = async {
        let forever = run(OnCrash::Retry).lock(LockOptions::new().wait_forever());
        pay(&locks, forever, &effects).await
    };
    let answer = match backend.place() {
        Place::Postgres(pool, _) => in_a_transaction(&locks, pool, calls).await,
        Place::MySql(pool, _) => in_a_transaction(&locks, pool, calls).await,
        // There the release is written last, so the run is an ordinary one.
        Place::Sqlite(pool, _) => {
            in_a_transaction(&locks, pool, calls).await.unwrap();
            return assert_eq!(effects.count(), 1);
        }
        Place::Memory(_) => unreachable!("memory has no transactions"),
    };
    let refused = answer.unwrap_err();
    assert!(
        matches!(&refused, PayError::Lock(LockError::Invalid { .. })),
        "{refused:?}"
    );
    assert_eq!(effects.count(), 0);
    assert_eq!(
        pay(&locks, run(OnCrash::Retry), &effects).await.unwrap(),
        Once::Ran(1)
    );
}

/// The transaction has only called `verify_in`. The lock itself is entered again, and the record is not begun.
async fn a_run_under_a_lock_that_a_transaction_has_checked_is_busy(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let called = async |wait: Option<Duration>| {
        let mut options = LockOptions::new();
        if let Some(wait) = wait {
            options = options.wait(wait);
        }
        let since = Instant::now();
        let again = locks.lock(KEY).options(&options).run(async {}).await;
        again.expect("it is the caller's own lock");
        let answer = pay(&locks, run(OnCrash::Stop).lock(options), &effects).await;
        (answer.unwrap_err(), since.elapsed())
    };
    let outer = LockOptions::new().ttl(LONG);
    let inside = locks.lock(KEY).options(&outer).run(async {
        let mut transaction = Transaction::begin(&backend).await;
        let lock = dblock::current().unwrap();
        transaction.verify_current(&lock).await.unwrap();
        let answers = [called(None).await, called(Some(SHORT)).await];
        transaction.rollback().await;
        answers
    });
    let [(busy, _), (late, took)] = inside.await.unwrap();
    assert!(
        matches!(&busy, PayError::Lock(LockError::Busy { .. })),
        "{busy:?}"
    );
    assert!(
        matches!(
            &late,
            PayError::Lock(LockError::Timeout {
                cause: TimeoutCause::RowLocked,
                ..
            })
        ),
        "after {took:?}: {late:?}"
    );
    assert_eq!(effects.count(), 0);
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(1),
        "what was refused is in no doubt"
    );
}

/// Calls inside of `transaction`.
async fn in_a_transaction<DB: sqlx::Database>(
    locks: &LockManager,
    pool: &sqlx::Pool<DB>,
    calls: impl Future<Output = Result<Once<u32>, PayError>>,
) -> Result<Once<u32>, PayError>
where
    sqlx::Transaction<'static, DB>: dblock::fence::FenceConnection,
{
    let options = LockOptions::new().ttl(LONG);
    locks
        .lock(KEY)
        .options(&options)
        .transaction(pool, async |_| calls.await)
        .await
}

/// The lock's row, and then the record's.
async fn a_write_under_a_lease_waits_for_no_row(backend: Backend) {
    let (locks, store) = (backend.manager().await, backend.store().await);
    let records = store.records().unwrap();
    let guard = locks.lock(KEY).ttl(LONG).acquire().await.unwrap();
    let lease_id = backend.the_row(KEY).await.lease_id;
    let begun = RecordEntry {
        state: RecordState::Processing,
        attempts: 1,
        fence_token: guard.fence_token(),
        fingerprint: None,
        result: None,
        error: None,
        holder: "host/1".into(),
        keep: LONG,
    };
    let version = begun.version();
    let key = Key::new(None, KEY).unwrap();
    let insert = RecordWrite::under(key.clone(), RecordChange::Insert(begun.clone()), lease_id);
    let replace = RecordWrite::under(key.clone(), RecordChange::Replace(version, begun), lease_id);
    let delete = RecordWrite::under(key, RecordChange::Delete(version), lease_id);
    let locked = async |write| {
        let error = records.write(write).await.unwrap_err();
        // The database's own answer comes after its timeout.
        let skipped = error.kind() == StoreErrorKind::Conflict && error.to_string().contains("still open");
        assert!(skipped, "{error:?}");
    };

    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    locked(&insert).await;
    transaction.rollback().await;
    assert!(records.write(&insert).await.unwrap());

    let mut transaction = Transaction::begin(&backend).await;
    let table = &backend.table;
    transaction
        .execute(format!("UPDATE {table}_record SET attempts = attempts + 1"))
        .await;
    locked(&replace).await;
    locked(&delete).await;
    transaction.rollback().await;
    for write in [&replace, &delete] {
        assert!(records.write(write).await.unwrap());
        transaction = Transaction::begin(&backend).await;
        transaction.verify(&guard).await.unwrap();
        locked(write).await;
        transaction.rollback().await;
    }
    assert!(!records.write(&delete).await.unwrap(), "there is none");
}

/// Answers a write under a lease so many times that a row is locked.
#[derive(Debug)]
struct RowLocked(AtomicU32);

impl Between for RowLocked {
    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        let less = |left: u32| left.checked_sub(1);
        let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
        if write.needs().is_some() && self.0.fetch_update(set, get, less).is_ok() {
            let locked = StoreError::new(StoreErrorKind::Conflict, "a row is locked");
            return Box::pin(async { Err(locked) });
        }
        records.write(write)
    }
}

/// Runs under an outer lock, which does not begin it.
async fn beside_a_locked_row(times: u32, options: LockOptions) -> (Result<Once<u32>, PayError>, Duration) {
    let backend = Backend::new(Kind::PausedMemory).await.unwrap();
    let store = Around::new(backend.store().await, RowLocked(times.into()));
    let locks = LockManager::builder(store as Arc<dyn Store>)
        .build_lazy()
        .unwrap();
    let effects = Effects::default();
    let options = run(OnCrash::Stop).lock(options);
    let outer = LockOptions::new().ttl(LONG);
    let calls = locks.lock(KEY).options(&outer).run(async {
        let since = Instant::now();
        (pay(&locks, options, &effects).await, since.elapsed())
    });
    let (answer, took) = calls.await.unwrap();
    assert_eq!(effects.count(), u32::from(answer.is_ok()));
    (answer, took)
}

#[tokio::test(start_paused = true)]
async fn a_locked_row_is_waited_for_within_the_wait() {
    let (ran, _) = beside_a_locked_row(10, LockOptions::new().wait(LONG)).await;
    assert_eq!(ran.unwrap(), Once::Ran(1));

    let (late, took) = beside_a_locked_row(u32::MAX, LockOptions::new().wait(SHORT)).await;
    assert!(
        matches!(
            &late,
            Err(PayError::Lock(LockError::Timeout {
                cause: TimeoutCause::RowLocked,
                ..
            }))
        ),
        "{late:?}"
    );
    assert!(took <= SHORT, "{took:?}");

    let (busy, took) = beside_a_locked_row(u32::MAX, LockOptions::new()).await;
    assert!(
        matches!(&busy, Err(PayError::Lock(LockError::Busy { .. }))),
        "{busy:?}"
    );
    assert!(took < SHORT, "{took:?}");
}
