//! Fence tokens only grow, and a guard reports its own.

use dblock_tests::{Backend, on_every_store};

use crate::{SHORT, long, patient};

on_every_store!(
    tokens_grow_over_managers_and_force,
    a_guard_reports_its_own_token_while_another_has_a_newer,
);
on_every_store!(paused time: tokens_grow_over_a_takeover);
on_every_store!(databases: tokens_grow_over_a_row_that_was_purged, tokens_grow_while_the_clock_is_behind);

async fn tokens_grow_over_managers_and_force(backend: Backend) {
    let managers = [backend.manager().await, backend.manager().await];
    let mut last = 0;
    for turn in 0..12 {
        let locks = &managers[turn % 2];
        // Patient, because the release of a dropped guard may still be on its way.
        let guard = locks.acquire("key", patient()).await.unwrap();
        let token = guard.fence_token();
        assert!(token > last, "{token} after {last}");
        assert_eq!(backend.the_row("key").await.fence_token, token);
        last = token;
        if turn % 3 == 0 {
            assert!(managers[1].force_release("key").await.unwrap());
        } else {
            guard.release().await.unwrap();
        }
    }
}

async fn a_guard_reports_its_own_token_while_another_has_a_newer(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let former = locks.acquire("key", long()).await.unwrap();
    let token = backend.the_row("key").await.fence_token;
    other.force_release("key").await.unwrap();
    let successor = other.acquire("key", long()).await.unwrap();
    assert_eq!(former.fence_token(), token);
    assert!(successor.fence_token() > token);
    assert_eq!(backend.the_row("key").await.fence_token, successor.fence_token());
}

async fn tokens_grow_over_a_takeover(backend: Backend) {
    let dead = backend.die_inside("key", SHORT).await;
    let guard = backend.manager().await.acquire("key", patient()).await.unwrap();
    assert!(guard.fence_token() > dead.fence_token);
    assert_eq!(backend.the_row("key").await.fence_token, guard.fence_token());
}

async fn tokens_grow_over_a_row_that_was_purged(backend: Backend) {
    let locks = backend.manager().await;
    let first = locks.acquire("key", long()).await.unwrap();
    let token = first.fence_token();
    first.release().await.unwrap();
    backend.execute("DELETE FROM {table}").await;
    let second = locks.acquire("key", long()).await.unwrap();
    assert!(
        second.fence_token() > token,
        "{} after {token}",
        second.fence_token()
    );
}

async fn tokens_grow_while_the_clock_is_behind(backend: Backend) {
    let locks = backend.manager().await;
    locks
        .acquire("key", long())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // As if the clock had been an hour ahead when these tokens were given, up to the ceiling.
    let ahead = "UPDATE {table} SET fence_token = fence_token + 3600000000, \
                 fence_ceiling = fence_ceiling + 3600000500";
    backend.execute(ahead).await;
    let before = backend.the_row("key").await.fence_token;
    let guard = locks.acquire("key", long()).await.unwrap();
    assert_eq!(guard.fence_token(), before + 501, "one more than the ceiling");
}
