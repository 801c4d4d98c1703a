//! Fence tokens grow over what only SQL can do to a row.

use dblock_tests::{Backend, on_every_store};

use crate::long;

on_every_store!(databases: tokens_grow_while_the_clock_is_behind);

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
