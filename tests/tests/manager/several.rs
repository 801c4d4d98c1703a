//! Several keys at once: all of them or none.

use std::time::Duration;

use dblock::store::Outcome;
use dblock::{LockError, LockGuard, LockManager, LockOptions, current, current_locks, distributed_lock};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::{Kind, eventually};
use dblock_tests::counting::Counting;
use dblock_tests::faulty_store::{FaultyStore, Kind as Asked};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};

use crate::{LONG, briefly, long, patient};

on_every_store!(
    keys_that_are_free_take_one_round_trip,
    keys_are_sorted_and_each_is_locked_once,
    bad_input_locks_nothing,
    a_key_that_the_chain_holds_is_reentered,
    a_busy_key_leaves_nothing_locked,
    a_busy_key_gives_back_those_above_it_and_keeps_those_below,
    the_loss_of_one_ends_the_body_and_all_locks,
    the_loss_of_one_ends_the_guard,
    a_key_that_is_lost_while_another_is_waited_for_is_taken_anew,
    a_call_that_is_dropped_while_it_waits_leaves_nothing,
    the_attribute_takes_all_keys,
);
on_every_store!(databases:
    the_fence_check_is_of_all_keys,
    all_locks_end_with_a_transaction,
    a_rollback_frees_all_keys,
);

on_every_store!(postgres: the_fence_check_of_all_keys_is_one_statement);

async fn is_free(backend: &Backend, key: &str) -> bool {
    backend.row(key).await.is_none_or(|row| row.is_free())
}

/// Waits until somebody waits for the key in the row.
async fn until_wanted(backend: &Backend, key: &str) {
    backend.until(key, LONG, |row| row.wanted_until > row.now).await;
}

async fn keys_that_are_free_take_one_round_trip(backend: Backend) {
    let store = FaultyStore::over(backend.store().await);
    let locks = store.manager();
    let guard = locks
        .lock(["c", "a", "b"])
        .options(&long())
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
    for kind in [Asked::Acquire, Asked::Release] {
        let asked = store.asked_to(kind);
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(
            asked.iter().all(|other| other.batch == asked[0].batch),
            "{asked:?}"
        );
    }
}

async fn keys_are_sorted_and_each_is_locked_once(backend: Backend) {
    let locks = backend.builder().namespace("n").build().await.unwrap();
    let guard = locks
        .lock(["c", "a", "b", "a"])
        .options(&long())
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    for (key, token) in guard.fence_tokens() {
        let row = backend.the_row(&format!("n:{key}")).await;
        assert_eq!((row.reentrant_count, row.fence_token), (1, token));
    }
    assert!(!guard.is_lost() && guard.remaining() > LONG / 2);
    guard.release().await.unwrap();
    for key in ["n:a", "n:b", "n:c"] {
        assert!(backend.the_row(key).await.is_free());
    }
}

async fn bad_input_locks_nothing(backend: Backend) {
    let locks = backend.manager().await;
    let keys = |count: usize| (0..count).map(|key| format!("k{key}")).collect::<Vec<_>>();
    let refused = async |keys: Vec<String>, options, words: &str| {
        let error = locks.lock(keys).options(&options).acquire().await.unwrap_err();
        assert!(
            matches!(&error, LockError::Invalid { message, .. } if message.contains(words)),
            "{error:?}"
        );
    };
    refused(vec![], long(), "no keys").await;
    refused(keys(LockManager::MAX_KEYS + 1), long(), "more than 64 keys").await;
    refused(vec!["k0".into(), String::new()], long(), "empty").await;
    refused(keys(2), long().hold_min(LONG), "hold_min").await;
    refused(keys(2), long().ttl(Duration::ZERO), "ttl").await;
    assert!(backend.row("k0").await.is_none());
    let twice: Vec<_> = [keys(LockManager::MAX_KEYS), keys(2)].concat();
    let guard = locks.lock(twice).options(&patient()).acquire().await.unwrap();
    assert_eq!(guard.keys().count(), LockManager::MAX_KEYS);
    guard.release().await.unwrap();
}

async fn a_key_that_the_chain_holds_is_reentered(backend: Backend) {
    let locks = backend.manager().await;
    let keys = || {
        current_locks()
            .iter()
            .map(|lock| lock.key().to_owned())
            .collect::<Vec<_>>()
    };
    let nested = locks.lock(["c", "b", "a"]).options(&long()).run(async {
        assert_eq!(keys(), ["c", "b", "a", "b"]);
        locks.lock("a").options(&long()).run(async {}).await.unwrap();
        backend.the_row("b").await.reentrant_count
    });
    let body = locks.lock("b").options(&long()).run(async {
        assert_eq!(nested.await.unwrap(), 2);
        assert!(is_free(&backend, "a").await && is_free(&backend, "c").await);
        backend.the_row("b").await.reentrant_count
    });
    assert_eq!(body.await.unwrap(), 1);
    assert!(is_free(&backend, "b").await);
}

async fn a_busy_key_leaves_nothing_locked(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    for holder in [&other, &locks] {
        let guard = holder.lock("b").options(&long()).acquire().await.unwrap();
        let keys = ["a", "b", "c"];
        let error = locks.lock(keys).options(&long()).acquire().await.unwrap_err();
        assert!(
            matches!(&error, LockError::Busy { key, .. } if key.as_str() == "b"),
            "{error:?}"
        );
        backend.until_free("a").await;
        assert!(
            locks
                .lock(keys)
                .options(&long())
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        // Longer than a server that stands still.
        let wait = Duration::from_secs(5);
        let error = locks
            .lock(keys)
            .options(&long())
            .wait(wait)
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(&error, LockError::Timeout { key, waited, .. } if key.as_str() == "b" && *waited >= wait),
            "{error:?}"
        );
        backend.until_free("a").await;
        backend.until_free("c").await;
        guard.release().await.unwrap();
    }
}

async fn a_busy_key_gives_back_those_above_it_and_keeps_those_below(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let busy = other.lock("b").options(&long()).acquire().await.unwrap();
    let waits = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(["a", "b", "c"]).options(&patient()).acquire().await }
    });
    until_wanted(&backend, "b").await;
    assert!(
        other
            .lock("a")
            .options(&long())
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    let above = other.lock("c").options(&patient()).acquire().await.unwrap();
    busy.release().await.unwrap();
    until_wanted(&backend, "c").await;
    assert!(
        other
            .lock("b")
            .options(&long())
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    above.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    assert_eq!(guard.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    guard.release().await.unwrap();
}

async fn the_loss_of_one_ends_the_body_and_all_locks(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let body = async {
        assert_eq!(current().unwrap().key(), "b");
        other.admin().force_release("a").await.unwrap();
        std::future::pending::<()>().await;
    };
    match locks.lock(["a", "b"]).options(&briefly()).run(body).await {
        Err(LockError::Lost { key, .. }) => assert_eq!(key.as_str(), "a"),
        other => panic!("{other:?}"),
    }
    assert!(is_free(&backend, "b").await, "it was released with the body");
}

async fn both(locks: &LockManager, options: &LockOptions) -> LockGuard {
    locks.lock(["a", "b"]).options(options).acquire().await.unwrap()
}

async fn the_loss_of_one_ends_the_guard(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = both(&locks, &briefly()).await;
    other.admin().force_release("b").await.unwrap();
    let lost = guard.lost().await;
    assert_eq!(lost.key().unwrap().as_str(), "b");
    assert!(guard.is_lost() && guard.remaining().is_zero());
    let entered = guard.enter(async {}).await.unwrap_err();
    assert!(entered.is_lost(), "{entered:?}");
    assert!(guard.release().await.unwrap_err().is_lost());
    assert!(
        is_free(&backend, "a").await,
        "the other one is released all the same"
    );
}

async fn a_key_that_is_lost_while_another_is_waited_for_is_taken_anew(backend: Backend) {
    let store = FaultyStore::over(backend.store().await);
    let (locks, other) = (store.manager(), backend.manager().await);
    let busy = other.lock("b").options(&long()).acquire().await.unwrap();
    let waits = tokio::spawn(async move {
        locks
            .lock(["a", "b"])
            .options(&briefly())
            .wait(LONG)
            .acquire()
            .await
    });
    until_wanted(&backend, "b").await;
    other.admin().force_release("a").await.unwrap();
    let taken = other.lock("a").options(&long()).acquire().await.unwrap();
    eventually("the next renewal finds the lease lost", || {
        let renewals = store.asked_to(Asked::Extend);
        renewals
            .iter()
            .any(|asked| matches!(asked.answer, Some(Ok(Outcome::Lost))))
    })
    .await;
    busy.release().await.unwrap();
    until_wanted(&backend, "a").await;
    backend.until_free("b").await;
    let before = taken.fence_token();
    taken.release().await.unwrap();
    let guard = waits.await.unwrap().unwrap();
    assert!(!guard.is_lost());
    assert!(
        guard
            .fence_tokens()
            .any(|(key, anew)| key == "a" && anew > before)
    );
    guard.release().await.unwrap();
}

async fn a_call_that_is_dropped_while_it_waits_leaves_nothing(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let busy = other.lock("b").options(&long()).acquire().await.unwrap();
    let waits = tokio::spawn({
        let locks = locks.clone();
        async move { locks.lock(["a", "b", "c"]).options(&patient()).acquire().await }
    });
    until_wanted(&backend, "b").await;
    waits.abort();
    backend.until_free("a").await;
    backend.until_free("c").await;
    busy.release().await.unwrap();
    backend.until_free("b").await;
    let guard = other
        .lock(["a", "b", "c"])
        .options(&patient())
        .acquire()
        .await
        .unwrap();
    drop(guard);
    for key in ["a", "b", "c"] {
        backend.until_free(key).await;
    }
}

struct Accounts {
    locks: LockManager,
}

impl Accounts {
    #[distributed_lock(keys = ["account:{from}", format!("account:{to}")], wait = "5s", manager = self.locks)]
    async fn transfer(&self, from: u32, to: u32) -> Result<Vec<String>, LockError> {
        let locks = current_locks();
        Ok(locks.iter().map(|lock| lock.key().to_owned()).collect())
    }
}

async fn the_attribute_takes_all_keys(backend: Backend) {
    let accounts = Accounts {
        locks: backend.manager().await,
    };
    let held = accounts.transfer(7, 3).await.unwrap();
    assert_eq!(held, ["account:7", "account:3"]);
    assert_eq!(accounts.transfer(3, 3).await.unwrap(), ["account:3"]);
    let row = backend.the_row("account:7").await;
    assert!(row.is_free() && row.holder.contains("transfer"), "{row:?}");
}

async fn the_fence_check_is_of_all_keys(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = both(&locks, &long()).await;
    let mut transaction = Transaction::begin(&backend).await;
    transaction.verify(&guard).await.unwrap();
    transaction.commit().await;
    guard.release().await.unwrap();
    for taken in ["a", "b"] {
        let body = locks.lock(["a", "b"]).options(&long()).run(async {
            let mut transaction = Transaction::begin(&backend).await;
            transaction.verify_current(&current().unwrap()).await.unwrap();
            transaction.commit().await;
            other.admin().force_release(taken).await.unwrap();
            let mut transaction = Transaction::begin(&backend).await;
            let lost = transaction.verify_current(&current().unwrap()).await.unwrap_err();
            transaction.rollback().await;
            assert_eq!(lost.key().unwrap().as_str(), taken);
        });
        let lost = body.await.unwrap_err();
        assert!(lost.is_lost(), "{lost:?}");
    }
}

async fn the_fence_check_of_all_keys_is_one_statement(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let keys = ["a", "b", "c"];
    let guard = locks.lock(keys).options(&long()).acquire().await.unwrap();
    let Transaction::Postgres(mut inner) = Transaction::begin(&backend).await else {
        unreachable!()
    };
    let mut counting = Counting::new(&mut inner);
    guard.verify_in(&mut counting).await.unwrap();
    assert_eq!(counting.statements, 1);
    guard.release_in(&mut counting).await.unwrap();
    assert_eq!(counting.statements, 2);
    assert!(
        other
            .lock("b")
            .options(&long())
            .try_acquire()
            .await
            .unwrap()
            .is_none()
    );
    inner.commit().await.unwrap();
    other
        .lock(keys)
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// On SQLite the transaction keeps every other writer out: nobody can even ask.
async fn nobody_enters(backend: &Backend, locks: &LockManager) {
    if backend.kind() != Kind::Sqlite {
        for key in ["a", "b"] {
            assert!(
                locks
                    .lock(key)
                    .options(&long())
                    .try_acquire()
                    .await
                    .unwrap()
                    .is_none()
            );
        }
    }
}

async fn all_locks_end_with_a_transaction(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = both(&locks, &long()).await;
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    nobody_enters(&backend, &other).await;
    transaction.commit().await;
    let guard = both(&other, &patient()).await;
    guard.release().await.unwrap();

    // Inside of one of them, only the other one ends.
    let body = locks.lock("a").options(&patient()).run(async {
        let guard = both(&locks, &patient()).await;
        let mut transaction = Transaction::begin(&backend).await;
        transaction.release(guard).await.unwrap();
        transaction.commit().await;
        other
            .lock("b")
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert!(
            other
                .lock("a")
                .options(&long())
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
    });
    body.await.unwrap();

    // One that is lost.
    let guard = both(&locks, &patient()).await;
    other.admin().force_release("b").await.unwrap();
    let mut transaction = Transaction::begin(&backend).await;
    let lost = transaction.release(guard).await.unwrap_err();
    transaction.rollback().await;
    assert_eq!(lost.key().unwrap().as_str(), "b");
    backend.until_free("a").await;
}

async fn a_rollback_frees_all_keys(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = both(&locks, &long()).await;
    let mut transaction = Transaction::begin(&backend).await;
    transaction.release(guard).await.unwrap();
    transaction.rollback().await;
    let guard = other
        .lock(["b", "a"])
        .options(&patient())
        .acquire()
        .await
        .unwrap();
    guard.release().await.unwrap();
}
