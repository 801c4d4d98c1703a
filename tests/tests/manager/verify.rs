//! The fence check in a transaction of the application's.

use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockGuard, current};
use dblock_tests::backend::Kind;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use sqlx::Connection;
use tokio::time::timeout;

use crate::{LONG, RENEWED, long, patient};

on_every_store!(databases:
    the_check_passes_inside_the_lease,
    the_check_of_a_lost_lease_says_lost,
    a_takeover_waits_for_the_commit,
    renewals_survive_a_transaction_longer_than_a_third_of_the_ttl,
);
on_every_store!(servers:
    a_transaction_of_another_database_is_refused,
    a_row_that_others_have_locked_is_asked_for_again,
    a_row_that_stays_locked_is_no_loss,
    a_lease_that_is_over_is_lost_at_once_though_its_row_is_locked,
);
on_every_store!(sqlite:
    acquiring_while_a_transaction_writes_names_the_cause,
    a_transaction_on_another_file_loses_nothing,
);
on_every_store!(postgres: a_renewal_since_the_snapshot_is_retryable);

async fn the_check_passes_inside_the_lease(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("guard").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    transaction.commit().await;
    guard.release().await.unwrap();
    let body = locks.lock("key").options(&long()).run(async {
        let mut transaction = Transaction::begin(&backend).await;
        transaction.verify_current(&current().unwrap()).await.unwrap();
        transaction.commit().await;
    });
    body.await.unwrap();
}

async fn the_check_of_a_lost_lease_says_lost(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    for has_successor in [false, true] {
        let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
        other.admin().force_release("key").await.unwrap();
        let successor = if has_successor {
            Some(other.lock("key").options(&long()).acquire().await.unwrap())
        } else {
            None
        };
        assert!(!guard.is_lost(), "nobody has told it yet");
        let mut transaction = Transaction::begin(&backend).await;
        let lost = transaction.verify(&guard).await.unwrap_err();
        transaction.commit().await;
        assert!(lost.is_lost(), "{lost:?}");
        assert!(guard.is_lost(), "and it knows now");
        drop(successor);
    }
}

async fn a_takeover_waits_for_the_commit(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let brief = long().ttl(Duration::from_secs(5)).renew(false);
    let guard = locks.lock("key").options(&brief).acquire().await.unwrap();
    let token = guard.fence_token();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("key").options(&patient()).acquire().await });
    let row = backend
        .until("key", LONG, |row| row.now > row.expire_at + 500_000)
        .await;
    assert_eq!(row.fence_token, token, "nobody has taken it over");
    assert!(!waiting.is_finished());
    transaction.commit().await;
    let successor = waiting.await.unwrap().unwrap();
    assert!(successor.fence_token() > token);
}

async fn renewals_survive_a_transaction_longer_than_a_third_of_the_ttl(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks
        .lock("key")
        .options(&long())
        .ttl(Duration::from_secs(9))
        .acquire()
        .await
        .unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    let granted = backend.the_row("key").await;
    // A renewal was due after three seconds.
    let later = backend
        .until("key", LONG, |row| row.now > granted.acquired_at + 5_100_000)
        .await;
    assert_eq!(later.expire_at, granted.expire_at, "renewals skip the row");
    assert!(!guard.is_lost());
    transaction.commit().await;
    let renewed = backend
        .until("key", LONG, |row| row.expire_at > granted.expire_at)
        .await;
    assert!(renewed.now < granted.expire_at, "renewed in time");
    backend
        .until("key", LONG, |row| row.now > granted.expire_at)
        .await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// A transaction that has the rows locked.
async fn locked(backend: &Backend) -> Transaction {
    let mut other = Transaction::begin(backend).await;
    let lock = format!("SELECT lock_key FROM {} FOR UPDATE", backend.table);
    other.execute(lock).await;
    other
}

/// A transaction that waits for no lock longer than a second.
async fn impatient(backend: &Backend, isolation: &str) -> Transaction {
    let mut transaction = Transaction::begin(backend).await;
    let limit = match backend.kind() {
        Kind::MySql => format!(
            "SET SESSION innodb_lock_wait_timeout = 1;
             SET SESSION TRANSACTION ISOLATION LEVEL {isolation}; COMMIT; BEGIN"
        ),
        _ => "SET LOCAL lock_timeout = '1s'".to_owned(),
    };
    transaction.execute(limit).await;
    transaction
}

async fn asks(releases: bool, guard: LockGuard, transaction: &mut Transaction) -> Result<(), LockError> {
    if releases {
        return transaction.release(guard).await;
    }
    transaction.verify(&guard).await
}

/// The limit of the session would end the statement, on MySQL perhaps with the whole transaction.
async fn a_row_that_others_have_locked_is_asked_for_again(backend: Backend) {
    let locks = backend.manager().await;
    for (releases, isolation) in [
        (false, "REPEATABLE READ"),
        (true, "REPEATABLE READ"),
        (false, "SERIALIZABLE"),
        (true, "SERIALIZABLE"),
    ] {
        let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
        let mut transaction = impatient(&backend, isolation).await;
        let mut other = locked(&backend).await;
        let write = format!("UPDATE {} SET holder = 'as a renewal does'", backend.table);
        other.execute(write).await;
        let start = backend.the_row("key").await.now;
        let ends = async {
            backend
                .until("key", LONG, |row| row.now > start + 1_500_000)
                .await;
            other.commit().await;
        };
        let (asked, ()) = tokio::join!(asks(releases, guard, &mut transaction), ends);
        asked.unwrap();
        transaction.commit().await;
    }
}

async fn a_row_that_stays_locked_is_no_loss(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    let other = locked(&backend).await;
    let refused = timeout(LONG, transaction.verify(&guard))
        .await
        .unwrap()
        .unwrap_err();
    assert!(refused.is_store() && refused.is_retryable(), "{refused:?}");
    assert!(!guard.is_lost());
    other.rollback().await;
    transaction.verify(&guard).await.unwrap();
    transaction.release(guard).await.unwrap();
    transaction.commit().await;
}

async fn a_lease_that_is_over_is_lost_at_once_though_its_row_is_locked(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    for releases in [false, true] {
        let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
        operator.admin().force_release("key").await.unwrap();
        let other = locked(&backend).await;
        let mut transaction = Transaction::begin(&backend).await;
        let asks = asks(releases, guard, &mut transaction);
        let lost = timeout(LONG, asks).await.unwrap().unwrap_err();
        assert!(lost.is_lost(), "{lost:?}");
        transaction.rollback().await;
        other.rollback().await;
    }
}

async fn a_transaction_of_another_database_is_refused(backend: Backend) {
    let guard = backend
        .manager()
        .await
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let mut other = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
    match guard.verify_in(&mut other).await {
        Err(LockError::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unsupported);
            assert!(
                source.to_string().contains("the transaction is on Sqlite"),
                "{source}"
            );
        }
        result => panic!("{result:?}"),
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// Both files have a lock table, so the other one answers that there is no such lease.
async fn a_transaction_on_another_file_loses_nothing(backend: Backend) {
    let elsewhere = Backend::new(backend.kind()).await.unwrap();
    let table = "locks_of_both";
    let manager = |backend: &Backend| backend.builder().table(table).auto_migrate(true).build();
    let guard = manager(&backend)
        .await
        .unwrap()
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    manager(&elsewhere).await.unwrap();
    let mut other = Transaction::begin(&elsewhere).await;
    match other.verify(&guard).await {
        Err(LockError::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Unsupported);
            assert!(source.to_string().contains("another database"), "{source}");
        }
        result => panic!("{result:?}"),
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

async fn a_renewal_since_the_snapshot_is_retryable(backend: Backend) {
    let renewed = long().ttl(RENEWED);
    let guard = backend
        .manager()
        .await
        .lock("key")
        .options(&renewed)
        .acquire()
        .await
        .unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    let snapshot = format!(
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM {}",
        backend.table
    );
    transaction.execute(snapshot).await;
    let granted = backend.the_row("key").await;
    backend
        .until("key", LONG, |row| row.expire_at > granted.expire_at)
        .await;
    let error = transaction.verify(&guard).await.unwrap_err();
    assert!(error.is_store() && error.is_retryable(), "{error:?}");
    assert!(!guard.is_lost());
    drop(transaction);
    let mut again = Transaction::begin(&backend).await;
    again.verify(&guard).await.unwrap();
    again.commit().await;
}

async fn acquiring_while_a_transaction_writes_names_the_cause(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    for options in [long(), long().wait(Duration::from_secs(2))] {
        let mut tries = 0..5;
        loop {
            let error = locks.lock("other").options(&options).acquire().await.unwrap_err();
            assert!(error.is_store() && error.is_retryable(), "{error:?}");
            if error.to_string().contains("write transaction") {
                break;
            }
            // On a machine that stalls the file did not answer at all.
            assert!(tries.next().is_some(), "{error}");
        }
    }
    transaction.commit().await;
    locks.lock("other").options(&long()).run(async {}).await.unwrap();
}
