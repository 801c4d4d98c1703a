//! Fence tokens grow over what only SQL can do to a row.

use dblock_tests::{Backend, on_every_store};

use crate::long;

on_every_store!(databases: tokens_grow_while_the_clock_is_behind, the_last_token_is_given_once);

async fn tokens_grow_while_the_clock_is_behind(backend: Backend) {
    let locks = backend.manager().await;
    locks
        .lock("key")
        .options(&long())
        .acquire()
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
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    assert_eq!(guard.fence_token(), before + 501, "one more than the ceiling");
}

/// By takeover, too.
async fn the_last_token_is_given_once(backend: Backend) {
    let locks = backend.manager().await;
    locks.lock("key").options(&long()).run(async {}).await.unwrap();
    let ceiling = format!("UPDATE {{table}} SET fence_ceiling = {}", i64::MAX - 1);
    backend.execute(&ceiling).await;
    let last = locks.lock("key").options(&long()).acquire().await.unwrap();
    assert_eq!(last.fence_token(), i64::MAX);
    last.release().await.unwrap();
    for row in ["reentrant_count = 0", "reentrant_count = 1, expire_at = 1"] {
        backend.execute(&format!("UPDATE {{table}} SET {row}")).await;
        let refused = locks.lock("key").options(&long()).acquire().await.unwrap_err();
        assert!(!refused.is_retryable(), "{refused:?}");
        let cause = refused.to_string();
        assert!(
            cause.contains("are used up: its row must be deleted by hand"),
            "{cause}"
        );
        locks.lock("other").options(&long()).run(async {}).await.unwrap();
    }
}
