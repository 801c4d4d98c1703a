//! The run that begins with its lock: what that costs, and what is left of it when nobody takes the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::store::{
    Action, Capabilities, Outcome, RecordState, Records, Request, Store, StoreError, StoreErrorKind,
    StoreFuture,
};
use dblock::{LockError, LockManager, LockOptions, OnCrash, Once, RunError};
use dblock_conformance::Fixture;
use dblock_tests::{Backend, on_every_store};
use tokio::sync::Notify;

use crate::mortal::Mortal;
use crate::{Effects, KEY, LONG, PayError, decline, pay, reason, record, run, state};

on_every_store!(
    a_run_costs_a_read_and_the_two_commits_of_its_lock,
    after_many_new_keys_a_run_is_not_read_first,
    a_run_that_is_given_up_while_it_begins_is_taken_back,
    a_failure_stands_when_the_next_attempt_is_given_up,
    a_beginning_of_unknown_outcome_is_taken_back_and_the_run_goes_on,
    calls_side_by_side_under_one_lease_run_once,
    a_crash_under_an_outer_lock_is_decided_about,
    the_pause_after_a_failure_is_kept_by_a_beginning_of_its_own,
    a_replay_under_another_lock_is_not_taken_for_new,
);

/// Around a store: what becomes of the answer to an acquire that begins a run.
#[derive(Debug)]
struct Beginning {
    inner: Arc<dyn Store>,
    /// It is lost, the first time. Otherwise it is kept back.
    lost: bool,
    was_lost: AtomicBool,
    granted: Notify,
    answers: Notify,
}

impl Beginning {
    async fn around(backend: &Backend, lost: bool) -> (Arc<Self>, LockManager) {
        let store = Arc::new(Self {
            inner: backend.store().await,
            lost,
            was_lost: AtomicBool::new(false),
            granted: Notify::new(),
            answers: Notify::new(),
        });
        let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
            .build_lazy()
            .unwrap();
        (store, locks)
    }
}

impl Store for Beginning {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let answers = self.inner.apply(requests).await;
            let begins =
                |request: &Request| matches!(request.action, Action::Acquire(_)) && request.record.is_some();
            if !requests.iter().any(begins) {
                return answers;
            }
            self.granted.notify_one();
            if !self.lost {
                self.answers.notified().await;
            } else if !self.was_lost.swap(true, Ordering::SeqCst) {
                let error = StoreError::new(StoreErrorKind::Interrupted, "the answer was lost");
                return answers.iter().map(|_| Err(error.clone())).collect();
            }
            answers
        })
    }

    fn records(&self) -> Option<&dyn Records> {
        self.inner.records()
    }

    dblock_conformance::forward_to_inner!(but records);
}

async fn a_run_costs_a_read_and_the_two_commits_of_its_lock(backend: Backend) {
    let store = Mortal::around(backend.store().await, i64::MAX, false);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .build_lazy()
        .unwrap();
    let effects = Effects::default();
    // The fewest of several keys, because a busy server has to be asked twice.
    let mut fewest = [i64::MAX; 2];
    for key in ["a", "b", "c", "d", "e"] {
        for (fewest, replays) in fewest.iter_mut().zip([false, true]) {
            let before = store.calls();
            let ran = locks.run_once(key, run(OnCrash::Stop), async |_| {
                Ok::<_, PayError>(effects.add())
            });
            let ran = ran.await.unwrap();
            assert_eq!(matches!(ran, Once::Replayed(_)), replays, "{ran:?}");
            *fewest = (store.calls() - before).min(*fewest);
        }
    }
    // Reading the record; the lock with "processing"; the outcome with the release. Then reading it again.
    assert_eq!(fewest, [3, 1]);
}

async fn after_many_new_keys_a_run_is_not_read_first(backend: Backend) {
    let store = Mortal::around(backend.store().await, i64::MAX, false);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .build_lazy()
        .unwrap();
    let effects = Effects::default();
    let calls = async |key: String| {
        let (before, reads) = (store.calls(), store.reads());
        let body = async |_| Ok::<_, PayError>(effects.add());
        let once = locks.run_once(key, run(OnCrash::Stop), body).await.unwrap();
        (once.has_run(), store.calls() - before, store.reads() > reads)
    };
    for n in 0..10 {
        let (ran, count, is_read) = calls(format!("new {n}")).await;
        assert!(ran && is_read == (n < 8), "{n}: {count}");
    }
    // The lock, the record under it, and the release. Then it is read first again.
    let (ran, count, _) = calls("new 0".into()).await;
    assert!(!ran && count >= 3, "{count}");
    assert_eq!(calls("new 0".into()).await, (false, 1, true));
    let (ran, _, is_read) = calls("new 10".into()).await;
    assert!(ran && is_read);
    assert_eq!(effects.count(), 11);
}

/// A call that is dropped after the store has begun it, and before that is answered.
async fn give_up(store: &Beginning, locks: &LockManager) {
    tokio::select! {
        ended = locks.run_once(KEY, run(OnCrash::Stop), async |_| Ok::<_, PayError>(0)) => panic!("{ended:?}"),
        () = store.granted.notified() => {}
    }
}

/// Completes when the lease that nobody took is released.
async fn released(store: &Beginning, other: &LockManager) {
    store.answers.notify_one();
    let waits = LockOptions::new().wait(LONG);
    let guard = other.lock(KEY).options(&waits).acquire().await.unwrap();
    guard.release().await.unwrap();
}

async fn a_run_that_is_given_up_while_it_begins_is_taken_back(backend: Backend) {
    let (store, locks) = Beginning::around(&backend, false).await;
    let other = backend.manager().await;
    give_up(&store, &locks).await;
    assert_eq!(state(&other).await, (RecordState::Processing, 1), "it was begun");
    released(&store, &other).await;
    assert!(other.admin().record::<u32>(KEY).await.unwrap().is_none());
    let effects = Effects::default();
    assert_eq!(
        pay(&other, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(1)
    );
    assert_eq!(state(&other).await, (RecordState::Succeeded, 1));
}

async fn a_failure_stands_when_the_next_attempt_is_given_up(backend: Backend) {
    let (store, locks) = Beginning::around(&backend, false).await;
    let other = backend.manager().await;
    decline(&other, run(OnCrash::Stop)).await;
    give_up(&store, &locks).await;
    assert_eq!(state(&other).await, (RecordState::Processing, 2));
    released(&store, &other).await;
    let record = record(&other).await;
    assert_eq!((record.state, record.attempts), (RecordState::Failed, 1));
    assert_eq!(record.error.as_deref(), Some("the card was declined"));
    let effects = Effects::default();
    let used_up = pay(&other, run(OnCrash::Stop).max_attempts(1), &effects).await;
    assert!(matches!(reason(used_up), RunError::GaveUp { attempts: 1, .. }));
    let again = pay(&other, run(OnCrash::Stop).max_attempts(2), &effects).await;
    assert_eq!(again.unwrap(), Once::Ran(1));
}

async fn a_beginning_of_unknown_outcome_is_taken_back_and_the_run_goes_on(backend: Backend) {
    let (_store, locks) = Beginning::around(&backend, true).await;
    let effects = Effects::default();
    let waits = run(OnCrash::Stop).lock(LockOptions::new().ttl(LONG).wait(LONG));
    assert_eq!(pay(&locks, waits, &effects).await.unwrap(), Once::Ran(1));
    assert_eq!(state(&locks).await, (RecordState::Succeeded, 1));
}

/// Two calls of one chain share the chain's lease, which keeps neither of them out.
async fn calls_side_by_side_under_one_lease_run_once(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let end = Notify::new();
    let body = async |_| {
        assert_eq!(effects.add(), 1, "both run");
        end.notified().await;
        Ok::<_, PayError>(1)
    };
    let guard = locks.lock(KEY).ttl(LONG).acquire().await.unwrap();
    let call = || locks.run_once(KEY, run(OnCrash::Retry), body);
    let both = async {
        let (first, second) = (call(), call());
        tokio::pin!(first, second);
        let (refused, runs) = tokio::select! {
            refused = &mut first => (refused, second),
            refused = &mut second => (refused, first),
        };
        end.notify_one();
        (refused, runs.await)
    };
    let (refused, ran) = guard.enter(both).await.unwrap();
    assert!(
        matches!(&refused, Err(PayError::Lock(error @ LockError::Busy { .. })) if error.is_busy()),
        "{refused:?}"
    );
    assert_eq!(ran.unwrap(), Once::Ran(1));
    guard.release().await.unwrap();
    assert_eq!(effects.count(), 1);
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(1)
    );
}

/// The outer lock keeps the lease, and no call lives on it.
async fn a_crash_under_an_outer_lock_is_decided_about(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let outer = LockOptions::new().ttl(LONG);
    let all = locks.lock(KEY).options(&outer).run(async {
        let begins = Notify::new();
        let crashes = locks.run_once(KEY, run(OnCrash::Stop), async |_| {
            begins.notify_one();
            std::future::pending::<Result<(), PayError>>().await
        });
        tokio::select! {
            ended = crashes => panic!("{ended:?}"),
            () = begins.notified() => {}
        }
        let in_doubt = pay(&locks, run(OnCrash::Stop), &effects).await;
        assert!(matches!(reason(in_doubt), RunError::InDoubt { attempt: 1, .. }));
        let again = pay(&locks, run(OnCrash::Retry), &effects).await;
        assert_eq!(again.unwrap(), Once::Ran(1));
    });
    all.await.unwrap();
    assert_eq!(state(&locks).await, (RecordState::Succeeded, 2));
}

/// Taking a beginning back writes the failure anew, which would begin its pause anew.
async fn the_pause_after_a_failure_is_kept_by_a_beginning_of_its_own(backend: Backend) {
    let store = Mortal::around(backend.store().await, i64::MAX, false);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .build_lazy()
        .unwrap();
    let effects = Effects::default();
    let options = || run(OnCrash::Stop).backoff(Duration::from_millis(1));
    decline(&locks, options()).await;
    loop {
        let before = store.calls();
        match pay(&locks, options(), &effects).await {
            Err(PayError::Lock(error)) if error.is_retryable() => tokio::task::yield_now().await,
            // Reading the record; the lock; "processing"; the outcome with the release.
            ran => {
                assert_eq!((ran.unwrap(), store.calls() - before), (Once::Ran(1), 4));
                return;
            }
        }
    }
}

/// The lock would be refused: nobody waits for ever under another one.
async fn a_replay_under_another_lock_is_not_taken_for_new(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |_| Ok::<_, PayError>(7);
    for n in 0..10 {
        let ran = locks.run_once(format!("new {n}"), run(OnCrash::Stop), body).await;
        assert_eq!(ran.unwrap(), Once::Ran(7));
    }
    let forever = run(OnCrash::Stop).lock(LockOptions::new().wait_forever());
    let replays = locks
        .lock("outer")
        .run(async { locks.run_once("new 0", forever, body).await.unwrap() });
    assert_eq!(replays.await.unwrap(), Once::Replayed(7));
}
