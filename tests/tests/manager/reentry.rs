//! A call chain enters its own locks again, and each hold counts in the row.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::{LockError, LockManager, LostReason, OnLost, current};
use dblock_tests::poll::{DropWhen, drop_after};
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Barrier;
use tokio::task::yield_now;

use crate::{LONG, long, patient, short};

on_every_store!(
    each_hold_counts_in_the_row,
    owner_and_token_stay_the_same_inside,
    deep_nesting_counts_up_and_down,
    two_nested_calls_at_once_count_twice,
    siblings_without_an_enclosing_hold_exclude_each_other,
    a_spawned_task_is_a_new_owner,
    another_manager_does_not_reenter,
    a_guard_taken_inside_outlives_the_body,
    a_nested_call_that_is_dropped_counts_back,
    a_nested_panic_counts_back,
    nested_calls_with_other_keys_share_the_owner,
    waiting_forever_inside_of_another_lock_is_refused,
    a_lease_that_was_freed_by_force_is_not_reentered,
);
on_every_store!(paused time:
    an_expired_lease_is_not_reentered_even_if_nobody_took_it,
    reentry_extends_the_lease,
);

async fn count(backend: &Backend) -> i32 {
    backend.the_row("key").await.reentrant_count
}

async fn each_hold_counts_in_the_row(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("key", long(), async {
        let before = count(&backend).await;
        let inside = locks.with("key", long(), async { count(&backend).await });
        (before, inside.await.unwrap(), count(&backend).await)
    });
    assert_eq!(outer.await.unwrap(), (1, 2, 1));
    assert_eq!(count(&backend).await, 0);
}

async fn owner_and_token_stay_the_same_inside(backend: Backend) {
    let locks = backend.manager().await;
    let seen = || {
        let lock = current().unwrap();
        (lock.key().to_owned(), lock.owner(), lock.fence_token())
    };
    let outer = locks.with("key", long(), async {
        let row = backend.the_row("key").await;
        let inner = locks.with("key", long(), async { (seen(), backend.the_row("key").await) });
        let (inner, inner_row) = inner.await.unwrap();
        assert_eq!(inner, seen());
        assert_eq!(inner_row.lease_id, row.lease_id);
        assert_eq!(
            (inner_row.lock_owner, inner_row.fence_token),
            (row.lock_owner, row.fence_token)
        );
        assert_eq!(seen(), ("key".to_owned(), row.lock_owner, row.fence_token));
    });
    outer.await.unwrap();
    assert!(current().is_none());
}

async fn deep_nesting_counts_up_and_down(backend: Backend) {
    fn nest<'a>(locks: &'a LockManager, backend: &'a Backend, depth: i32) -> BoxFuture<'a, ()> {
        async move {
            let body = async {
                assert_eq!(count(backend).await, depth);
                if depth < 10 {
                    nest(locks, backend, depth + 1).await;
                }
                assert_eq!(count(backend).await, depth);
            };
            locks.with("key", long(), body).await.unwrap();
        }
        .boxed()
    }
    nest(&backend.manager().await, &backend, 1).await;
    assert_eq!(count(&backend).await, 0);
}

async fn two_nested_calls_at_once_count_twice(backend: Backend) {
    let locks = backend.manager().await;
    let both_inside = Barrier::new(2);
    let both_seen = Barrier::new(2);
    let nested = || {
        locks.with("key", long(), async {
            both_inside.wait().await;
            let seen = count(&backend).await;
            both_seen.wait().await;
            seen
        })
    };
    let outer = locks.with("key", long(), async {
        let (one, two) = tokio::join!(nested(), nested());
        (one.unwrap(), two.unwrap(), count(&backend).await)
    });
    assert_eq!(outer.await.unwrap(), (3, 3, 1));
    assert_eq!(count(&backend).await, 0);
}

async fn siblings_without_an_enclosing_hold_exclude_each_other(backend: Backend) {
    let locks = backend.manager().await;
    let inside = AtomicU32::new(0);
    let sibling = || {
        locks.with("key", patient(), async {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "overlap");
            let row = backend.the_row("key").await;
            yield_now().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            assert_eq!(row.reentrant_count, 1);
            dblock::current().unwrap()
        })
    };
    let (one, two) = tokio::join!(sibling(), sibling());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.owner(), two.owner());
    assert_ne!(one.fence_token(), two.fence_token());
}

async fn a_spawned_task_is_a_new_owner(backend: Backend) {
    let locks = backend.manager().await;
    let child = locks.clone();
    let outer = locks.with("key", long(), async {
        let spawned = tokio::spawn(async move {
            assert!(current().is_none());
            child
                .acquire("key", long())
                .await
                .map(|guard| guard.fence_token())
        });
        (spawned.await.unwrap(), current().unwrap().owner())
    });
    match outer.await.unwrap() {
        (Err(LockError::Busy { occupant, .. }), owner) => assert_eq!(occupant.unwrap().owner, owner),
        other => panic!("{other:?}"),
    }
}

async fn another_manager_does_not_reenter(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let nested = locks.with("key", long(), other.with("key", long(), async {}));
    assert!(matches!(nested.await.unwrap(), Err(LockError::Busy { .. })));
    let clone = locks.clone();
    let nested = locks.with("key", long(), clone.with("key", long(), async {}));
    assert!(nested.await.unwrap().is_ok(), "a clone is the same manager");
}

async fn a_guard_taken_inside_outlives_the_body(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.with("key", long(), async {
        locks.acquire("key", long()).await.unwrap()
    });
    let guard = guard.await.unwrap();
    assert_eq!(count(&backend).await, 1, "the guard's hold");
    assert!(other.acquire("key", long()).await.unwrap_err().is_busy());
    guard.release().await.unwrap();
    assert_eq!(count(&backend).await, 0);
}

async fn a_nested_call_that_is_dropped_counts_back(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("key", long(), async {
        for when in [DropWhen::Waiting, DropWhen::Woken] {
            for polls in 0..50 {
                let nested = locks.with("key", long(), yield_now());
                let ended = drop_after(nested, polls, when).await.is_some();
                // The next nested call brings the row up to date, whatever was on its way.
                let inside = locks.with("key", long(), async { count(&backend).await });
                assert_eq!(inside.await.unwrap(), 2, "dropped after {polls} polls, {when:?}");
                assert_eq!(count(&backend).await, 1);
                if ended {
                    break;
                }
                assert!(polls < 49, "the call never ends");
            }
        }
        current().unwrap().remaining() > Duration::ZERO
    });
    assert!(outer.await.unwrap());
    assert_eq!(count(&backend).await, 0);
}

async fn a_nested_panic_counts_back(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("key", long(), async {
        let nested = locks.with("key", long(), async { panic!("as planned") });
        let panic: Result<Result<(), _>, _> = AssertUnwindSafe(nested).catch_unwind().await;
        assert!(panic.is_err());
        count(&backend).await
    });
    assert_eq!(outer.await.unwrap(), 1);
    assert_eq!(count(&backend).await, 0);
}

async fn nested_calls_with_other_keys_share_the_owner(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("outer", long(), async {
        let inner = locks.with("inner", long(), async {
            // Re-entry finds a lock through those inside of it.
            let again = locks.with("outer", long(), async { backend.the_row("outer").await });
            (again.await.unwrap(), backend.the_row("inner").await)
        });
        inner.await.unwrap()
    });
    let (outer, inner) = outer.await.unwrap();
    assert_eq!((outer.reentrant_count, inner.reentrant_count), (2, 1));
    assert_eq!(outer.lock_owner, inner.lock_owner);
    assert_ne!(outer.lease_id, inner.lease_id);
    for key in ["outer", "inner"] {
        assert!(backend.the_row(key).await.is_free());
    }
}

async fn waiting_forever_inside_of_another_lock_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("outer", long(), async {
        let refused = locks.with("inner", long().wait_forever(), async {}).await;
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("inner"));
        locks.with("inner", patient(), async {}).await.unwrap();
        locks
            .with("outer", long().wait_forever(), async {})
            .await
            .unwrap();
    });
    outer.await.unwrap();
    locks
        .with("inner", long().wait_forever(), async {})
        .await
        .unwrap();
}

async fn a_lease_that_was_freed_by_force_is_not_reentered(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let outer = locks.with("key", long().on_lost(OnLost::Signal), async {
        assert!(operator.force_release("key").await.unwrap());
        let freed = backend.the_row("key").await;
        let nested = locks
            .with("key", long(), async { panic!("the lease is gone") })
            .await;
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
        assert_eq!(
            backend.the_row("key").await.reentrant_count,
            freed.reentrant_count
        );
        locks.with("key", long(), async {}).await.unwrap_err().is_lost()
    });
    assert!(outer.await.unwrap(), "lost is sticky");
}

async fn an_expired_lease_is_not_reentered_even_if_nobody_took_it(backend: Backend) {
    let locks = backend.manager().await;
    let options = short().renew(false).on_lost(OnLost::Signal);
    let outer = locks.with("key", options, async {
        let granted = backend.the_row("key").await;
        current().unwrap().lost().await;
        for wait in [Duration::ZERO, LONG] {
            let nested = locks
                .with("key", long().wait(wait), async { panic!("not inside") })
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
        let row = backend.the_row("key").await;
        assert_eq!(
            (row.lease_id, row.expire_at),
            (granted.lease_id, granted.expire_at),
            "not revived"
        );
    });
    outer.await.unwrap();
}

async fn reentry_extends_the_lease(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.with("key", short().renew(false), async {
        let granted = backend.the_row("key").await;
        backend
            .until("key", LONG, |row| row.now > granted.acquired_at + 100_000)
            .await;
        let inside = locks.with("key", short(), async { backend.the_row("key").await });
        let inside = inside.await.unwrap();
        assert!(inside.expire_at >= granted.expire_at + 100_000);
        assert_eq!(inside.fence_token, granted.fence_token);
    });
    outer.await.unwrap();
}
