//! Tickets where the store goes wrong, and where namespaces differ. What every store does is in
//! `support/through_manager/tickets.rs`.

use std::time::Duration;

use dblock::store::{Outcome, StoreErrorKind};
use dblock::{LockError, LostReason};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::{Backend, on_every_store};

use crate::{LONG, SHORT, long, patient};

on_every_store!(
    tickets_stay_in_their_namespace,
    a_ticket_goes_to_a_worker_of_another_process
);

async fn tickets_stay_in_their_namespace(backend: Backend) {
    let one = backend.builder().namespace("one").build().await.unwrap();
    let two = backend.builder().namespace("two").build().await.unwrap();
    let none = backend.manager().await;
    let guard = one.lock("key").options(&long()).acquire().await.unwrap();
    let ticket = guard.into_ticket(LONG).await.unwrap();
    assert_eq!(ticket.full_key(), "one:key");
    let refused = two.adopt(&ticket).await.unwrap_err();
    assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
    let guard = none.adopt(&ticket).await.unwrap();
    assert_eq!(guard.key(), "one:key");
    let ticket = guard.into_ticket(LONG).await.unwrap();
    let guard = one.adopt(&ticket).await.unwrap();
    assert_eq!((guard.key(), guard.full_key()), ("key", "one:key"));
    guard.release().await.unwrap();
}

/// A ticket of a ticket, with tokens that grow; callers of the worker's own process wait behind it.
async fn a_ticket_goes_to_a_worker_of_another_process(backend: Backend) {
    let (handler, worker) = (backend.manager().await, backend.manager().await);
    let mut guard = handler.lock("key").options(&patient()).acquire().await.unwrap();
    let mut last = guard.fence_token();
    let waiting = {
        let worker = worker.clone();
        tokio::spawn(async move { worker.lock("key").options(&patient()).acquire().await.unwrap() })
    };
    for locks in [&worker, &worker, &handler, &worker] {
        let ticket = guard.into_ticket(LONG).await.unwrap();
        guard = locks.adopt(&ticket).await.unwrap();
        assert!(guard.fence_token() > last);
        last = guard.fence_token();
        assert_eq!(backend.the_row("key").await.fence_token, last);
        assert!(!waiting.is_finished());
    }
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap();
    assert!(guard.fence_token() > last);
    guard.release().await.unwrap();
}

/// The answer to the pass-on into the ticket and to that out of it is lost: each is repeated with its lease.
#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_given_again_in_tickets() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    for adopter in [&locks, &locks] {
        store.next(Kind::Transfer, Fault::ReplyLost);
        let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
        let ticket = guard.into_ticket(LONG).await.unwrap();
        store.next(Kind::Transfer, Fault::ReplyLost);
        store.next(Kind::Transfer, Fault::Fail(StoreErrorKind::Unreachable));
        store.next(Kind::Transfer, Fault::ReplyLost);
        let guard = adopter.adopt(&ticket).await.unwrap();
        assert!(!guard.is_lost());
        assert!(other.lock("key").try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    }
    let answers: Vec<_> = store
        .asked_to(Kind::Transfer)
        .into_iter()
        .map(|asked| asked.answer)
        .collect();
    assert_eq!(answers.len(), 12, "{answers:?}");
    let granted = |answer: &&Option<Result<Outcome, _>>| matches!(answer, Some(Ok(Outcome::Granted { .. })));
    assert_eq!(answers.iter().filter(granted).count(), 4, "{answers:?}");
}

/// A store that never answers: the ticket may have been made, and nobody gets it, nor a second owner.
#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_not_confirmed_is_none() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    for fault in [Fault::Mute, Fault::Never, Fault::Late(Duration::from_millis(100))] {
        store.always(Kind::Transfer, fault);
        let guard = locks
            .lock("key")
            .options(&patient())
            .ttl(SHORT)
            .acquire()
            .await
            .unwrap();
        // Longer than anybody waits below.
        let error = guard.into_ticket(LONG * 10).await.unwrap_err();
        assert!(
            matches!(error, LockError::Unconfirmed { .. } | LockError::Lost { .. }),
            "{error:?}"
        );
        store.heal();
        other
            .lock("key")
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// A caller that does not wait for its ticket has none: the key is free when the store has answered.
#[tokio::test(start_paused = true)]
async fn a_ticket_whose_caller_has_gone_is_given_back() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    for fault in [Fault::SlowReply(SHORT), Fault::ReplyLost] {
        store.next(Kind::Transfer, fault);
        let asked = store.asked_to(Kind::Transfer).len();
        let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
        tokio::select! {
            biased;
            () = store.until_asked(Kind::Transfer, asked + 1) => {}
            ticket = guard.into_ticket(LONG * 10) => panic!("{ticket:?}"),
        }
        let next = other.lock("key").options(&patient()).acquire().await;
        next.unwrap().release().await.unwrap();
    }
}

/// The operator was quicker than the renewal that would have told the holder.
#[tokio::test(start_paused = true)]
async fn a_revoked_lock_that_becomes_no_ticket_is_free_at_once() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
    assert!(other.admin().revoke("key").await.unwrap());
    let refused = guard.into_ticket(LONG).await.unwrap_err();
    assert!(matches!(refused, LockError::Lost { .. }), "{refused:?}");
    let free = other.lock("key").wait(SHORT).acquire().await.unwrap();
    // So is a revoked ticket, when somebody adopts it.
    let ticket = free.into_ticket(LONG).await.unwrap();
    assert!(other.admin().revoke("key").await.unwrap());
    let refused = locks.adopt(&ticket).await.unwrap_err();
    assert!(
        matches!(
            refused,
            LockError::Lost {
                reason: LostReason::Ticket,
                ..
            }
        ),
        "{refused:?}"
    );
    other
        .lock("key")
        .wait(SHORT)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// An adopt that is not answered ends with the ticket's ttl, and what it got is released.
#[tokio::test(start_paused = true)]
async fn an_adopt_without_an_answer_ends_with_the_tickets_ttl() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
    let ticket = guard.into_ticket(SHORT).await.unwrap();
    store.always(Kind::Transfer, Fault::ReplyLost);
    let since = tokio::time::Instant::now();
    let error = locks.adopt(&ticket).await.unwrap_err();
    assert!(error.is_store(), "{error:?}");
    assert!(
        since.elapsed() >= SHORT && since.elapsed() < SHORT * 3,
        "{:?}",
        since.elapsed()
    );
    store.heal();
    // The lease of the adopter, which nobody has.
    let soon = SHORT * 3;
    other
        .lock("key")
        .wait(soon)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// The lock is released, and both calls say that the store has no tickets.
#[tokio::test(start_paused = true)]
async fn a_store_without_tickets_says_so() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    let guard = other.lock("key").acquire().await.unwrap();
    let ticket = guard.into_ticket(LONG).await.unwrap();
    store.always(Kind::Transfer, Fault::Fail(StoreErrorKind::Unsupported));
    let unsupported = |error: &LockError| match error {
        LockError::Store { source, .. } | LockError::Unconfirmed { source, .. } => {
            source.kind() == StoreErrorKind::Unsupported
        }
        _ => false,
    };
    let refused = locks.adopt(&ticket).await.unwrap_err();
    assert!(unsupported(&refused), "{refused:?}");
    other.adopt(&ticket).await.unwrap().release().await.unwrap();

    let guard = locks.lock("key").acquire().await.unwrap();
    let refused = guard.into_ticket(LONG).await.unwrap_err();
    assert!(unsupported(&refused), "{refused:?}");
    other
        .lock("key")
        .wait(SHORT)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// A shutdown refuses an adopt that waits for its answer.
#[tokio::test(start_paused = true)]
async fn a_shutdown_refuses_an_adopt_of_a_ticket() {
    let store = FaultyStore::memory();
    let (locks, other) = (store.manager(), store.other_process());
    let guard = other.lock("key").acquire().await.unwrap();
    let ticket = guard.into_ticket(LONG).await.unwrap();
    store.next(Kind::Transfer, Fault::SlowReply(SHORT));
    let (adopted, ()) = tokio::join!(locks.adopt(&ticket), async {
        store.until_asked(Kind::Transfer, 1).await;
        locks.shutdown(LONG).await;
    });
    let refused = adopted.unwrap_err();
    assert!(refused.is_shutdown(), "{refused:?}");
    // The lock had come here, and is released.
    other
        .lock("key")
        .wait(SHORT)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let over = other.adopt(&ticket).await.unwrap_err();
    assert!(
        matches!(
            over,
            LockError::Lost {
                reason: LostReason::Ticket,
                ..
            }
        ),
        "{over:?}"
    );
}
