//! A lost lease stops its body, is told as lost with its reason, and stays lost; its former holder changes
//! nothing for its successor.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{LockError, LostReason, OnLost, current};
use dblock_tests::{Backend, Kind, on_every_store};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::{SHORT, long, patient, short};

on_every_store!(paused time:
    a_lease_freed_by_force_stops_its_body,
    a_body_that_only_wants_a_signal_goes_on,
    an_unrenewed_body_is_dropped_before_the_lease_ends,
    max_hold_ends_a_lease_that_is_renewed,
    a_former_holder_renews_nothing,
    an_expired_guard_releases_nothing,
    the_loss_of_an_inner_lock_leaves_the_outer_one,
    the_loss_of_the_outer_lock_drops_the_nested_bodies,
);
on_every_store!(
    a_body_that_finished_in_time_keeps_its_result,
    a_late_release_changes_nothing_and_says_lost,
    a_body_that_comes_back_too_late_has_lost,
);
on_every_store!(databases: a_blocked_worker_thread_does_not_stop_renewals);

/// Says when it was dropped.
#[derive(Debug, Clone, Default)]
struct Dropped(Arc<Mutex<Option<Instant>>>);

impl Dropped {
    fn at(&self) -> Option<Instant> {
        *self.0.lock().unwrap()
    }

    /// A body that never ends and notes when it is dropped.
    async fn body(self) {
        struct Note(Dropped);
        impl Drop for Note {
            fn drop(&mut self) {
                *self.0.0.lock().unwrap() = Some(Instant::now());
            }
        }
        let _note = Note(self);
        std::future::pending::<()>().await;
    }
}

fn reason(result: &LockError) -> LostReason {
    match result {
        LockError::Lost { reason, .. } => *reason,
        other => panic!("not lost: {other:?}"),
    }
}

async fn a_lease_freed_by_force_stops_its_body(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let dropped = Dropped::default();
    let (inside, is_inside) = oneshot::channel();
    let body = dropped.clone().body();
    let held = locks.with("key", short(), async {
        inside.send(current().unwrap().fence_token()).unwrap();
        body.await;
    });
    let force = async {
        let token = is_inside.await.unwrap();
        assert!(operator.force_release("key").await.unwrap());
        token
    };
    let (ended, token) = tokio::join!(held, force);
    let lost = ended.unwrap_err();
    assert_eq!(reason(&lost), LostReason::Gone);
    assert!(dropped.at().is_some());
    match lost {
        LockError::Lost {
            key,
            fence_token,
            held,
            ..
        } => {
            assert_eq!((key.as_str(), fence_token), ("key", token));
            assert!(held < SHORT * 2, "{held:?}");
        }
        other => panic!("{other:?}"),
    }
}

async fn a_body_that_only_wants_a_signal_goes_on(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let held = locks.with("key", short().on_lost(OnLost::Signal), async {
        let lock = current().unwrap();
        operator.force_release("key").await.unwrap();
        let lost = lock.lost().await;
        assert_eq!(reason(&lost), LostReason::Gone);
        assert_eq!(lock.remaining(), Duration::ZERO);
        // It goes on for as long as it likes.
        tokio::time::sleep(SHORT).await;
        "the end"
    });
    assert_eq!(held.await.unwrap(), "the end");
}

async fn an_unrenewed_body_is_dropped_before_the_lease_ends(backend: Backend) {
    let locks = backend.manager().await;
    let dropped = Dropped::default();
    let ends_at = Mutex::new(None);
    let body = dropped.clone().body();
    let held = locks.with("key", short().renew(false), async {
        // On this clock the lease ends at the latest then: the row was read before the clock.
        let row = backend.the_row("key").await;
        let rest = u64::try_from(row.expire_at - row.now).unwrap();
        *ends_at.lock().unwrap() = Some((Instant::now(), Duration::from_micros(rest)));
        body.await;
    });
    let lost = held.await.unwrap_err();
    assert_eq!(reason(&lost), LostReason::Expired);
    let (read_at, rest) = ends_at.into_inner().unwrap().unwrap();
    let dropped = dropped.at().unwrap();
    assert!(dropped < read_at + rest, "the body was inside after its lease");
    if backend.kind() == Kind::PausedMemory {
        // Where no clock runs while the test does, the margin is seen exactly.
        assert_eq!(dropped + Duration::from_millis(50), read_at + rest);
    }
    assert!(
        dropped > read_at + rest - SHORT / 2,
        "it was dropped far too early"
    );
    let row = backend.the_row("key").await;
    assert!(
        row.is_free(),
        "and released, since the lease had not ended yet: {row:?}"
    );
}

async fn max_hold_ends_a_lease_that_is_renewed(backend: Backend) {
    let locks = backend.manager().await;
    let dropped = Dropped::default();
    let since = Instant::now();
    let options = short().max_hold(SHORT * 3 / 2);
    let lost = locks
        .with("key", options, dropped.clone().body())
        .await
        .unwrap_err();
    assert_eq!(reason(&lost), LostReason::MaxHold);
    let held = dropped.at().unwrap() - since;
    assert!(held >= SHORT * 3 / 2 && held < SHORT * 5 / 2, "{held:?}");
    assert!(backend.the_row("key").await.is_free());
}

async fn a_body_that_finished_in_time_keeps_its_result(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let held = locks.with("key", long(), async {
        assert!(operator.force_release("key").await.unwrap());
        7
    });
    assert_eq!(
        held.await.unwrap(),
        7,
        "its release found nothing, but the body was done"
    );
}

async fn a_late_release_changes_nothing_and_says_lost(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let former = locks.acquire("key", long()).await.unwrap();
    other.force_release("key").await.unwrap();
    let successor = other.acquire("key", long()).await.unwrap();
    let row = backend.the_row("key").await;
    let token = former.fence_token();
    match former.release().await {
        Err(LockError::Lost {
            key,
            reason: LostReason::Gone,
            fence_token,
            ..
        }) => {
            assert_eq!((key.as_str(), fence_token), ("key", token));
        }
        result => panic!("{result:?}"),
    }
    let after = backend.the_row("key").await;
    assert_eq!((after.lease_id, after.reentrant_count), (row.lease_id, 1));
    assert_eq!(
        (after.expire_at, after.fence_token),
        (row.expire_at, successor.fence_token())
    );
    successor.release().await.unwrap();
}

async fn a_former_holder_renews_nothing(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let former = locks.acquire("key", short()).await.unwrap();
    other.force_release("key").await.unwrap();
    // Two holds, so that a count that the former holder wrote would be seen.
    let nested = other.with("key", long(), async {
        let row = backend.the_row("key").await;
        let lost = former.lost().await;
        (lost, row, backend.the_row("key").await)
    });
    let (lost, row, after) = other.with("key", long(), nested).await.unwrap().unwrap();
    assert_eq!(reason(&lost), LostReason::Gone);
    assert!(former.is_lost() && former.remaining().is_zero());
    assert_eq!((row.reentrant_count, after.reentrant_count), (2, 2));
    assert_eq!((after.lease_id, after.expire_at), (row.lease_id, row.expire_at));
    assert!(former.release().await.unwrap_err().is_lost());
}

async fn an_expired_guard_releases_nothing(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let former = locks.acquire("key", short().renew(false)).await.unwrap();
    let dropped = locks.clone();
    let successor = other.acquire("key", patient()).await.unwrap();
    assert!(successor.fence_token() > former.fence_token());
    assert!(former.is_lost(), "it knew before anybody could get in");
    let row = backend.the_row("key").await;
    let lost = former.release().await.unwrap_err();
    assert_eq!(reason(&lost), LostReason::Expired);
    drop(dropped);
    let after = backend.the_row("key").await;
    assert_eq!(
        (after.lease_id, after.reentrant_count, after.expire_at),
        (row.lease_id, 1, row.expire_at)
    );
    successor.release().await.unwrap();
}

async fn the_loss_of_an_inner_lock_leaves_the_outer_one(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let outer = locks.with("outer", long(), async {
        let inner = locks.with("inner", short(), async {
            operator.force_release("inner").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = inner.await.unwrap_err();
        (
            lost.key().unwrap().as_str().to_owned(),
            backend.the_row("outer").await.reentrant_count,
        )
    });
    assert_eq!(outer.await.unwrap(), ("inner".to_owned(), 1));
}

async fn the_loss_of_the_outer_lock_drops_the_nested_bodies(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let dropped = Dropped::default();
    let body = dropped.clone().body();
    let outer = locks.with("outer", short(), async {
        operator.force_release("outer").await.unwrap();
        locks.with("inner", long(), body).await
    });
    let lost = outer.await.unwrap_err();
    assert_eq!(lost.key().unwrap().as_str(), "outer");
    assert!(dropped.at().is_some());
    backend.until_free("inner").await;
}

async fn a_body_that_comes_back_too_late_has_lost(backend: Backend) {
    let locks = backend.manager().await;
    let held = locks.with("key", short().renew(false), async {
        // No await: nothing can stop it, and what it did may have been outside of the lease.
        std::thread::sleep(SHORT);
        "too late"
    });
    assert_eq!(reason(&held.await.unwrap_err()), LostReason::Expired);
}

async fn a_blocked_worker_thread_does_not_stop_renewals(backend: Backend) {
    let locks = backend.manager().await;
    let granted = Mutex::new(None);
    let held = locks.with("key", short(), async {
        *granted.lock().unwrap() = Some(backend.the_row("key").await);
        std::thread::sleep(SHORT * 2);
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
