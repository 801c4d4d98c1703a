//! The record that a run leaves when nothing crashes.

use std::time::Duration;

use dblock::store::RecordState;
use dblock::{LockError, OnCrash, Once, RunError, RunOptions, current_run};
use dblock_tests::{Backend, on_every_store};

use crate::{Effects, KEY, PayError, decline, pay, reason, record, run, state};

on_every_store!(
    what_succeeded_is_replayed_and_never_runs_again,
    nothing_and_none_are_results,
    what_failed_runs_again_until_its_attempts_are_used_up,
    backoff_keeps_a_failed_run_from_running,
    another_fingerprint_is_refused,
    a_result_that_no_longer_decodes_is_never_run_again,
    a_result_that_is_too_large_reaches_its_caller_and_is_not_run_again,
    the_outcome_frees_the_key,
    a_run_knows_itself,
    what_is_no_longer_remembered_runs_anew,
    a_run_inside_its_own_body_is_refused,
    a_run_under_its_own_lock_leaves_the_lock,
);

async fn what_succeeded_is_replayed_and_never_runs_again(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let effects = Effects::default();
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(1)
    );
    for locks in [&locks, &other] {
        let again = pay(locks, run(OnCrash::Retry), &effects).await.unwrap();
        assert_eq!(again, Once::Replayed(1));
    }
    assert_eq!(
        (effects.count(), state(&locks).await),
        (1, (RecordState::Succeeded, 1))
    );
}

async fn nothing_and_none_are_results(backend: Backend) {
    let locks = backend.manager().await;
    for expected in [Once::Ran(()), Once::Replayed(())] {
        let done = locks.run_once("unit", run(OnCrash::Stop), async |_| Ok::<_, LockError>(()));
        assert_eq!(done.await.unwrap(), expected);
    }
    for expected in [Once::Ran(None), Once::Replayed(None)] {
        let body = async |_| Ok::<_, LockError>(None::<String>);
        assert_eq!(
            locks.run_once("none", run(OnCrash::Stop), body).await.unwrap(),
            expected
        );
    }
}

async fn what_failed_runs_again_until_its_attempts_are_used_up(backend: Backend) {
    let locks = backend.manager().await;
    let options = || run(OnCrash::Stop).max_attempts(2);
    for attempt in 1..=2 {
        assert!(matches!(decline(&locks, options()).await, PayError::Declined));
        let record = record(&locks).await;
        assert_eq!((record.state, record.attempts), (RecordState::Failed, attempt));
        assert_eq!(record.error.as_deref(), Some("the card was declined"));
    }
    let effects = Effects::default();
    let refused = reason(pay(&locks, options(), &effects).await);
    assert!(
        matches!(refused, RunError::GaveUp { attempts: 2, .. }),
        "{refused:?}"
    );
    assert_eq!(effects.count(), 0);
    let more = pay(&locks, options().max_attempts(3), &effects).await.unwrap();
    assert_eq!(
        (more, state(&locks).await),
        (Once::Ran(1), (RecordState::Succeeded, 3))
    );
}

async fn backoff_keeps_a_failed_run_from_running(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    decline(&locks, run(OnCrash::Stop)).await;
    let later = run(OnCrash::Stop).backoff(Duration::from_mins(10));
    let refused = pay(&locks, later, &effects).await.unwrap_err();
    let PayError::Lock(error) = &refused else {
        panic!("{refused:?}")
    };
    assert!(error.is_retryable());
    let refused = reason::<()>(Err(refused));
    let RunError::NotYet { retry_after, .. } = refused else {
        panic!("{refused:?}")
    };
    assert!(
        retry_after <= Duration::from_mins(10) && retry_after > Duration::from_secs(500),
        "{retry_after:?}"
    );
    let soon = run(OnCrash::Stop).backoff(Duration::from_millis(1));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(pay(&locks, soon, &effects).await.unwrap(), Once::Ran(1));
}

async fn another_fingerprint_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let of = |cents: u32| run(OnCrash::Stop).fingerprint(&("account 7", cents));
    pay(&locks, of(500), &effects).await.unwrap();
    assert!(matches!(
        reason(pay(&locks, of(501), &effects).await),
        RunError::KeyReused
    ));
    assert_eq!(pay(&locks, of(500), &effects).await.unwrap(), Once::Replayed(1));
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Replayed(1)
    );
}

async fn a_result_that_no_longer_decodes_is_never_run_again(backend: Backend) {
    let locks = backend.manager().await;
    let done = async |_| Ok::<_, PayError>("secret receipt".to_owned());
    locks.run_once(KEY, run(OnCrash::Retry), done).await.unwrap();
    let effects = Effects::default();
    let refused = reason(pay(&locks, run(OnCrash::Retry), &effects).await);
    assert!(matches!(refused, RunError::Undecodable { .. }), "{refused:?}");
    let shown = format!("{refused} {refused:?}");
    assert!(shown.contains("u32") && !shown.contains("secret"), "{shown}");
    assert_eq!(
        (effects.count(), state(&locks).await.0),
        (0, RecordState::Succeeded)
    );
    assert!(
        locks.admin().record::<u32>(KEY).await.is_err() && locks.admin().record::<String>(KEY).await.is_ok()
    );
}

async fn a_result_that_is_too_large_reaches_its_caller_and_is_not_run_again(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let large = || async {
        let options = run(OnCrash::Retry).max_result(10);
        let body = async |_| {
            effects.add();
            Ok::<_, PayError>("x".repeat(9))
        };
        locks.run_once(KEY, options, body).await
    };
    assert_eq!(large().await.unwrap(), Once::Ran("xxxxxxxxx".into()));
    let refused = reason(large().await);
    assert!(
        matches!(&refused, RunError::NotStored { why, .. } if why.contains("11 bytes")),
        "{refused:?}"
    );
    assert_eq!(
        (effects.count(), state(&locks).await.0),
        (1, RecordState::Succeeded)
    );
}

async fn the_outcome_frees_the_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    for (key, fails) in [("a", false), ("b", true)] {
        let body = async |_| if fails { Err(PayError::Declined) } else { Ok(()) };
        let _ = locks.run_once(key, run(OnCrash::Stop), body).await;
        assert!(backend.the_row(key).await.is_free(), "with its record");
        let guard = other.lock(key).acquire().await.unwrap();
        guard.release().await.unwrap();
        let again = locks.lock(key).acquire().await.unwrap();
        again.release().await.unwrap();
    }
}

async fn a_run_knows_itself(backend: Backend) {
    let locks = backend.builder().namespace("shop").build().await.unwrap();
    assert!(current_run().is_none());
    let body = async |run: dblock::Run| {
        let token = dblock::current().unwrap().fence_token();
        assert_eq!(
            (run.key(), run.attempt(), run.fence_token()),
            ("pay:42", 1, token)
        );
        assert_eq!(run.full_key(), "shop:pay:42");
        assert_eq!(current_run().unwrap().fence_token(), token);
        assert!(tokio::spawn(async { current_run().is_none() }).await.unwrap());
        Ok::<_, LockError>(token)
    };
    let ran = locks.run_once(KEY, run(OnCrash::Stop), body).await.unwrap();
    assert_eq!(ran.into_inner(), record(&locks).await.fence_token);
}

async fn what_is_no_longer_remembered_runs_anew(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let briefly = || RunOptions::new(Duration::from_secs(1), OnCrash::Stop).fingerprint(&effects.count());
    pay(&locks, briefly(), &effects).await.unwrap();
    while locks.admin().record::<u32>(KEY).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(pay(&locks, briefly(), &effects).await.unwrap(), Once::Ran(2));
    assert_eq!(state(&locks).await, (RecordState::Succeeded, 1));
}

async fn a_run_inside_its_own_body_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let body = async |_| {
        pay(&locks, run(OnCrash::Retry), &effects)
            .await
            .map(Once::into_inner)
    };
    let refused = locks.run_once(KEY, run(OnCrash::Retry), body).await.unwrap_err();
    assert!(
        matches!(refused, PayError::Lock(LockError::Invalid { .. })),
        "{refused:?}"
    );
    assert_eq!(effects.count(), 0);
    let nested = async |_| Ok::<_, PayError>(pay(&locks, run(OnCrash::Retry), &effects).await?.into_inner());
    assert_eq!(
        locks
            .run_once("other", run(OnCrash::Retry), nested)
            .await
            .unwrap(),
        Once::Ran(1)
    );
}

async fn a_run_under_its_own_lock_leaves_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    let inside = async {
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap();
        assert_eq!(backend.the_row(KEY).await.reentrant_count, 1, "the outer hold");
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap()
    };
    let again = locks.lock(KEY).run(inside).await.unwrap();
    assert_eq!(again, Once::Replayed(1));
    assert!(backend.the_row(KEY).await.is_free());
}
