//! Bad input is refused before anything is sent.

use std::time::Duration;

use dblock::{InspectFilter, LockError, LockOptions};
use dblock_tests::{Backend, on_every_store};

use crate::long;

on_every_store!(
    bad_keys_are_refused_before_anything_is_sent,
    bad_durations_are_refused_before_anything_is_sent,
);

async fn assert_untouched(backend: &Backend) {
    let rows = backend
        .manager()
        .await
        .admin()
        .list(InspectFilter::new().include_free())
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
            locks.lock(key).options(&long()).acquire().await.map(drop),
            locks.lock(key).options(&long()).try_acquire().await.map(drop),
            locks.lock(key).options(&long()).run(body).await,
            locks.admin().revoke(key).await.map(drop),
            locks.admin().force_release(key).await.map(drop),
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
        let refused = locks.lock("key").options(&options).acquire().await.map(drop);
        assert!(
            matches!(refused, Err(LockError::Invalid { .. })),
            "{options:?}: {refused:?}"
        );
    }
    assert_eq!(locks.health().last_success, None, "nothing was sent");
    assert_untouched(&backend).await;
}
