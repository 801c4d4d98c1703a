//! A lost lease stops its body, is reported as lost with its reason, and stays lost. Its former holder changes
//! nothing for the next one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{LockError, LostReason, OnLost, current};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::AnyFixture;
use super::setup::{LONG, RENEWED, SHORT, Setup};

/// Shows when a body was dropped.
#[derive(Debug, Clone, Default)]
struct Dropped(Arc<Mutex<Option<Instant>>>);

impl Dropped {
    fn at(&self) -> Option<Instant> {
        *self.0.lock().unwrap()
    }

    /// A body that never ends.
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

/// A body whose lease was freed by force is dropped; the error is `Lost` with key, token and reason.
pub async fn a_lease_freed_by_force_stops_its_body(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let dropped = Dropped::default();
    let (inside, is_inside) = oneshot::channel();
    let body = dropped.clone().body();
    let held = locks.lock("key").ttl(RENEWED).run(async {
        inside.send(current().unwrap().fence_token()).unwrap();
        body.await;
    });
    let force = async {
        let token = is_inside.await.unwrap();
        assert!(operator.admin().force_release("key").await.unwrap());
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
            assert!(held < RENEWED * 2, "{held:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// With `on_lost = "signal"` the body is told and goes on.
pub async fn a_body_that_only_wants_a_signal_goes_on(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let held = locks.lock("key").ttl(RENEWED).on_lost(OnLost::Signal).run(async {
        let lock = current().unwrap();
        operator.admin().force_release("key").await.unwrap();
        let lost = lock.lost().await;
        assert_eq!(reason(&lost), LostReason::Gone);
        assert_eq!(lock.remaining(), Duration::ZERO);
        // The body goes on.
        tokio::time::sleep(SHORT).await;
        "the end"
    });
    assert_eq!(held.await.unwrap(), "the end");
}

/// Without renewal the body is dropped before the store's lease ends, and the row is freed.
pub async fn an_unrenewed_body_is_dropped_before_the_lease_ends(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    for _ in 0..5 {
        if dropped_in_time(&setup).await {
            return;
        }
    }
    panic!("each time the machine, or the store, stood still when the lease was about to end");
}

/// Measures how long this process stood still: then deadlines are missed.
#[derive(Debug)]
struct Stalls {
    longest: Arc<Mutex<Duration>>,
}

impl Stalls {
    const TICK: Duration = Duration::from_millis(1);

    /// Measures until it is dropped.
    fn watch() -> Self {
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let watched = Arc::downgrade(&longest);
        std::thread::spawn(move || {
            loop {
                let before = std::time::Instant::now();
                std::thread::sleep(Self::TICK);
                let Some(longest) = watched.upgrade() else { return };
                let mut longest = longest.lock().unwrap();
                *longest = before.elapsed().max(*longest);
            }
        });
        Self { longest }
    }

    fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }
}

async fn dropped_in_time(setup: &Setup<'_>) -> bool {
    let ttl = SHORT * 2;
    let locks = setup.manager().await;
    let stalls = Stalls::watch();
    let dropped = Dropped::default();
    let ends_at = Mutex::new(None);
    let body = dropped.clone().body();
    let asked_at = Instant::now();
    let held = locks.lock("key").wait(LONG).ttl(ttl).renew(false).run(async {
        // The row was read before this clock, so the lease ends then at the latest. Where rows have no
        // clock, it ends then at the earliest.
        let row = setup.the_row("key").await;
        let end = if setup.has_clock() {
            (Instant::now(), row.expire_at.since(row.now))
        } else {
            (asked_at, ttl)
        };
        *ends_at.lock().unwrap() = Some(end);
        body.await;
    });
    let lost = held.await.unwrap_err();
    assert_eq!(reason(&lost), LostReason::Expired);
    let Some((read_at, rest)) = ends_at.into_inner().unwrap() else {
        // The row was read too late.
        return false;
    };
    let dropped = dropped.at().unwrap();
    let in_time = dropped < read_at + rest;
    // The margin is a twentieth of the ttl.
    assert!(
        in_time || stalls.longest() > ttl / 100,
        "the body was inside after its lease, and the machine stood still for {:?} at most",
        stalls.longest()
    );
    // Also released, because the lease had not ended yet.
    in_time && dropped > read_at + rest - ttl / 2 && setup.is_free("key").await
}

/// An extended guard and its row outlive their first ttl; a shorter ttl shortens nothing.
pub async fn an_extended_guard_outlives_its_ttl(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks
        .lock("key")
        .wait(LONG)
        .ttl(RENEWED)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    let before = setup.the_row("key").await;
    guard.extend(LONG).await.unwrap();
    let after = setup.the_row("key").await;
    assert_eq!((after.lease_id, after.reentrant_count), (before.lease_id, 1));
    if setup.has_clock() {
        assert!(after.expire_at > before.expire_at, "{before:?} {after:?}");
    }
    assert!(guard.remaining() > RENEWED, "{guard:?}");
    guard.extend(SHORT).await.unwrap();
    assert!(guard.remaining() > RENEWED, "{guard:?}");
    assert_eq!(setup.the_row("key").await.expire_at, after.expire_at);
    guard.release().await.unwrap();
    setup.until_free("key").await;
}

/// A lease that was revoked or is gone is not extended, and the caller is told.
pub async fn a_lease_that_is_over_is_not_extended(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let guard = locks.lock("key").acquire().await.unwrap();
    let before = setup.the_row("key").await;
    assert!(operator.admin().revoke("key").await.unwrap());
    let revoked = guard.extend(LONG * 2).await.unwrap_err();
    assert_eq!(reason(&revoked), LostReason::Revoked);
    assert!(!guard.is_lost(), "it keeps the time that it had");
    assert_eq!(setup.the_row("key").await.expire_at, before.expire_at);
    assert!(operator.admin().force_release("key").await.unwrap());
    let gone = guard.extend(LONG).await.unwrap_err();
    assert_eq!(reason(&gone), LostReason::Revoked);
    assert!(guard.is_lost() && setup.is_free("key").await);
}

/// `max_hold` ends a lease that is being renewed.
pub async fn max_hold_ends_a_lease_that_is_renewed(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let dropped = Dropped::default();
    let since = Instant::now();
    let max_hold = RENEWED + SHORT;
    let lost = locks
        .lock("key")
        .ttl(RENEWED)
        .max_hold(max_hold)
        .run(dropped.clone().body())
        .await
        .unwrap_err();
    assert_eq!(reason(&lost), LostReason::MaxHold);
    let held = dropped.at().unwrap() - since;
    assert!(held >= max_hold && held < max_hold + LONG / 2, "{held:?}");
    setup.until_free("key").await;
}

/// A body that ended before the loss was known keeps its result.
pub async fn a_body_that_finished_in_time_keeps_its_result(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let held = locks.lock("key").run(async {
        assert!(operator.admin().force_release("key").await.unwrap());
        7
    });
    assert_eq!(
        held.await.unwrap(),
        7,
        "its release found nothing, but the body was done"
    );
}

/// The release of a former holder says lost and does not change the next one's row.
pub async fn a_late_release_changes_nothing_and_says_lost(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let former = locks.lock("key").acquire().await.unwrap();
    other.admin().force_release("key").await.unwrap();
    let successor = other.lock("key").acquire().await.unwrap();
    let row = setup.the_row("key").await;
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
    let after = setup.the_row("key").await;
    assert_eq!((after.lease_id, after.reentrant_count), (row.lease_id, 1));
    assert_eq!(
        (after.expire_at, after.fence_token),
        (row.expire_at, successor.fence_token())
    );
    successor.release().await.unwrap();
}

/// The renewals of a former holder do not change the next one's row, not even the count.
pub async fn a_former_holder_renews_nothing(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let former = locks.lock("key").ttl(RENEWED).acquire().await.unwrap();
    other.admin().force_release("key").await.unwrap();
    // Two holds, so that a count written by the former holder would show.
    let nested = other.lock("key").run(async {
        let row = setup.the_row("key").await;
        let lost = former.lost().await;
        (lost, row, setup.the_row("key").await)
    });
    let (lost, row, after) = other.lock("key").run(nested).await.unwrap().unwrap();
    assert_eq!(reason(&lost), LostReason::Gone);
    assert!(former.is_lost() && former.remaining().is_zero());
    assert_eq!((row.reentrant_count, after.reentrant_count), (2, 2));
    assert_eq!((after.lease_id, after.expire_at), (row.lease_id, row.expire_at));
    assert!(former.release().await.unwrap_err().is_lost());
}

/// A guard whose lease ran out knows that before another owner enters, and does not release that one's lock.
pub async fn an_expired_guard_releases_nothing(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let former = locks
        .lock("key")
        .ttl(SHORT * 2)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    let dropped = locks.clone();
    let successor = other.lock("key").wait(LONG).acquire().await.unwrap();
    assert!(successor.fence_token() > former.fence_token());
    assert!(former.is_lost(), "it knew before anybody could enter");
    let row = setup.the_row("key").await;
    let lost = former.release().await.unwrap_err();
    assert_eq!(reason(&lost), LostReason::Expired);
    drop(dropped);
    let after = setup.the_row("key").await;
    assert_eq!(
        (after.lease_id, after.reentrant_count, after.expire_at),
        (row.lease_id, 1, row.expire_at)
    );
    successor.release().await.unwrap();
}

/// Losing an inner lock drops the inner body only.
pub async fn the_loss_of_an_inner_lock_leaves_the_outer_one(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let outer = locks.lock("outer").run(async {
        let inner = locks.lock("inner").ttl(RENEWED).run(async {
            operator.admin().force_release("inner").await.unwrap();
            std::future::pending::<()>().await;
        });
        let lost = inner.await.unwrap_err();
        (
            lost.key().unwrap().as_str().to_owned(),
            setup.the_row("outer").await.reentrant_count,
        )
    });
    assert_eq!(outer.await.unwrap(), ("inner".to_owned(), 1));
}

/// Losing an outer lock drops the nested bodies, and their locks are released.
pub async fn the_loss_of_the_outer_lock_drops_the_nested_bodies(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let dropped = Dropped::default();
    let body = dropped.clone().body();
    let outer = locks.lock("outer").ttl(RENEWED).run(async {
        operator.admin().force_release("outer").await.unwrap();
        locks.lock("inner").run(body).await
    });
    let lost = outer.await.unwrap_err();
    assert_eq!(lost.key().unwrap().as_str(), "outer");
    assert!(dropped.at().is_some());
    setup.until_free("inner").await;
}
