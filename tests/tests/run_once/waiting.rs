//! A second caller, while the first one runs.

use std::sync::Arc;

use dblock::{LockManager, LockOptions, OnCrash, Once};
use dblock_tests::{Backend, on_every_store};
use tokio::sync::Notify;

use crate::{Effects, KEY, LONG, PayError, decline, pay, run};

on_every_store!(
    a_second_caller_is_busy_at_once,
    a_second_caller_waits_for_the_result_of_the_first,
    many_callers_at_once_run_once,
    a_second_caller_runs_what_the_first_one_failed,
);

/// A run that goes on until it is told to end.
async fn started(
    locks: &LockManager,
    end: &Arc<Notify>,
) -> tokio::task::JoinHandle<Result<Once<u32>, PayError>> {
    let (began, begins) = (Arc::new(Notify::new()), Arc::clone(end));
    let task = tokio::spawn({
        let (locks, began) = (locks.clone(), Arc::clone(&began));
        async move {
            let body = async |_| {
                began.notify_one();
                begins.notified().await;
                Ok(7)
            };
            locks.run_once(KEY, run(OnCrash::Stop), body).await
        }
    });
    began.notified().await;
    task
}

fn patient(on_crash: OnCrash) -> dblock::RunOptions {
    run(on_crash).lock(LockOptions::new().ttl(LONG).wait(LONG))
}

async fn a_second_caller_is_busy_at_once(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let end = Arc::default();
    let first = started(&locks, &end).await;
    let effects = Effects::default();
    for locks in [&locks, &other] {
        let busy = pay(locks, run(OnCrash::Retry), &effects).await.unwrap_err();
        assert!(
            matches!(&busy, PayError::Lock(error) if error.is_busy()),
            "{busy:?}"
        );
    }
    end.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Once::Ran(7));
    assert_eq!(
        pay(&other, run(OnCrash::Retry), &effects).await.unwrap(),
        Once::Replayed(7)
    );
    assert_eq!(effects.count(), 0);
}

async fn a_second_caller_waits_for_the_result_of_the_first(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let end = Arc::default();
    let first = started(&locks, &end).await;
    let effects = Arc::new(Effects::default());
    let waiting: Vec<_> = [&locks, &other, &locks]
        .map(|locks| {
            let (locks, effects) = (locks.clone(), Arc::clone(&effects));
            tokio::spawn(async move { pay(&locks, patient(OnCrash::Stop), &effects).await })
        })
        .into();
    tokio::task::yield_now().await;
    end.notify_one();
    assert_eq!(first.await.unwrap().unwrap(), Once::Ran(7));
    for waiter in waiting {
        assert_eq!(waiter.await.unwrap().unwrap(), Once::Replayed(7));
    }
    assert_eq!(effects.count(), 0);
}

async fn many_callers_at_once_run_once(backend: Backend) {
    let managers = [backend.manager().await, backend.manager().await];
    let effects = Arc::new(Effects::default());
    let callers: Vec<_> = (0..16)
        .map(|n| {
            let (locks, effects) = (managers[n % 2].clone(), Arc::clone(&effects));
            tokio::spawn(async move { pay(&locks, patient(OnCrash::Stop), &effects).await })
        })
        .collect();
    let mut ran = 0;
    for caller in callers {
        let once = caller.await.unwrap().unwrap();
        assert_eq!(once.into_inner(), 1);
        ran += u32::from(once.has_run());
    }
    assert_eq!((effects.count(), ran), (1, 1));
}

async fn a_second_caller_runs_what_the_first_one_failed(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let effects = Arc::new(Effects::default());
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let second = tokio::spawn({
        let effects = Arc::clone(&effects);
        async move { pay(&other, patient(OnCrash::Stop), &effects).await }
    });
    guard.enter(decline(&locks, run(OnCrash::Stop))).await.unwrap();
    guard.release().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap(), Once::Ran(1));
}
