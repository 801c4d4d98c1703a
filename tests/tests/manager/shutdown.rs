//! Shutting a manager down: no new outermost locks, time for what is inside, and nothing left held.

use std::time::Duration;

use dblock::{InspectFilter, LockError, LostReason};
use dblock_tests::{Backend, on_every_store};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::{LONG, long, patient};

on_every_store!(
    shutdown_lets_what_is_inside_finish,
    shutdown_ends_what_is_left_after_the_grace,
    shutdown_refuses_the_queue,
    a_manager_that_is_shut_down_says_so,
    shutdown_ends_a_guard_but_frees_its_row_only_when_it_is_dropped,
    a_guard_is_released_after_the_engine_has_ended,
    the_longest_grace_is_no_overflow,
);

async fn a_guard_is_released_after_the_engine_has_ended(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    locks.shutdown(Duration::ZERO).await;
    // Nobody is left to write to the row.
    let released = timeout(LONG, guard.release()).await.expect("the release ends");
    assert!(released.unwrap_err().is_lost());
    let refused = timeout(LONG, locks.lock("key").options(&patient()).acquire()).await;
    assert!(refused.expect("the acquire ends").unwrap_err().is_shutdown());
}

async fn the_longest_grace_is_no_overflow(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let released = async {
        guard.release().await.unwrap();
    };
    tokio::join!(locks.shutdown(Duration::MAX), released);
    assert!(
        locks
            .lock("key")
            .options(&long())
            .acquire()
            .await
            .unwrap_err()
            .is_shutdown()
    );
}

async fn shutdown_lets_what_is_inside_finish(backend: Backend) {
    let locks = backend.manager().await;
    let (enter, entered) = oneshot::channel();
    let held = locks.lock("key").options(&long()).run(async {
        enter.send(()).unwrap();
        // A task that is under no lock is refused, sooner or later: then the shutdown has begun.
        let outsider = locks.clone();
        let refused = tokio::spawn(async move {
            loop {
                match outsider.lock("new").options(&long()).acquire().await {
                    Ok(guard) => guard.release().await.unwrap(),
                    Err(refused) => return refused,
                }
            }
        });
        match refused.await.unwrap() {
            LockError::Shutdown { key, .. } => assert_eq!(key.unwrap().as_str(), "new"),
            other => panic!("{other:?}"),
        }
        let again = locks
            .lock("key")
            .options(&long())
            .run(async { backend.the_row("key").await.reentrant_count });
        assert_eq!(again.await.unwrap(), 2, "re-entry");
        locks.lock("nested").options(&long()).run(async {}).await.unwrap();
        assert!(backend.the_row("nested").await.is_free());
        "finished"
    });
    let since = Instant::now();
    let shutdown = async {
        entered.await.unwrap();
        locks.shutdown(LONG).await;
        assert!(since.elapsed() < LONG / 2, "it does not use up its grace");
        assert!(backend.the_row("key").await.is_free());
    };
    let (ended, ()) = tokio::join!(held, shutdown);
    assert_eq!(ended.unwrap(), "finished");
}

async fn shutdown_ends_what_is_left_after_the_grace(backend: Backend) {
    let locks = backend.manager().await;
    let (enter, entered) = oneshot::channel();
    let task = tokio::spawn({
        let locks = locks.clone();
        async move {
            let body = async {
                enter.send(()).unwrap();
                std::future::pending::<()>().await;
            };
            locks.lock("key").options(&long()).run(body).await
        }
    });
    entered.await.unwrap();
    let grace = Duration::from_millis(300);
    let since = Instant::now();
    locks.shutdown(grace).await;
    assert!(since.elapsed() >= grace && since.elapsed() < grace + Duration::from_secs(10));
    assert!(backend.the_row("key").await.is_free());
    match task.await.unwrap() {
        Err(LockError::Lost { reason, .. }) => assert_eq!(reason, LostReason::Shutdown),
        other => panic!("{other:?}"),
    }
}

async fn shutdown_refuses_the_queue(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let _guard = other.lock("key").options(&long()).acquire().await.unwrap();
    // With a lock held, the grace goes on, and the queue must not wait for its end.
    let held = locks.lock("held").options(&long()).acquire().await.unwrap();
    let waiting = async {
        let refused = locks.lock("key").options(&patient()).acquire().await;
        drop(held);
        refused
    };
    let shutdown = async {
        backend.until("key", LONG, |row| row.wanted_until > row.now).await;
        locks.shutdown(LONG).await;
    };
    let since = Instant::now();
    let (refused, ()) = tokio::join!(waiting, shutdown);
    match refused {
        Err(LockError::Shutdown { key, .. }) => assert_eq!(key.unwrap().as_str(), "key"),
        other => panic!("{other:?}"),
    }
    assert!(since.elapsed() < LONG / 2);
}

async fn a_manager_that_is_shut_down_says_so(backend: Backend) {
    let locks = backend.manager().await;
    locks.shutdown(LONG).await;
    locks.shutdown(LONG).await;
    for options in [long(), patient()] {
        let refused = locks.lock("key").options(&options).acquire().await.unwrap_err();
        assert!(refused.is_shutdown() && refused.key().is_some(), "{refused:?}");
    }
    let refused = locks
        .lock("key")
        .options(&long())
        .try_acquire()
        .await
        .unwrap_err();
    assert!(refused.is_shutdown(), "{refused:?}");
    let refused = locks.admin().list(InspectFilter::new()).await.unwrap_err();
    assert!(refused.is_shutdown(), "{refused:?}");
    let refused = locks.admin().force_release("key").await.unwrap_err();
    assert!(refused.is_shutdown(), "{refused:?}");
}

async fn shutdown_ends_a_guard_but_frees_its_row_only_when_it_is_dropped(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    // It is connected then: the shutdown waits for the guard for two seconds only.
    other.lock("warm").options(&long()).run(async {}).await.unwrap();
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let shutdown = tokio::spawn({
        let locks = locks.clone();
        async move { locks.shutdown(Duration::ZERO).await }
    });
    match guard.lost().await {
        LockError::Lost { reason, .. } => assert_eq!(reason, LostReason::Shutdown),
        other => panic!("{other:?}"),
    }
    // Nothing can stop the code that has the guard, so nobody else may enter yet.
    assert!(
        other
            .lock("key")
            .options(&long())
            .acquire()
            .await
            .unwrap_err()
            .is_busy()
    );
    drop(guard);
    shutdown.await.unwrap();
    assert!(backend.the_row("key").await.is_free());
    other.lock("key").options(&long()).run(async {}).await.unwrap();
}
