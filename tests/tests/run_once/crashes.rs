//! The record of a run that did not end by itself, and the next call's answer to it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use dblock::store::{Record, RecordState};
use dblock::{LockManager, LockOptions, OnCrash, OnLost, Once, Resolution, Run, RunError, RunOptions};
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt;
use tokio::sync::Notify;

use crate::{Effects, KEY, LONG, PayError, SHORT, decline, pay, reason, record, run, state};

on_every_store!(
    a_panic_is_a_crash,
    a_dropped_call_is_a_crash,
    a_lost_lease_is_a_crash,
    an_error_in_doubt_is_a_crash_where_it_must_not_run_again,
    a_crash_counts_as_an_attempt,
    a_run_in_doubt_says_who_and_waits_for_a_decision,
    a_decision_about_what_has_changed_since_changes_nothing,
    a_decision_can_name_the_result,
    a_decision_with_a_wrong_result_can_be_corrected,
    a_decision_needs_the_lock,
    a_paused_attempt_neither_records_nor_overwrites,
    a_late_attempt_that_nobody_overtook_is_recorded,
    a_forgotten_attempt_is_not_recorded,
);

/// A call that is dropped in its body.
async fn crash(locks: &LockManager, options: RunOptions) {
    let began = Notify::new();
    let body = async |_| {
        began.notify_one();
        std::future::pending::<Result<u32, PayError>>().await
    };
    tokio::select! {
        ended = locks.run_once(KEY, options, body) => panic!("{ended:?}"),
        () = began.notified() => {}
    }
}

/// As [`run`], and waits for the lock.
fn patient(on_crash: OnCrash) -> RunOptions {
    run(on_crash).lock(LockOptions::new().ttl(LONG).wait(LONG))
}

/// A lease that ends after a second, without stopping its body.
fn unrenewed() -> LockOptions {
    LockOptions::new().ttl(SHORT).renew(false).on_lost(OnLost::Signal)
}

async fn a_panic_is_a_crash(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |_| -> Result<u32, PayError> { panic!("a bug") };
    let call = AssertUnwindSafe(locks.run_once(KEY, run(OnCrash::Stop), body)).catch_unwind();
    assert!(call.await.is_err(), "the panic goes on");
    assert_eq!(state(&locks).await, (RecordState::Processing, 1));
    assert!(backend.the_row(KEY).await.is_free());
    let effects = Effects::default();
    assert!(matches!(
        reason(pay(&locks, run(OnCrash::Stop), &effects).await),
        RunError::InDoubt { .. }
    ));
    assert_eq!(
        pay(&locks, run(OnCrash::Retry), &effects).await.unwrap(),
        Once::Ran(1)
    );
}

async fn a_dropped_call_is_a_crash(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    crash(&locks, run(OnCrash::Stop)).await;
    assert_eq!(state(&locks).await, (RecordState::Processing, 1));
    let effects = Effects::default();
    let in_doubt = reason(pay(&other, patient(OnCrash::Stop), &effects).await);
    assert!(
        matches!(in_doubt, RunError::InDoubt { attempt: 1, .. }),
        "{in_doubt:?}"
    );
    assert_eq!(
        pay(&other, patient(OnCrash::Retry), &effects).await.unwrap(),
        Once::Ran(1)
    );
}

async fn a_lost_lease_is_a_crash(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |_| {
        locks.admin().force_release(KEY).await?;
        std::future::pending::<Result<u32, PayError>>().await
    };
    let lost = locks
        .run_once(KEY, run(OnCrash::Retry).lock(LockOptions::new().ttl(SHORT)), body)
        .await;
    assert!(
        matches!(&lost, Err(PayError::Lock(error)) if error.is_lost()),
        "{lost:?}"
    );
    assert_eq!(state(&locks).await, (RecordState::Processing, 1));
    let effects = Effects::default();
    assert_eq!(
        pay(&locks, patient(OnCrash::Retry), &effects).await.unwrap(),
        Once::Ran(1)
    );
}

async fn an_error_in_doubt_is_a_crash_where_it_must_not_run_again(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |run: Run| {
        run.leave_in_doubt();
        Err::<u32, _>(PayError::Declined)
    };
    let returned = locks.run_once(KEY, run(OnCrash::Stop), body).await;
    assert!(matches!(returned, Err(PayError::Declined)), "{returned:?}");
    assert_eq!(state(&locks).await, (RecordState::Processing, 1));
    assert!(backend.the_row(KEY).await.is_free());
    let effects = Effects::default();
    let in_doubt = reason(pay(&locks, run(OnCrash::Stop), &effects).await);
    assert!(matches!(in_doubt, RunError::InDoubt { .. }), "{in_doubt:?}");

    let returned = locks.run_once(KEY, run(OnCrash::Retry), body).await;
    assert!(matches!(returned, Err(PayError::Declined)), "{returned:?}");
    assert_eq!(state(&locks).await, (RecordState::Failed, 2));
}

async fn a_crash_counts_as_an_attempt(backend: Backend) {
    let locks = backend.manager().await;
    let twice = || patient(OnCrash::Retry).max_attempts(2);
    crash(&locks, twice()).await;
    crash(&locks, twice()).await;
    assert_eq!(state(&locks).await, (RecordState::Processing, 2));
    let effects = Effects::default();
    let refused = reason(pay(&locks, twice(), &effects).await);
    assert!(
        matches!(refused, RunError::GaveUp { attempts: 2, .. }),
        "{refused:?}"
    );
    assert_eq!(effects.count(), 0);
    assert!(
        locks
            .admin()
            .resolve(&record(&locks).await, Resolution::RunAgain)
            .await
            .unwrap()
    );
    assert_eq!(pay(&locks, twice(), &effects).await.unwrap(), Once::Ran(1));
    assert_eq!(state(&locks).await, (RecordState::Succeeded, 1));
}

async fn a_run_in_doubt_says_who_and_waits_for_a_decision(backend: Backend) {
    let locks = backend.manager().await;
    crash(&locks, run(OnCrash::Stop).function("shop::pay")).await;
    let effects = Effects::default();
    for _ in 0..2 {
        let in_doubt = reason(pay(&locks, patient(OnCrash::Stop), &effects).await);
        let RunError::InDoubt {
            attempt: 1,
            holder,
            since,
            ..
        } = &in_doubt
        else {
            panic!("{in_doubt:?}")
        };
        assert!(holder.ends_with(" shop::pay") && *since < LONG, "{in_doubt:?}");
    }
    assert!(
        locks.admin().forget(&record(&locks).await).await.is_err(),
        "it may have had its effect"
    );
    assert!(
        locks
            .admin()
            .resolve(&record(&locks).await, Resolution::RunAgain)
            .await
            .unwrap()
    );
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(1)
    );
    assert!(
        !locks
            .admin()
            .resolve(&record(&locks).await, Resolution::RunAgain)
            .await
            .unwrap(),
        "it has succeeded"
    );
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(1)
    );
}

/// Decides when the lock of the attempt that crashed is free.
async fn decided(locks: &LockManager, shown: &Record, resolution: Resolution) -> bool {
    loop {
        match locks.admin().resolve(shown, resolution.clone()).await {
            Err(error) if error.is_busy() => {}
            resolved => return resolved.unwrap(),
        }
    }
}

/// Each of them was right when the record was shown.
async fn a_decision_about_what_has_changed_since_changes_nothing(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    decline(&locks, run(OnCrash::Stop)).await;
    let failed = record(&locks).await;
    let paid = Resolution::succeeded(&9_u32, LONG).unwrap();
    // The next attempt begins and crashes: perhaps it was done.
    crash(&locks, run(OnCrash::Stop)).await;
    let in_doubt = record(&locks).await;
    for resolution in [Resolution::RunAgain, paid] {
        let resolved = decided(&locks, &failed, resolution).await;
        assert!(!resolved, "it was about the attempt before");
    }
    assert!(!locks.admin().forget(&failed).await.unwrap());
    assert_eq!(record(&locks).await.version(), in_doubt.version());

    // Another one decides, and it succeeds.
    assert!(decided(&locks, &in_doubt, Resolution::RunAgain).await);
    pay(&locks, run(OnCrash::Stop), &effects).await.unwrap();
    assert!(
        !locks.admin().forget(&failed).await.unwrap(),
        "it has succeeded meanwhile"
    );
    assert!(!decided(&locks, &in_doubt, Resolution::RunAgain).await);
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(1)
    );
}

async fn a_decision_can_name_the_result(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    crash(&locks, run(OnCrash::Stop)).await;
    let paid = Resolution::succeeded(&9_u32, LONG).unwrap();
    let in_doubt = record(&locks).await;
    assert!(decided(&locks, &in_doubt, paid).await);
    assert_eq!(
        pay(&locks, patient(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(9)
    );
    assert_eq!(effects.count(), 0);
    let refused = Resolution::succeeded(&9_u32, std::time::Duration::ZERO);
    assert!(refused.unwrap_err().to_string().contains("remember"));
}

async fn a_decision_with_a_wrong_result_can_be_corrected(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    crash(&locks, run(OnCrash::Stop)).await;
    let in_doubt = record(&locks).await;
    let right = Resolution::corrected(&9_u32, LONG).unwrap();
    let early = locks.admin().resolve(&in_doubt, right.clone()).await.unwrap_err();
    assert!(early.to_string().contains("Resolution::succeeded"), "{early}");
    let wrong = Resolution::succeeded(&"nine", LONG).unwrap();
    assert!(decided(&locks, &in_doubt, wrong.clone()).await);
    assert!(matches!(
        reason(pay(&locks, patient(OnCrash::Stop), &effects).await),
        RunError::Undecodable { .. }
    ));
    let shown = record(&locks).await;
    assert!(
        !locks.admin().resolve(&shown, wrong).await.unwrap(),
        "it is no correction"
    );
    assert!(locks.admin().resolve(&shown, right.clone()).await.unwrap());
    assert!(
        !locks.admin().resolve(&shown, right).await.unwrap(),
        "the record has changed since"
    );
    assert_eq!(
        pay(&locks, patient(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(9)
    );
    let corrected = record(&locks).await;
    assert_eq!(
        (corrected.state, corrected.attempts),
        (RecordState::Succeeded, shown.attempts)
    );
    assert_eq!(effects.count(), 0);
}

async fn a_decision_needs_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |_| {
        let other = backend.manager().await;
        let busy = other
            .admin()
            .resolve(&record(&other).await, Resolution::RunAgain)
            .await;
        assert!(busy.unwrap_err().is_busy());
        Ok::<_, PayError>(7_u32)
    };
    assert_eq!(
        locks.run_once(KEY, run(OnCrash::Stop), body).await.unwrap(),
        Once::Ran(7)
    );
}

/// The body goes on although its lease is over, and another process has run meanwhile.
async fn a_paused_attempt_neither_records_nor_overwrites(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let effects = Effects::default();
    for fails in [false, true] {
        let body = async |_| {
            let ran = pay(&other, patient(OnCrash::Retry), &effects).await?;
            assert!(ran.has_run());
            if fails { Err(PayError::Declined) } else { Ok(99) }
        };
        let lost = locks
            .run_once(KEY, run(OnCrash::Retry).lock(unrenewed()), body)
            .await;
        match &lost {
            Err(PayError::Declined) if fails => {}
            Err(PayError::Lock(error)) if !fails => assert!(error.is_lost(), "{lost:?}"),
            _ => panic!("{lost:?}"),
        }
        let record = record(&other).await;
        assert_eq!((record.state, record.attempts), (RecordState::Succeeded, 2));
        assert_eq!(record.result, Some(effects.count().to_string()));
        assert!(other.admin().forget(&record).await.unwrap());
    }
}

/// Nobody has begun meanwhile, so its record is right, lease or not.
async fn a_late_attempt_that_nobody_overtook_is_recorded(backend: Backend) {
    let locks = backend.manager().await;
    let body = async |_| {
        backend.until(KEY, LONG, |row| row.now > row.expire_at).await;
        Ok::<_, PayError>(7_u32)
    };
    let ran = locks
        .run_once(KEY, run(OnCrash::Stop).lock(unrenewed()), body)
        .await;
    assert_eq!(
        (ran.unwrap(), state(&locks).await),
        (Once::Ran(7), (RecordState::Succeeded, 1))
    );
    let late = async |_| {
        backend.until("late", LONG, |row| row.now > row.expire_at).await;
        Err::<u32, _>(PayError::Declined)
    };
    let failed = locks
        .run_once("late", run(OnCrash::Stop).lock(unrenewed()), late)
        .await;
    assert!(matches!(failed, Err(PayError::Declined)), "{failed:?}");
    let failed = locks.admin().record::<u32>("late").await.unwrap().unwrap();
    assert_eq!(failed.record.state, RecordState::Failed);
}

/// An operator has let it run again while it was paused.
async fn a_forgotten_attempt_is_not_recorded(backend: Backend) {
    let (locks, other) = (backend.manager().await, Arc::new(backend.manager().await));
    let body = async |_| {
        backend.until(KEY, LONG, |row| row.now > row.expire_at).await;
        assert!(
            other
                .admin()
                .resolve(&record(&other).await, Resolution::RunAgain)
                .await
                .unwrap()
        );
        Ok::<_, PayError>(7_u32)
    };
    let lost = locks
        .run_once(KEY, run(OnCrash::Stop).lock(unrenewed()), body)
        .await;
    assert!(
        matches!(&lost, Err(PayError::Lock(error)) if error.is_lost()),
        "{lost:?}"
    );
    assert!(other.admin().record::<u32>(KEY).await.unwrap().is_none());
    decline(&other, run(OnCrash::Stop)).await;
    assert_eq!(state(&other).await, (RecordState::Failed, 1));
}
