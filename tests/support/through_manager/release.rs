//! The lock is released on every exit path. The row is read at once if the call awaits its release, and soon
//! after (long before the ttl) if a future was dropped.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use dblock::{LockError, LockManager};
use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::AnyFixture;
use super::setup::{LONG, SHORT, Setup, eventually};
use crate::poll::{DropWhen, drop_after};

/// When `run` returns, the row is free.
pub async fn a_body_that_returns_has_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let held = locks.lock("key").run(async {
        yield_now().await;
        setup.the_row("key").await.reentrant_count
    });
    assert_eq!(held.await.unwrap(), 1);
    assert!(setup.is_free("key").await);
}

/// When the body fails, early or late, the row is free.
pub async fn a_body_that_fails_has_released(fixture: &dyn AnyFixture) {
    async fn fails(early: bool) -> Result<(), std::num::ParseIntError> {
        if early {
            return "early".parse::<u8>().map(drop);
        }
        yield_now().await;
        "late".parse::<u8>()?;
        unreachable!();
    }
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    for early in [true, false] {
        let result = locks.lock("key").run(fails(early)).await.unwrap();
        assert!(setup.is_free("key").await);
        assert!(result.is_err());
    }
}

/// When the body panics, the row is free and the same panic goes on.
pub async fn a_panic_goes_on_after_the_release(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    for yields in [false, true] {
        let body = async {
            if yields {
                yield_now().await;
            }
            std::panic::panic_any(42);
        };
        let panic = AssertUnwindSafe(locks.lock("key").run(body)).catch_unwind().await;
        assert!(setup.is_free("key").await);
        assert_eq!(
            panic.unwrap_err().downcast_ref(),
            Some(&42),
            "the very same panic"
        );
    }
}

/// Polls the future of `make` 0, 1, 2, … times and drops it, until one ends. Each time the key must be free at
/// once for another manager, while the ttl is 30 seconds.
async fn drop_everywhere<F: Future>(setup: &Setup<'_>, make: impl Fn(LockManager) -> F) {
    let (locks, other) = (setup.manager().await, setup.manager().await);
    for when in [DropWhen::Waiting, DropWhen::Woken] {
        for polls in 0.. {
            assert!(polls < 50, "the future never ends");
            let ended = drop_after(make(locks.clone()), polls, when).await.is_some();
            let next = other.lock("key").wait(LONG * 2 / 3).acquire().await;
            next.unwrap_or_else(|error| panic!("dropped after {polls} polls, {when:?}: {error}"))
                .release()
                .await
                .unwrap();
            if ended {
                assert!(polls > 1, "it was dropped in the middle before");
                break;
            }
        }
    }
    // A grant may have been on its way while the other manager held the key.
    eventually("every release is written", || {
        locks.health().pending_releases == 0
    })
    .await;
    assert!(setup.is_free("key").await);
}

/// `run` is dropped at each of its awaits: the key is free for another manager at once.
pub async fn with_leaves_nothing_behind_wherever_it_is_dropped(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    drop_everywhere(&setup, |locks| async move {
        let body = async {
            yield_now().await;
            locks.lock("key").run(yield_now()).await.unwrap();
            yield_now().await;
        };
        // A try may fall into the release of the one before.
        locks.lock("key").wait(LONG).run(body).await.unwrap();
    })
    .await;
}

/// `acquire` and `release` are dropped at each of their awaits: the key is free for another manager at once.
pub async fn acquire_leaves_nothing_behind_wherever_it_is_dropped(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    drop_everywhere(&setup, |locks| async move {
        let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
        yield_now().await;
        guard.release().await.unwrap();
    })
    .await;
}

/// An acquire is dropped while its statement is on its way: a grant that nobody takes is released at once.
pub async fn an_acquire_cut_off_at_any_time_leaves_nothing_behind(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    locks.lock("key").run(async {}).await.unwrap();
    // In small steps over the time of a statement, so that some grants are on their way.
    for step in 0..40 {
        let cut_off = async {
            let since = Instant::now();
            while since.elapsed() < Duration::from_micros(step * 40) {
                yield_now().await;
            }
        };
        tokio::select! {
            guard = locks.lock("key").wait(LONG).acquire() => drop(guard.unwrap()),
            () = cut_off => {}
        }
        let next = other.lock("key").wait(LONG * 2 / 3).acquire().await;
        next.unwrap().release().await.unwrap();
    }
    eventually("every release is written", || {
        locks.health().pending_releases == 0
    })
    .await;
    assert!(setup.is_free("key").await);
}

/// A waiter that was dropped does not enter before the next one.
pub async fn a_waiting_acquire_that_is_dropped_leaves_nothing_behind(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let guard = other.lock("key").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock("key")
                .wait(LONG)
                .acquire()
                .await
                .map(|guard| guard.fence_token())
        }
    });
    setup.until("key", |row| row.wanted_until > row.now).await;
    waiting.abort();
    let _ = waiting.await;
    let token = guard.fence_token();
    guard.release().await.unwrap();
    // If the caller were still in the queue, it would enter before this one.
    let next = locks.lock("key").wait(LONG).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
    assert!(setup.is_free("key").await);
}

/// A body that loses a `select!` is released.
pub async fn a_body_that_loses_a_select_is_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let (inside, is_inside) = oneshot::channel();
    let body = async move {
        inside.send(()).unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = locks.lock("key").run(body) => panic!("{ended:?}"),
        inside = is_inside => inside.unwrap(),
    }
    setup.until_free("key").await;
}

/// A body that times out is released.
pub async fn a_body_that_times_out_is_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let body = async {
        // The timeout begins inside.
        std::future::pending::<()>().await;
    };
    // So that its acquire is quick.
    locks.lock("key").run(async {}).await.unwrap();
    let limit = Duration::from_millis(500);
    let ended = tokio::time::timeout(limit, locks.lock("key").run(body)).await;
    assert!(ended.is_err(), "{ended:?}");
    setup.until_free("key").await;
}

/// A body whose task is aborted is released.
pub async fn an_aborted_task_is_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let (inside, is_inside) = oneshot::channel();
    let task = tokio::spawn(async move {
        let body = async {
            inside.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        locks.lock("key").run(body).await
    });
    is_inside.await.unwrap();
    assert_eq!(setup.the_row("key").await.reentrant_count, 1);
    task.abort();
    setup.until_free("key").await;
}

/// When `release` returns, the row is free.
pub async fn a_released_guard_has_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    assert_eq!(setup.the_row("key").await.reentrant_count, 1);
    guard.release().await.unwrap();
    assert!(setup.is_free("key").await);
}

/// Another task makes the engine check the key all the time, also between the end of a hold and the report of
/// that end: the release is confirmed all the same.
pub async fn a_release_that_the_engine_sees_before_it_is_told_is_confirmed(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let pester = tokio::spawn({
        let locks = locks.clone();
        async move {
            loop {
                if let Some(guard) = locks.lock("key").try_acquire().await.unwrap() {
                    guard.release().await.unwrap();
                }
            }
        }
    });
    for _ in 0..200 {
        let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    pester.abort();
}

/// A dropped guard is released in the background.
pub async fn a_dropped_guard_is_released(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    assert_eq!(setup.the_row("key").await.reentrant_count, 1);
    drop(guard);
    setup.until_free("key").await;
}

/// A guard keeps its lease when the manager is dropped.
pub async fn the_lock_outlives_its_manager_but_not_its_guard(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    drop(locks);
    let refused = setup.manager().await.lock("key").acquire().await;
    assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
    assert!(!guard.is_lost());
    drop(guard);
    setup.until_free("key").await;
}

/// `hold_min` returns at once, and others stay out until it is over.
pub async fn hold_min_keeps_the_row_busy_but_not_the_caller(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let since = Instant::now();
    let ends_after = SHORT * 6;
    locks
        .lock("key")
        .ttl(SHORT * 4)
        .hold_min(ends_after)
        .run(async {})
        .await
        .unwrap();
    let row = setup.the_row("key").await;
    assert!(since.elapsed() < ends_after, "it returned at once");
    assert_eq!(row.reentrant_count, 1);
    assert!(other.lock("key").acquire().await.unwrap_err().is_busy());
    let guard = other.lock("key").wait(LONG).acquire().await.unwrap();
    let next = setup.the_row("key").await;
    assert!(
        next.acquired_at >= row.acquired_at + Duration::from_millis(5_990),
        "no sooner than was asked for"
    );
    assert!(
        next.acquired_at < row.acquired_at + Duration::from_secs(16),
        "and not for long after"
    );
    guard.release().await.unwrap();
}
