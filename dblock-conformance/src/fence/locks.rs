//! Locks that are checked or released in a transaction of a driver.

#![allow(clippy::unwrap_used, reason = "a check fails by panicking")]

use std::sync::Mutex;
use std::time::Duration;

use dblock::fence::{Database, FenceConnection};
use dblock::{LockGuard, LockManager, distributed_lock};
use dblock_core::store::{
    Action, Extend, Outcome, RecordChange, RecordState, RecordWrite, Records, Request, Store, StoreErrorKind,
};
use dblock_core::{LockError, LockRow};
use tokio::sync::Barrier;
use tokio::time::Instant;
use uuid::Uuid;

use super::{End, FenceFixture, execute};
use crate::context::{LONG, ROUNDS, existing, key, retry, until, within};
use crate::record::{entry, read};
use crate::{Fixture, TIMEOUT};

const NOT_IN_THE_TRANSACTION: &str = "the statement did not run in the transaction: it ran in another session, or in one \
                                      that commits by itself";

/// Longer than an answer takes, and shorter than any database waits for a lock.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A new manager on the rows: what another process would have.
async fn manager(fixture: &impl Fixture) -> LockManager {
    let manager = LockManager::builder(fixture.store().await).build().await;
    manager.unwrap_or_else(|error| panic!("no manager over the store: {error}"))
}

/// Takes a lock that nobody holds.
async fn acquire(locks: &LockManager, key: &str) -> LockGuard {
    locks.lock(key).ttl(LONG).acquire().await.unwrap()
}

/// Waits until the lock is released, which must be before its ttl is over.
async fn until_free(store: &dyn Store) {
    until(store, &key("key"), "the release", |row| row.reentrant_count == 0).await;
}

/// Whether others find the row locked. They extend the very lease, which succeeds otherwise.
async fn is_locked(store: &dyn Store, row: &LockRow) -> bool {
    let extend = Action::Extend(Extend::new(1, LONG));
    let request = Request::new(row.key.clone(), row.lease_id, extend);
    match store.apply(&[request]).await.remove(0) {
        Ok(Outcome::Skipped) => true,
        // On SQLite the transaction blocks all other writers.
        Err(error) => {
            assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
            true
        }
        Ok(Outcome::Extended { .. }) => false,
        Ok(other) => panic!("{other:?}: the lease has ended"),
    }
}

/// Nobody writes a row between the check of its lock and the end of the transaction.
pub async fn a_checked_lock_keeps_its_row_until_the_transaction_ends(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let guard = acquire(&manager(fixture).await, "key").await;
    for end in [End::Commit, End::Rollback] {
        let row = existing(&*store, &key("key")).await;
        let body = async |transaction: &mut dyn FenceConnection| {
            let checked = guard.verify_in(transaction).await;
            checked.expect("the lease holds, and the transaction is where the lock is");
            assert!(is_locked(&*store, &row).await, "{NOT_IN_THE_TRANSACTION}");
            end
        };
        fixture.transaction(body).await;
        assert!(!is_locked(&*store, &row).await, "{NOT_IN_THE_TRANSACTION}");
    }
    guard.release().await.unwrap();
}

/// Others acquire after the commit, and not before.
pub async fn a_release_in_a_transaction_takes_effect_with_the_commit(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let (locks, other) = (manager(fixture).await, manager(fixture).await);
    let guard = acquire(&locks, "key").await;
    let token = guard.fence_token();
    let body = async |transaction: &mut dyn FenceConnection| {
        guard.release_in(transaction).await.expect("the lease holds");
        let row = existing(&*store, &key("key")).await;
        assert_eq!(
            (row.reentrant_count, row.fence_token),
            (1, token),
            "{NOT_IN_THE_TRANSACTION}"
        );
        assert!(is_locked(&*store, &row).await, "{NOT_IN_THE_TRANSACTION}");
        End::Commit
    };
    fixture.transaction(body).await;
    let next = other.lock("key").wait(TIMEOUT).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

/// The rollback restores the row, and the manager frees it.
pub async fn a_release_that_is_rolled_back_has_not_been(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let guard = acquire(&manager(fixture).await, "key").await;
    let body = async |transaction: &mut dyn FenceConnection| {
        guard.release_in(transaction).await.expect("the lease holds");
        assert_eq!(
            existing(&*store, &key("key")).await.reentrant_count,
            1,
            "{NOT_IN_THE_TRANSACTION}"
        );
        End::Rollback
    };
    fixture.transaction(body).await;
    until_free(&*store).await;
}

#[distributed_lock(key = "key", ttl = "30s", wait = "5s", manager = locks, tx = tx)]
async fn token_in(locks: &LockManager, tx: &mut dyn FenceConnection) -> Result<i64, LockError> {
    Ok(dblock::current().expect("under the lock").fence_token())
}

/// A lock that ends with the transaction keeps others out until then. A second call in the transaction has the same lock.
pub async fn a_call_ends_with_its_transaction(fixture: &impl FenceFixture) {
    let (locks, other) = (manager(fixture).await, manager(fixture).await);
    // From here on the key has a row, which a transaction can take.
    acquire(&other, "key").await.release().await.unwrap();
    for end in [End::Commit, End::Rollback] {
        let given = Mutex::new(0);
        let body = async |transaction: &mut dyn FenceConnection| {
            let token = token_in(&locks, transaction).await.expect("the key is free");
            let again = token_in(&locks, transaction).await;
            assert_eq!(again.expect("it has the lock"), token, "{NOT_IN_THE_TRANSACTION}");
            *given.lock().unwrap() = token;
            // On SQLite the transaction keeps all other writers waiting.
            if transaction.database() != Database::Sqlite {
                let others = other.lock("key").try_acquire().await.unwrap();
                assert!(others.is_none(), "{NOT_IN_THE_TRANSACTION}");
            }
            end
        };
        fixture.transaction(body).await;
        let next = other.lock("key").wait(TIMEOUT).acquire().await.unwrap();
        assert!(next.fence_token() > given.into_inner().unwrap());
        next.release().await.unwrap();
    }
}

/// Neither the check nor the release succeeds for a lease that another has ended.
pub async fn a_transaction_does_not_see_a_lease_that_is_gone(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let (locks, other) = (manager(fixture).await, manager(fixture).await);
    for releases in [false, true] {
        let guard = acquire(&locks, "key").await;
        other.admin().force_release("key").await.unwrap();
        let next = acquire(&other, "key").await;
        let body = async |transaction: &mut dyn FenceConnection| {
            let gone = if releases {
                guard.release_in(transaction).await
            } else {
                guard.verify_in(transaction).await
            };
            let error = gone.expect_err("the lease is gone");
            assert!(
                error.is_lost(),
                "the lease is gone, and the transaction says: {error:?}"
            );
            End::Commit
        };
        fixture.transaction(body).await;
        assert_eq!(
            existing(&*store, &key("key")).await.fence_token,
            next.fence_token()
        );
        next.release().await.unwrap();
    }
}

/// Such a transaction may have read rows from before the last owner's commit. SQLite, with its one writer, gets
/// there only by statements of the application.
pub async fn a_transaction_that_is_older_than_the_lock_is_retryable(fixture: &impl FenceFixture) {
    let locks = manager(fixture).await;
    let before = acquire(&locks, "before").await;
    let body = async |transaction: &mut dyn FenceConnection| {
        match transaction.database() {
            Database::Postgres => {
                let isolation = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ";
                execute(transaction, isolation, &[]).await.unwrap();
            }
            // The default.
            Database::MySql => {}
            _ => return End::Rollback,
        }
        // The first read makes the snapshot.
        before.verify_in(transaction).await.unwrap();
        let guard = acquire(&locks, "key").await;
        assert_conflict(guard.verify_in(transaction).await);
        End::Rollback
    };
    fixture.transaction(body).await;
    before.release().await.unwrap();
}

/// Two transactions lock a row of a table each, and then the other's. Not on SQLite, which has one writer.
pub async fn a_deadlock_is_retryable(fixture: &impl FenceFixture) {
    let table = format!("dblock_fence_{}", Uuid::now_v7().simple());
    let run = async |sql: String| {
        let body = async |transaction: &mut dyn FenceConnection| {
            if transaction.database() != Database::Sqlite {
                execute(transaction, &sql, &[]).await.unwrap();
            }
            End::Commit
        };
        fixture.transaction(body).await;
    };
    run(format!("CREATE TABLE {table} (id INTEGER PRIMARY KEY)")).await;
    run(format!("INSERT INTO {table} VALUES (0), (1)")).await;
    let (both_locked, ended) = (Barrier::new(2), Mutex::new(Vec::new()));
    let transaction_of = async |mine: u8| {
        let body = async |transaction: &mut dyn FenceConnection| {
            let code = match transaction.database() {
                Database::Postgres => "40P01",
                Database::MySql => "1213",
                _ => return End::Rollback,
            };
            let lock = |id: u8| format!("UPDATE {table} SET id = id WHERE id = {id}");
            execute(transaction, &lock(mine), &[]).await.unwrap();
            both_locked.wait().await;
            let locked = execute(transaction, &lock(1 - mine), &[]).await;
            ended.lock().unwrap().push((code, locked));
            End::Rollback
        };
        fixture.transaction(body).await;
    };
    tokio::join!(transaction_of(0), transaction_of(1));
    run(format!("DROP TABLE {table}")).await;
    let ended = ended.into_inner().unwrap();
    let deadlocked = ended.is_empty() || ended.iter().any(|(_, locked)| locked.is_err());
    assert!(deadlocked, "the driver swallows the database's error: {ended:?}");
    for (code, locked) in ended {
        if let Err(error) = locked {
            assert_eq!(
                error.code(),
                Some(code),
                "the driver does not let a conflict be told from other errors: {error}"
            );
        }
    }
}

/// Rolled back to the savepoint, the transaction would go on without the lock. `PostgreSQL` then forgets row
/// locks; the others keep them.
pub async fn a_release_below_a_savepoint_is_refused(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let guard = acquire(&manager(fixture).await, "key").await;
    let body = async |transaction: &mut dyn FenceConnection| {
        if transaction.database() == Database::Postgres {
            execute(transaction, "SAVEPOINT here", &[]).await.unwrap();
            match guard.release_in(transaction).await {
                Err(LockError::Store { source, .. }) => {
                    assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
                }
                other => panic!("a lock ended with a savepoint: {other:?}"),
            }
        }
        End::Rollback
    };
    fixture.transaction(body).await;
    until_free(&*store).await;
}

/// The transaction may be the caller's own, which waits for the write. A refused write is not carried out later.
/// A store without records passes.
pub async fn a_write_under_a_lease_waits_for_no_transaction(fixture: &impl FenceFixture) {
    let store = fixture.store().await;
    let Some(records) = store.records() else { return };
    let guard = acquire(&manager(fixture).await, "key").await;
    let row = existing(&*store, &key("key")).await;
    let begun = entry(RecordState::Processing, guard.fence_token(), 1);
    let failed = entry(RecordState::Failed, guard.fence_token(), 1);
    let versions = [begun.version(), failed.version()];
    for change in [
        RecordChange::Insert(begun),
        RecordChange::Replace(versions[0], failed),
        RecordChange::Delete(versions[1]),
    ] {
        let write = RecordWrite::under(row.key.clone(), change, row.lease_id);
        let before = read(records, &row.key).await.map(|it| it.version());
        let body = async |transaction: &mut dyn FenceConnection| {
            guard.verify_in(transaction).await.expect("the lease holds");
            // SQLite locks no rows: any write waits for the whole file, for a bounded time.
            let at_once = transaction.database() != Database::Sqlite;
            within(
                "a write beside a transaction",
                is_refused(records, &write, at_once),
            )
            .await;
            End::Rollback
        };
        fixture.transaction(body).await;
        assert_eq!(read(records, &row.key).await.map(|it| it.version()), before);
        assert!(retry(|| records.write(&write)).await, "{write:?}");
    }
    guard.release().await.unwrap();
}

/// Sees that the write is refused as a conflict. A write that waited for the row would take longer than
/// [`AT_ONCE`] each time; on a machine that stalls it does so only sometimes.
async fn is_refused(records: &dyn Records, write: &RecordWrite, at_once: bool) {
    for _ in 0..ROUNDS {
        let asked = Instant::now();
        let error = records.write(write).await.expect_err("the row is locked");
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{write:?}: {error}");
        if !at_once || asked.elapsed() < AT_ONCE {
            return;
        }
    }
    panic!("{write:?} waits for the transaction");
}

#[track_caller]
fn assert_conflict(result: Result<(), LockError>) {
    match result {
        Err(LockError::Store { source, .. }) => assert_eq!(
            source.kind(),
            StoreErrorKind::Conflict,
            "the driver does not let a conflict be told from other errors: {source}"
        ),
        other => panic!("a conflict, which can be tried again, is reported as {other:?}"),
    }
}
