//! Hand-over inside the process: the lock goes from one task to the next without the store in between.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::{CurrentLock, LockError, LockManager, LockOptions, LostReason, current};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::{LONG, RENEWED, SHORT, patient};

/// How often something that must be quick is tried.
const ROUNDS: usize = 20;

on_every_store!(
    the_next_waiter_shares_the_lease_and_has_an_owner_and_a_token_of_its_own,
    the_row_follows,
    another_process_is_told_who_has_the_lock,
    an_owner_that_has_handed_over_is_out,
    the_next_grant_of_the_store_is_above_every_token_handed_over,
    who_has_gone_away_is_passed_over,
    only_a_body_that_returned_hands_over,
    hold_min_is_not_handed_over,
    a_lease_that_is_not_renewed_is_not_handed_over,
    it_can_be_switched_off,
    a_loss_reaches_who_is_inside_and_the_others_acquire_again,
);
on_every_store!(databases:
    a_fence_check_sees_the_hand_over,
    a_body_that_was_checked_does_not_hand_over,
);

/// The lock as a body saw it.
struct Seen {
    lock: CurrentLock,
    lease_id: uuid::Uuid,
}

type Body = Box<dyn FnOnce(CurrentLock) -> BoxFuture<'static, ()> + Send>;

fn nothing() -> Body {
    Box::new(|_| async {}.boxed())
}

/// Runs `bodies` one after the other under the lock, in this order: all are in the wait queue before the
/// first of them can enter. From the second on each one may hand over to the next.
async fn in_queue(
    backend: &Backend,
    locks: &LockManager,
    bodies: Vec<(LockOptions, Body)>,
) -> Vec<Result<Seen, LockError>> {
    let other = backend.manager().await;
    let first = other.lock("key").options(&patient()).acquire().await.unwrap();
    let calls = bodies.into_iter().map(|(options, body)| {
        locks.lock("key").options(&options).run(async move {
            let lock = current().unwrap();
            let lease_id = backend.the_row("key").await.lease_id;
            body(lock.clone()).await;
            Seen { lock, lease_id }
        })
    });
    // The calls are polled once, and so are in the wait queue, before the release.
    let (seen, ()) = tokio::join!(join_all(calls), async { first.release().await.unwrap() });
    seen
}

async fn four_queued(backend: &Backend, locks: &LockManager, third: LockOptions, body: Body) -> [Seen; 4] {
    let bodies = vec![
        (patient(), nothing()),
        (patient(), nothing()),
        (third, body),
        (patient(), nothing()),
    ];
    let seen = in_queue(backend, locks, bodies).await;
    seen.into_iter()
        .map(Result::unwrap)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap_or_else(|_| panic!("four"))
}

/// Four waiters, of which the second has handed over to the third. A turn is a tenth of a second, or less: on
/// a machine that stalls it may be over too early.
async fn handed_over(
    backend: &Backend,
    locks: &LockManager,
    third: &LockOptions,
    body: impl Fn() -> Body,
) -> [Seen; 4] {
    for _ in 0..ROUNDS {
        let seen = four_queued(backend, locks, third.clone(), body()).await;
        if seen[1].lease_id == seen[2].lease_id {
            return seen;
        }
    }
    panic!("nothing is handed over");
}

async fn the_next_waiter_shares_the_lease_and_has_an_owner_and_a_token_of_its_own(backend: Backend) {
    let locks = backend.manager().await;
    let mut rounds = 0..ROUNDS;
    let [_, second, third, fourth] = loop {
        assert!(rounds.next().is_some(), "nothing is handed over twice in a row");
        let seen = handed_over(&backend, &locks, &patient(), nothing).await;
        if seen[2].lease_id == seen[3].lease_id {
            break seen;
        }
    };
    for (former, next) in [(&second, &third), (&third, &fourth)] {
        assert_eq!(next.lock.fence_token(), former.lock.fence_token() + 1);
        assert_ne!(next.lock.owner(), former.lock.owner());
    }
    backend.until_free("key").await;
}

async fn the_row_follows(backend: Backend) {
    let locks = backend.manager().await;
    let row = backend.clone();
    let body: Body = Box::new(move |lock| {
        async move {
            let named = |now: &dblock_tests::Row| now.lock_owner == lock.owner();
            let row = row.until("key", LONG, named).await;
            assert_eq!((row.fence_token, row.reentrant_count), (lock.fence_token(), 1));
            assert!(row.fence_ceiling >= row.fence_token);
        }
        .boxed()
    });
    four_queued(&backend, &locks, patient(), body).await;
}

async fn another_process_is_told_who_has_the_lock(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let row = backend.clone();
    let body: Body = Box::new(move |lock| {
        async move {
            row.until("key", LONG, |row| row.lock_owner == lock.owner()).await;
            let busy = other.lock("key").acquire().await.unwrap_err();
            let LockError::Busy {
                holder: Some(holder), ..
            } = busy
            else {
                panic!("{busy:?}");
            };
            assert_eq!(
                (holder.owner, holder.fence_token),
                (lock.owner(), lock.fence_token())
            );
        }
        .boxed()
    });
    four_queued(&backend, &locks, patient(), body).await;
}

async fn an_owner_that_has_handed_over_is_out(backend: Backend) {
    let locks = backend.manager().await;
    for _ in 0..ROUNDS {
        let (send, former) = oneshot::channel::<CurrentLock>();
        let (tell, handed_over) = oneshot::channel();
        let bodies: Vec<(LockOptions, Body)> = vec![
            (patient(), nothing()),
            (
                patient(),
                Box::new(|lock| async { send.send(lock).unwrap() }.boxed()),
            ),
            (
                patient(),
                Box::new(|lock| {
                    async move {
                        let former = former.await.unwrap();
                        // Tokens of the store are further apart.
                        let handed_over = lock.fence_token() == former.fence_token() + 1;
                        if handed_over {
                            assert_eq!(former.remaining(), Duration::ZERO);
                            assert!(lock.remaining() > SHORT);
                        }
                        tell.send(handed_over).unwrap();
                    }
                    .boxed()
                }),
            ),
        ];
        for seen in in_queue(&backend, &locks, bodies).await {
            seen.unwrap();
        }
        if handed_over.await.unwrap() {
            return;
        }
    }
    panic!("nothing is handed over");
}

async fn the_next_grant_of_the_store_is_above_every_token_handed_over(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let [.., last] = four_queued(&backend, &locks, patient(), nothing()).await;
    let row = backend.the_row("key").await;
    assert!(row.fence_ceiling >= last.lock.fence_token());
    let next = other.lock("key").options(&patient()).acquire().await.unwrap();
    assert!(next.fence_token() > last.lock.fence_token());
    assert!(next.fence_token() > row.fence_ceiling);
    next.release().await.unwrap();
}

async fn who_has_gone_away_is_passed_over(backend: Backend) {
    let locks = backend.manager().await;
    let gone = tokio::spawn({
        let locks = locks.clone();
        let busy = backend
            .manager()
            .await
            .lock("key")
            .options(&patient())
            .acquire()
            .await
            .unwrap();
        async move {
            let mut calls: Vec<_> = (0..5)
                .map(|_| locks.lock("key").options(&patient()).acquire().boxed())
                .collect();
            for call in &mut calls {
                assert!(call.now_or_never().is_none());
            }
            // Two and four go away, in any order with the release.
            drop(calls.remove(3));
            drop(calls.remove(1));
            busy.release().await.unwrap();
            for call in calls {
                call.await.unwrap().release().await.unwrap();
            }
        }
    });
    gone.await.unwrap();
    backend.until_free("key").await;
}

/// After a waiter that panicked or was dropped, the next one has a lease of its own.
async fn only_a_body_that_returned_hands_over(backend: Backend) {
    for way in ["panics", "is dropped"] {
        let (locks, other) = (backend.manager().await, backend.manager().await);
        let first = other.lock("key").options(&patient()).acquire().await.unwrap();
        let lease_of = async |row: &Backend| row.the_row("key").await.lease_id;
        let before = locks
            .lock("key")
            .options(&patient())
            .run(async { yield_now().await });
        let ends_badly = AssertUnwindSafe(locks.lock("key").options(&patient()).run(async {
            let lease_id = lease_of(&backend).await;
            if way == "panics" {
                std::panic::panic_any(lease_id);
            }
            lease_id
        }))
        .catch_unwind();
        let (inside, is_inside) = oneshot::channel();
        let dropped = locks.lock("key").options(&patient()).run(async {
            inside.send(lease_of(&backend).await).unwrap();
            std::future::pending::<()>().await;
        });
        let after = locks.lock("key").options(&patient()).run(lease_of(&backend));
        let bad = async {
            if way == "panics" {
                *ends_badly.await.unwrap_err().downcast::<uuid::Uuid>().unwrap()
            } else {
                tokio::select! {
                    ended = dropped => panic!("{ended:?}"),
                    lease_id = is_inside => lease_id.unwrap(),
                }
            }
        };
        let (before, bad, after, ()) =
            tokio::join!(before, bad, after, async { first.release().await.unwrap() });
        before.unwrap();
        assert_ne!(bad, after.unwrap(), "a body that {way}");
    }
}

async fn hold_min_is_not_handed_over(backend: Backend) {
    let locks = backend.manager().await;
    let brief = patient().hold_min(Duration::from_millis(1));
    // It may be the next itself.
    let [.., third, fourth] = handed_over(&backend, &locks, &brief, nothing).await;
    assert_ne!(third.lease_id, fourth.lease_id);
}

async fn a_lease_that_is_not_renewed_is_not_handed_over(backend: Backend) {
    let locks = backend.manager().await;
    let [_, second, third, _] = four_queued(&backend, &locks, patient().renew(false), nothing()).await;
    assert_ne!(second.lease_id, third.lease_id, "it gets all of its ttl");
}

async fn it_can_be_switched_off(backend: Backend) {
    let locks = backend.builder().hand_over(false).build().await.unwrap();
    let seen = four_queued(&backend, &locks, patient(), nothing()).await;
    for pair in seen.windows(2) {
        assert_ne!(pair[0].lease_id, pair[1].lease_id);
    }
}

async fn a_loss_reaches_who_is_inside_and_the_others_acquire_again(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let stopped = Arc::new(AtomicBool::new(false));
    let body: Body = Box::new({
        let stopped = Arc::clone(&stopped);
        move |_| {
            async move {
                assert!(other.admin().force_release("key").await.unwrap());
                std::future::pending::<()>().await;
                stopped.store(true, Ordering::SeqCst);
            }
            .boxed()
        }
    });
    let bodies = vec![
        (patient(), nothing()),
        (patient(), nothing()),
        // Renewals tell it of the loss within a third of that.
        (patient().ttl(RENEWED), body),
        (patient(), nothing()),
        (patient(), nothing()),
    ];
    let seen = in_queue(&backend, &locks, bodies).await;
    let [_, second, third, fourth, fifth] = &seen[..] else {
        panic!("five");
    };
    let lost = third.as_ref().err().unwrap();
    let LockError::Lost {
        reason, fence_token, ..
    } = lost
    else {
        panic!("{lost:?}");
    };
    assert_eq!(*reason, LostReason::Gone);
    let tokens = [second, fourth, fifth].map(|seen| seen.as_ref().ok().unwrap().lock.fence_token());
    assert!(tokens[0] < *fence_token && *fence_token < tokens[1] && tokens[1] < tokens[2]);
    assert!(!stopped.load(Ordering::SeqCst));
    backend.until_free("key").await;
}

async fn a_fence_check_sees_the_hand_over(backend: Backend) {
    let locks = backend.manager().await;
    let body = || -> Body {
        let place = backend.clone();
        Box::new(move |lock| {
            async move {
                let mut transaction = Transaction::begin(&place).await;
                transaction.verify_current(&lock).await.unwrap();
                transaction.commit().await;
                assert_eq!(place.the_row("key").await.fence_token, lock.fence_token());
            }
            .boxed()
        })
    };
    let [_, second, ..] = handed_over(&backend, &locks, &patient(), body).await;
    let mut transaction = Transaction::begin(&backend).await;
    let out = transaction.verify_current(&second.lock).await.unwrap_err();
    assert!(out.is_lost(), "{out:?}");
    transaction.commit().await;
}

async fn a_body_that_was_checked_does_not_hand_over(backend: Backend) {
    let locks = backend.manager().await;
    let place = backend.clone();
    let body: Body = Box::new(move |lock| {
        async move {
            let mut transaction = Transaction::begin(&place).await;
            transaction.verify_current(&lock).await.unwrap();
            transaction.commit().await;
        }
        .boxed()
    });
    let [.., third, fourth] = four_queued(&backend, &locks, patient(), body).await;
    assert_ne!(third.lease_id, fourth.lease_id);
}
