//! A thousand callers at once in one process, on each kind of lock: nothing fails, is rolled back or hangs for
//! another reason than that a lock is busy.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod transactions;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use dblock::{InspectFilter, LockError, LockGuard, LockManager, LockOptions, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use futures_util::future::join_all;
use tokio::time::timeout;

on_every_store!(databases:
    locks,
    locks_that_nobody_waits_for,
    several_locks_at_once,
    places,
    runs,
    runs_of_a_tick,
);

const CALLERS: u32 = 1_200;

/// For everybody in front. The machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_mins(3);

fn patient() -> LockOptions {
    LockOptions::new().ttl(Duration::from_secs(30)).wait(PATIENCE)
}

/// The keys of the callers: each has its own, or all have the same.
#[derive(Debug, Clone, Copy)]
enum Keys {
    Different,
    Same,
}

impl Keys {
    fn of(self, caller: u32) -> String {
        match self {
            Self::Different => format!("key {caller}"),
            Self::Same => "the key".to_owned(),
        }
    }
}

/// All callers at once, each on its key. Returns what they return.
async fn all<T>(keys: Keys, call: impl AsyncFn(String) -> T) -> Vec<T> {
    join_all((0..CALLERS).map(|caller| call(keys.of(caller)))).await
}

fn nobody_failed(answers: Vec<Result<(), LockError>>) {
    let failed: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} failed: {:?}", failed.len(), failed[0]);
}

async fn locks(backend: Backend) {
    let locks = backend.manager().await;
    for keys in [Keys::Different, Keys::Same] {
        let answers = all(keys, async |key| {
            locks.lock(key).options(&patient()).run(async {}).await
        });
        nobody_failed(answers.await);
    }
}

async fn locks_that_nobody_waits_for(backend: Backend) {
    let locks = backend.manager().await;
    for keys in [Keys::Different, Keys::Same] {
        let answers = all(keys, async |key| match locks.lock(key).try_acquire().await? {
            Some(guard) => release(guard).await.map(|()| true),
            None => Ok(false),
        });
        let answers: Result<Vec<bool>, LockError> = answers.await.into_iter().collect();
        let granted = answers.unwrap().into_iter().filter(|granted| *granted).count();
        match keys {
            Keys::Different => assert_eq!(granted, CALLERS as usize),
            Keys::Same => assert!(granted >= 1),
        }
        all_become_free(&locks).await;
    }
}

async fn several_locks_at_once(backend: Backend) {
    let locks = backend.manager().await;
    for keys in [Keys::Different, Keys::Same] {
        let answers = all(keys, async |key| {
            let both = [format!("{key} a"), format!("{key} b")];
            release(locks.lock(both).options(&patient()).acquire().await?).await
        });
        nobody_failed(answers.await);
        all_become_free(&locks).await;
    }
}

/// Ten thousand inside at once, of two processes.
async fn places(backend: Backend) {
    const LIMIT: u32 = 10_000;
    let both = [backend.manager().await, backend.manager().await];
    let place = |number: u32| both[number as usize % 2].lock("the key").limit(LIMIT);
    let enter = async |number| place(number).options(&patient()).limit(LIMIT).acquire().await;
    let mut guards: Vec<LockGuard> = join_all((0..LIMIT).map(enter))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(guards[0].inside().await.unwrap(), LIMIT);
    for number in 0..2 {
        assert!(
            place(number).try_acquire().await.unwrap().is_none(),
            "all are taken"
        );
    }
    release(guards.pop().unwrap()).await.unwrap();
    guards.push(enter(0).await.unwrap());
    assert!(place(1).try_acquire().await.unwrap().is_none(), "all are taken");
    nobody_failed(join_all(guards.into_iter().map(release)).await);
    all_become_free(&both[0]).await;
}

/// The disk of a busy machine may take longer than the three seconds of a release. The key is freed after it.
async fn release(guard: LockGuard) -> Result<(), LockError> {
    match guard.release().await {
        Err(LockError::Unconfirmed { .. }) => Ok(()),
        released => released,
    }
}

async fn all_become_free(locks: &LockManager) {
    let freed = async { while !locks.admin().list(InspectFilter::new()).await.unwrap().is_empty() {} };
    timeout(PATIENCE, freed).await.expect("all keys are free");
}

async fn runs(backend: Backend) {
    run_once(&backend, |options| options).await;
}

async fn runs_of_a_tick(backend: Backend) {
    let tick = SystemTime::now();
    run_once(&backend, |options| options.tick(tick)).await;
}

async fn run_once(backend: &Backend, options: impl Fn(RunOptions) -> RunOptions) {
    let locks = backend.manager().await;
    let options = options(RunOptions::new(Duration::from_hours(1), OnCrash::Stop).lock(patient()));
    for (keys, expected) in [(Keys::Different, CALLERS), (Keys::Same, 1)] {
        let ran = AtomicU32::new(0);
        let answers = all(keys, async |key| {
            let body = async |_| Ok::<_, LockError>(ran.fetch_add(1, Ordering::Relaxed));
            locks.run_once(key, options.clone(), body).await.map(drop)
        });
        nobody_failed(answers.await);
        assert_eq!(ran.load(Ordering::Relaxed), expected);
    }
}
