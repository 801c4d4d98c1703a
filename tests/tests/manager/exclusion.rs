//! A process that dies under a lock.

use dblock::LockError;
use dblock_tests::child::Holder;
use dblock_tests::{Backend, on_every_store};

use crate::{HOLDER, long, patient};

on_every_store!(databases: the_lock_of_a_killed_process_is_taken_over);

async fn the_lock_of_a_killed_process_is_taken_over(backend: Backend) {
    let mut holder = Holder::start(HOLDER, &backend, "key", "sleep");
    holder.wait_until_inside();
    let locks = backend.manager().await;
    let refused = locks
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .map(|guard| guard.fence_token());
    assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
    holder.kill();
    let dead = backend.the_row("key").await;
    assert_eq!(dead.reentrant_count, 1, "nobody released it");
    let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let row = backend.the_row("key").await;
    assert!(row.acquired_at >= dead.expire_at && guard.fence_token() > dead.fence_token);
}
