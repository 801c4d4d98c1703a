//! Bodies that block their thread: nothing can stop them, and they stop no renewal.

use std::sync::Mutex;

use dblock::{LockError, LostReason};
use dblock_tests::{Backend, on_every_store};

use crate::{RENEWED, SHORT, long, short};

on_every_store!(a_body_that_comes_back_too_late_has_lost);
on_every_store!(databases: a_blocked_worker_thread_does_not_stop_renewals);

fn reason(result: &LockError) -> LostReason {
    match result {
        LockError::Lost { reason, .. } => *reason,
        other => panic!("not lost: {other:?}"),
    }
}

async fn a_body_that_comes_back_too_late_has_lost(backend: Backend) {
    let locks = backend.manager().await;
    let held = locks.lock("key").options(&short()).renew(false).run(async {
        // No await: nothing can stop it, and what it did may have been outside of the lease.
        std::thread::sleep(SHORT);
        "too late"
    });
    assert_eq!(reason(&held.await.unwrap_err()), LostReason::Expired);
}

async fn a_blocked_worker_thread_does_not_stop_renewals(backend: Backend) {
    let locks = backend.manager().await;
    let granted = Mutex::new(None);
    let held = locks.lock("key").options(&long()).ttl(RENEWED).run(async {
        *granted.lock().unwrap() = Some(backend.the_row("key").await);
        std::thread::sleep(RENEWED + SHORT);
        backend.the_row("key").await
    });
    let row = held.await.unwrap();
    let granted = granted.into_inner().unwrap().unwrap();
    assert_eq!((row.lease_id, row.reentrant_count), (granted.lease_id, 1));
    assert!(
        row.now > granted.expire_at && row.expire_at > row.now,
        "renewed past its first end"
    );
}
