//! A call chain re-enters its own locks, and each hold counts in the row.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::{LockError, LockManager, LostReason, OnLost, current};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Barrier;
use tokio::task::yield_now;

use super::AnyFixture;
use super::setup::{LONG, SHORT, Setup};
use crate::poll::{DropWhen, drop_after};

async fn count(setup: &Setup<'_>) -> u32 {
    setup.the_row("key").await.reentrant_count
}

/// The count in the row goes 1, 2, 1, 0.
pub async fn each_hold_counts_in_the_row(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("key").run(async {
        let before = count(&setup).await;
        let inside = locks.lock("key").run(async { count(&setup).await });
        (before, inside.await.unwrap(), count(&setup).await)
    });
    assert_eq!(outer.await.unwrap(), (1, 2, 1));
    assert_eq!(count(&setup).await, 0);
}

/// Re-entry keeps the lease, the owner and the token.
pub async fn owner_and_token_stay_the_same_inside(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let seen = || {
        let lock = current().unwrap();
        (lock.key().to_owned(), lock.owner(), lock.fence_token())
    };
    let outer = locks.lock("key").run(async {
        let row = setup.the_row("key").await;
        let inner = locks
            .lock("key")
            .run(async { (seen(), setup.the_row("key").await) });
        let (inner, inner_row) = inner.await.unwrap();
        assert_eq!(inner, seen());
        assert_eq!(inner_row.lease_id, row.lease_id);
        assert_eq!(
            (inner_row.owner, inner_row.fence_token),
            (row.owner, row.fence_token)
        );
        assert_eq!(seen(), ("key".to_owned(), row.owner, row.fence_token));
    });
    outer.await.unwrap();
    assert!(current().is_none());
}

/// Ten nested calls count to ten and back.
pub async fn deep_nesting_counts_up_and_down(fixture: &dyn AnyFixture) {
    fn nest<'a>(locks: &'a LockManager, setup: &'a Setup<'a>, depth: u32) -> BoxFuture<'a, ()> {
        async move {
            let body = async {
                assert_eq!(count(setup).await, depth);
                if depth < 10 {
                    nest(locks, setup, depth + 1).await;
                }
                assert_eq!(count(setup).await, depth);
            };
            locks.lock("key").run(body).await.unwrap();
        }
        .boxed()
    }
    let setup = Setup::new(fixture).await;
    nest(&setup.manager().await, &setup, 1).await;
    assert_eq!(count(&setup).await, 0);
}

/// Two nested calls at once count three holds.
pub async fn two_nested_calls_at_once_count_twice(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let both_inside = Barrier::new(2);
    let both_seen = Barrier::new(2);
    let nested = || {
        locks.lock("key").run(async {
            both_inside.wait().await;
            let seen = count(&setup).await;
            both_seen.wait().await;
            seen
        })
    };
    let outer = locks.lock("key").run(async {
        let (one, two) = tokio::join!(nested(), nested());
        (one.unwrap(), two.unwrap(), count(&setup).await)
    });
    assert_eq!(outer.await.unwrap(), (3, 3, 1));
    assert_eq!(count(&setup).await, 0);
}

/// Two calls of one task with no enclosing hold are two owners.
pub async fn siblings_without_an_enclosing_hold_exclude_each_other(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let inside = AtomicU32::new(0);
    let sibling = || {
        locks.lock("key").wait(LONG).run(async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "overlap");
            let row = setup.the_row("key").await;
            yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(row.reentrant_count, 1);
            current().unwrap()
        })
    };
    let (one, two) = tokio::join!(sibling(), sibling());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.owner(), two.owner());
    assert_ne!(one.fence_token(), two.fence_token());
}

/// For a task that is spawned inside the key is busy, and held by the parent's owner.
pub async fn a_spawned_task_is_a_new_owner(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let child = locks.clone();
    let outer = locks.lock("key").run(async {
        let spawned = tokio::spawn(async move {
            assert!(current().is_none());
            child.lock("key").acquire().await.map(|guard| guard.fence_token())
        });
        (spawned.await.unwrap(), current().unwrap().owner())
    });
    match outer.await.unwrap() {
        (Err(LockError::Busy { holder, .. }), owner) => assert_eq!(holder.unwrap().owner, owner),
        other => panic!("{other:?}"),
    }
}

/// A second manager does not re-enter the first one's lock; a clone does.
pub async fn another_manager_does_not_reenter(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let nested = locks.lock("key").run(other.lock("key").run(async {}));
    assert!(matches!(nested.await.unwrap(), Err(LockError::Busy { .. })));
    let clone = locks.clone();
    let nested = locks.lock("key").run(clone.lock("key").run(async {}));
    assert!(nested.await.unwrap().is_ok(), "a clone is the same manager");
}

/// A guard that a body returns keeps the row held after the body.
pub async fn a_guard_taken_inside_outlives_the_body(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let guard = locks
        .lock("key")
        .run(async { locks.lock("key").acquire().await.unwrap() });
    let guard = guard.await.unwrap();
    assert_eq!(count(&setup).await, 1, "the guard's hold");
    assert!(other.lock("key").acquire().await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    assert_eq!(count(&setup).await, 0);
}

/// A nested call is dropped at each of its awaits: its hold is taken back each time.
pub async fn a_nested_call_that_is_dropped_counts_back(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("key").run(async {
        for when in [DropWhen::Waiting, DropWhen::Woken] {
            for polls in 0..50 {
                let nested = locks.lock("key").run(yield_now());
                let ended = drop_after(nested, polls, when).await.is_some();
                // The next nested call brings the row up to date.
                let inside = locks.lock("key").run(async { count(&setup).await });
                assert_eq!(inside.await.unwrap(), 2, "dropped after {polls} polls, {when:?}");
                assert_eq!(count(&setup).await, 1);
                if ended {
                    break;
                }
                assert!(polls < 49, "the call never ends");
            }
        }
        current().unwrap().remaining() > Duration::ZERO
    });
    assert!(outer.await.unwrap());
    assert_eq!(count(&setup).await, 0);
}

/// A nested panic ends its own hold and no other.
pub async fn a_nested_panic_counts_back(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("key").run(async {
        let nested = locks.lock("key").run(async { panic!("as planned") });
        let panic: Result<Result<(), _>, _> = AssertUnwindSafe(nested).catch_unwind().await;
        assert!(panic.is_err());
        count(&setup).await
    });
    assert_eq!(outer.await.unwrap(), 1);
    assert_eq!(count(&setup).await, 0);
}

/// Locks of one call chain have one owner and leases of their own.
pub async fn nested_calls_with_other_keys_share_the_owner(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("outer").run(async {
        let inner = locks.lock("inner").run(async {
            // Re-entry finds a lock through those inside it.
            let again = locks.lock("outer").run(async { setup.the_row("outer").await });
            (again.await.unwrap(), setup.the_row("inner").await)
        });
        inner.await.unwrap()
    });
    let (outer, inner) = outer.await.unwrap();
    assert_eq!((outer.reentrant_count, inner.reentrant_count), (2, 1));
    assert_eq!(outer.owner, inner.owner);
    assert_ne!(outer.lease_id, inner.lease_id);
    for key in ["outer", "inner"] {
        assert!(setup.is_free(key).await);
    }
}

/// Waiting forever under another lock is refused; a bounded wait and re-entry are not.
pub async fn waiting_forever_inside_of_another_lock_is_refused(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("outer").run(async {
        let refused = locks.lock("inner").wait_forever().run(async {}).await;
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("inner"));
        locks.lock("inner").wait(LONG).run(async {}).await.unwrap();
        locks.lock("outer").wait_forever().run(async {}).await.unwrap();
    });
    outer.await.unwrap();
    locks.lock("inner").wait_forever().run(async {}).await.unwrap();
}

/// Re-entry into a lease that was freed by force says lost, each time.
pub async fn a_lease_that_was_freed_by_force_is_not_reentered(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, operator) = (setup.manager().await, setup.manager().await);
    let outer = locks.lock("key").on_lost(OnLost::Signal).run(async {
        assert!(operator.admin().force_release("key").await.unwrap());
        let freed = setup.the_row("key").await;
        let nested = locks.lock("key").run(async { panic!("the lease is gone") }).await;
        let lost: LockError = nested.map(|(): ()| ()).unwrap_err();
        assert!(
            matches!(
                lost,
                LockError::Lost {
                    reason: LostReason::Gone,
                    ..
                }
            ),
            "{lost:?}"
        );
        assert_eq!(setup.the_row("key").await.reentrant_count, freed.reentrant_count);
        let again = locks.lock("key").run(async {}).await.unwrap_err();
        assert!(again.is_lost(), "lost is sticky, but it said {again:?}");
    });
    outer.await.unwrap();
}

/// Re-entry into a lease that ran out says lost, even if nobody took the row, and revives nothing.
pub async fn an_expired_lease_is_not_reentered_even_if_nobody_took_it(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let lock = locks.lock("key").ttl(SHORT * 2).renew(false);
    let outer = lock.on_lost(OnLost::Signal).run(async {
        let granted = setup.the_row("key").await;
        current().unwrap().lost().await;
        for wait in [Duration::ZERO, LONG] {
            let nested = locks
                .lock("key")
                .wait(wait)
                .run(async { panic!("not inside") })
                .await;
            let lost: LockError = nested.map(|(): ()| ()).unwrap_err();
            assert!(
                matches!(
                    lost,
                    LockError::Lost {
                        reason: LostReason::Expired,
                        ..
                    }
                ),
                "{lost:?}"
            );
        }
        if setup.has_clock() {
            // A store that keeps the lease in two rows shows the one that is still held.
            let row = setup.until("key", |row| !row.is_held()).await;
            assert_eq!(
                (row.lease_id, row.expire_at),
                (granted.lease_id, granted.expire_at),
                "not revived"
            );
        }
    });
    outer.await.unwrap();
}

/// Re-entry moves the end of the lease later.
pub async fn reentry_extends_the_lease(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let outer = locks.lock("key").renew(false).run(async {
        let granted = setup.the_row("key").await;
        setup
            .until("key", |row| {
                row.now > granted.acquired_at + Duration::from_millis(100)
            })
            .await;
        let inside = locks.lock("key").run(async { setup.the_row("key").await });
        let inside = inside.await.unwrap();
        if setup.has_clock() {
            assert!(inside.expire_at >= granted.expire_at + Duration::from_millis(100));
        }
        assert_eq!(inside.fence_token, granted.fence_token);
    });
    outer.await.unwrap();
}
