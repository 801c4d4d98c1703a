//! Bad input is refused before anything is sent, and busy, timeout and the like are told apart.

use std::time::Duration;

use dblock::{InspectFilter, LockError, LockManager, LockOptions};
use dblock_tests::{Backend, on_every_store};
use tokio::time::Instant;

use crate::{LONG, long, patient};

on_every_store!(
    bad_keys_are_refused_before_anything_is_sent,
    bad_durations_are_refused_before_anything_is_sent,
    the_longest_key_works,
    try_acquire_gives_none_when_busy_and_refuses_a_wait,
    busy_says_who_and_how_long,
    timeout_says_who_and_how_long,
    a_wait_counts_the_whole_queue,
);

async fn assert_untouched(backend: &Backend) {
    let rows = backend
        .manager()
        .await
        .inspect(InspectFilter::new().include_free())
        .await;
    assert_eq!(rows.unwrap(), []);
}

async fn bad_keys_are_refused_before_anything_is_sent(backend: Backend) {
    let plain = backend.manager().await;
    let namespaced = backend.builder().namespace("billing").build().await.unwrap();
    let too_long = "k".repeat(256);
    let accented = "é".repeat(128);
    let too_long_with_namespace = "k".repeat(255 - "billing:".len() + 1);
    let bad = [
        (&plain, ""),
        (&plain, "a\0b"),
        (&plain, &too_long),
        (&plain, &accented),
        (&namespaced, ""),
        (&namespaced, &too_long_with_namespace),
    ];
    for (locks, key) in bad {
        let body = async { panic!("not inside") };
        let refusals: [Result<(), LockError>; 5] = [
            locks.acquire(key, long()).await.map(drop),
            locks.try_acquire(key, long()).await.map(drop),
            locks.with(key, long(), body).await,
            locks.revoke(key).await.map(drop),
            locks.force_release(key).await.map(drop),
        ];
        for refusal in refusals {
            assert!(
                matches!(refusal, Err(LockError::Invalid { .. })),
                "{key:?}: {refusal:?}"
            );
        }
        assert_eq!(locks.health().last_success, None, "nothing was sent");
    }
    assert_untouched(&backend).await;
}

async fn bad_durations_are_refused_before_anything_is_sent(backend: Backend) {
    let locks = backend.manager().await;
    let tiny = Duration::from_nanos(1);
    let month = Duration::from_hours(31 * 24);
    let mut bad: Vec<LockOptions> = Vec::new();
    for length in [
        Duration::ZERO,
        tiny,
        Duration::from_millis(999),
        month,
        Duration::MAX,
    ] {
        bad.push(long().ttl(length));
    }
    for length in [month, Duration::MAX] {
        bad.extend([
            long().wait(length),
            long().max_hold(length),
            long().hold_min(length),
        ]);
    }
    bad.extend([long().max_hold(Duration::ZERO), long().hold_min(Duration::ZERO)]);
    for options in bad {
        let refused = locks.acquire("key", options.clone()).await.map(drop);
        assert!(
            matches!(refused, Err(LockError::Invalid { .. })),
            "{options:?}: {refused:?}"
        );
    }
    assert_eq!(locks.health().last_success, None, "nothing was sent");
    assert_untouched(&backend).await;
}

async fn the_longest_key_works(backend: Backend) {
    let locks = backend.manager().await;
    let key = format!("{}é", "k".repeat(253));
    assert_eq!(key.len(), 255);
    let almost = format!("{}è", "k".repeat(253));
    let _guard = locks.acquire(&key, long()).await.unwrap();
    locks
        .acquire(&almost, long())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(
        backend.the_row(&key).await.reentrant_count,
        1,
        "whole, not cut off"
    );
}

async fn try_acquire_gives_none_when_busy_and_refuses_a_wait(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    for options in [patient(), long().wait_forever()] {
        let refused = locks.try_acquire("key", options).await;
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
    }
    assert_untouched(&backend).await;
    let guard = locks.try_acquire("key", long()).await.unwrap().unwrap();
    assert!(
        other.try_acquire("key", long()).await.unwrap().is_none(),
        "in another process"
    );
    assert!(
        locks.try_acquire("key", long()).await.unwrap().is_none(),
        "in this process"
    );
    guard.release().await.unwrap();
    assert!(other.try_acquire("key", long()).await.unwrap().is_some());
}

async fn busy_says_who_and_how_long(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks
        .acquire("key", long().function("shop::settle"))
        .await
        .unwrap();
    for refused_by in [&locks, &other] {
        let error = refused_by.acquire("key", long()).await.unwrap_err();
        assert!(
            error.is_busy() && error.is_retryable() && !error.is_store(),
            "{error:?}"
        );
        assert!(error.to_string().contains("shop::settle"), "{error}");
        match error {
            LockError::Busy {
                key,
                occupant,
                waited,
                ..
            } => {
                assert_eq!(key.as_str(), "key");
                assert!(waited < Duration::from_secs(5), "{waited:?}");
                let occupant = occupant.unwrap();
                assert_eq!(
                    (occupant.owner, occupant.fence_token),
                    (guard.owner(), guard.fence_token())
                );
                assert!(occupant.remaining > LONG / 2 && occupant.remaining <= LONG);
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn expect_timeout(locks: &LockManager, wait: Duration) -> dblock::store::Occupant {
    let since = Instant::now();
    let error = locks.acquire("key", long().wait(wait)).await.unwrap_err();
    let took = since.elapsed();
    assert!(took >= wait && took < wait + Duration::from_secs(1), "{took:?}");
    assert!(error.is_busy() && error.is_retryable(), "{error:?}");
    match error {
        LockError::Timeout {
            key,
            occupant,
            waited,
            ..
        } => {
            assert_eq!(key.as_str(), "key");
            assert!(waited >= wait && waited <= took, "{waited:?} of {took:?}");
            occupant.unwrap()
        }
        other => panic!("{other:?}"),
    }
}

async fn timeout_says_who_and_how_long(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.acquire("key", long()).await.unwrap();
    for refused_by in [&locks, &other] {
        let occupant = expect_timeout(refused_by, Duration::from_millis(300)).await;
        assert_eq!(
            (occupant.owner, occupant.fence_token),
            (guard.owner(), guard.fence_token())
        );
    }
    assert!(!guard.is_lost());
}

async fn a_wait_counts_the_whole_queue(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let _guard = other.acquire("key", long()).await.unwrap();
    // Callers behind the first one in the queue time out by themselves, and before it.
    let first = locks.acquire("key", long().wait(Duration::from_millis(600)));
    let second = expect_timeout(&locks, Duration::from_millis(200));
    let (first, _) = tokio::join!(first, second);
    assert!(matches!(first, Err(LockError::Timeout { .. })), "{first:?}");
}
