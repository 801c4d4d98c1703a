//! Sharing a lock with another task, and entering a guard.

use dblock::{LockError, LostReason, current, inherit, inherit_blocking};
use dblock_tests::poll::{DropWhen, drop_after};
use dblock_tests::{Backend, Row, on_every_store};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::{LONG, RENEWED, long};

on_every_store!(
    an_inherited_hold_counts_from_the_call,
    a_child_keeps_the_lock_when_its_parent_returns_first,
    a_child_is_inside_of_all_its_parents_locks,
    a_child_that_is_never_spawned_counts_back,
    outside_of_a_lock_inherit_just_runs,
    a_thread_shares_the_locks_and_may_stay_longer,
    a_loss_is_told_to_a_thread_that_shares,
    a_thread_that_comes_after_the_loss_does_nothing,
    a_plain_function_shares_its_lock_with_a_task,
    a_guard_enters_without_another_hold,
    dropping_what_a_guard_runs_keeps_the_lock,
);
on_every_store!(paused time: loss_drops_the_child, loss_drops_what_a_guard_runs);

async fn an_inherited_hold_counts_from_the_call(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.lock("key").options(&long()).run(async {
        let child = inherit(async { backend.the_row("key").await.reentrant_count });
        backend.until("key", LONG, |row| row.reentrant_count == 2).await;
        let seen = child.await.unwrap();
        (seen, backend.the_row("key").await.reentrant_count)
    });
    assert_eq!(outer.await.unwrap(), (2, 1));
    assert!(backend.the_row("key").await.is_free());
}

async fn a_child_keeps_the_lock_when_its_parent_returns_first(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (finish, finished) = oneshot::channel::<()>();
    let parent = locks.lock("key").options(&long()).run(async {
        (
            current().unwrap().owner(),
            tokio::spawn(inherit(async move {
                finished.await.unwrap();
                current().unwrap().owner()
            })),
        )
    });
    let (owner, child) = parent.await.unwrap();
    let row = backend.the_row("key").await;
    assert_eq!(
        (row.reentrant_count, row.lock_owner),
        (1, owner),
        "the child's hold"
    );
    assert!(
        other
            .lock("key")
            .options(&long())
            .acquire()
            .await
            .unwrap_err()
            .is_busy()
    );
    finish.send(()).unwrap();
    assert_eq!(child.await.unwrap().unwrap(), owner);
    assert!(
        backend.the_row("key").await.is_free(),
        "the child has released it"
    );
}

async fn a_child_is_inside_of_all_its_parents_locks(backend: Backend) {
    let locks = backend.manager().await;
    let inner = locks.clone();
    let child = locks.lock("outer").options(&long()).run(async {
        let inner_body = async {
            let locks = inner.clone();
            tokio::spawn(inherit(async move {
                for key in ["outer", "inner"] {
                    locks.lock(key).options(&long()).run(async {}).await.unwrap();
                }
            }))
        };
        inner
            .lock("inner")
            .options(&long())
            .run(inner_body)
            .await
            .unwrap()
    });
    child.await.unwrap().await.unwrap().unwrap();
    for key in ["outer", "inner"] {
        assert!(backend.the_row(key).await.is_free(), "{key}");
    }
}

async fn a_child_that_is_never_spawned_counts_back(backend: Backend) {
    let locks = backend.manager().await;
    let outer = locks.lock("key").options(&long()).run(async {
        let child = inherit(async {});
        backend.until("key", LONG, |row| row.reentrant_count == 2).await;
        drop(child);
        backend.until("key", LONG, |row| row.reentrant_count == 1).await;
    });
    outer.await.unwrap();
    assert!(backend.the_row("key").await.is_free());
}

async fn outside_of_a_lock_inherit_just_runs(backend: Backend) {
    let locks = backend.manager().await;
    let result = inherit(async {
        assert!(current().is_none());
        locks.lock("key").options(&long()).run(async { 7 }).await.unwrap()
    });
    assert_eq!(result.await.unwrap(), 7);
}

async fn loss_drops_the_child(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let parent = locks
        .lock("key")
        .options(&long())
        .ttl(RENEWED)
        .run(async { tokio::spawn(inherit(std::future::pending::<()>())) });
    let child = parent.await.unwrap();
    operator.admin().force_release("key").await.unwrap();
    let lost = child.await.unwrap().unwrap_err();
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
}

async fn a_thread_shares_the_locks_and_may_stay_longer(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (finish, finished) = oneshot::channel::<()>();
    let again = locks.clone();
    let parent = locks.lock("key").options(&long()).run(async {
        let child = inherit_blocking(move || {
            finished.blocking_recv().unwrap();
            again.lock("key").blocking_run(|| current().unwrap().hold_count())
        });
        spawn_blocking(child)
    });
    let child = parent.await.unwrap();
    assert!(other.lock("key").try_acquire().await.unwrap().is_none());
    finish.send(()).unwrap();
    assert_eq!(child.await.unwrap().unwrap().unwrap(), 2, "it has re-entered");
    backend.until("key", LONG, Row::is_free).await;
    assert_eq!(
        inherit_blocking(|| 7)().unwrap(),
        7,
        "without a lock it just runs"
    );
}

async fn a_loss_is_told_to_a_thread_that_shares(backend: Backend) {
    let locks = backend.manager().await;
    let (inside, entered) = oneshot::channel::<()>();
    let again = locks.clone();
    let outer = locks.lock("key").options(&long()).run(async {
        let child = inherit_blocking(move || {
            inside.send(()).unwrap();
            again.block_on(current().unwrap().lost());
        });
        spawn_blocking(child)
    });
    let child = outer.await.unwrap();
    entered.await.unwrap();
    assert!(locks.admin().force_release("key").await.unwrap());
    assert!(child.await.unwrap().unwrap_err().is_lost());
}

async fn a_thread_that_comes_after_the_loss_does_nothing(backend: Backend) {
    let locks = backend.manager().await;
    let children = locks.lock("key").options(&long()).run(async {
        let child = inherit_blocking(|| unreachable!("the lock is lost"));
        (child, inherit(std::future::pending::<()>()))
    });
    let (child, stopped) = children.await.unwrap();
    assert!(locks.admin().force_release("key").await.unwrap());
    assert!(stopped.await.unwrap_err().is_lost());
    let refused: LockError = child().unwrap_err();
    assert!(refused.is_lost(), "{refused:?}");
}

async fn a_plain_function_shares_its_lock_with_a_task(backend: Backend) {
    let locks = backend.manager().await;
    let counts = spawn_blocking(move || {
        locks.lock("key").options(&long()).blocking_run(|| {
            let nested = locks.clone();
            let child = inherit(async move {
                let body = async { current().unwrap().hold_count() };
                nested.lock("key").run(body).await
            });
            locks.block_on(tokio::spawn(child)).unwrap()
        })
    });
    assert_eq!(counts.await.unwrap().unwrap().unwrap().unwrap(), 3);
}

async fn a_guard_enters_without_another_hold(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    assert!(
        locks
            .lock("key")
            .options(&long())
            .acquire()
            .await
            .unwrap_err()
            .is_busy(),
        "a guard is in no chain"
    );
    let entered = guard.enter(async {
        assert_eq!(current().unwrap().fence_token(), guard.fence_token());
        let inside = backend.the_row("key").await.reentrant_count;
        let nested = locks
            .lock("key")
            .options(&long())
            .run(async { backend.the_row("key").await.reentrant_count });
        (inside, nested.await.unwrap())
    });
    assert_eq!(entered.await.unwrap(), (1, 2));
    assert_eq!(
        backend.the_row("key").await.reentrant_count,
        1,
        "the guard's own hold"
    );
    guard.release().await.unwrap();
    assert!(backend.the_row("key").await.is_free());
}

async fn dropping_what_a_guard_runs_keeps_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    let dropped = drop_after(guard.enter(std::future::pending::<()>()), 1, DropWhen::Waiting);
    assert!(dropped.await.is_none());
    assert!(!guard.is_lost());
    assert!(guard.remaining() > LONG / 2);
    guard.release().await.unwrap();
}

async fn loss_drops_what_a_guard_runs(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let guard = locks
        .lock("key")
        .options(&long())
        .ttl(RENEWED)
        .acquire()
        .await
        .unwrap();
    operator.admin().force_release("key").await.unwrap();
    let lost = guard.enter(std::future::pending::<()>()).await.unwrap_err();
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
    let again = guard.enter(async { panic!("not inside") }).await;
    assert!(again.map(|(): ()| ()).unwrap_err().is_lost());
}
