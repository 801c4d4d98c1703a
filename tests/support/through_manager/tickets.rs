//! Tickets: a lock goes from one process to another, once, and is held by one owner at a time all the way.

use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LostReason, Ticket};
use tokio::task::yield_now;
use tokio::time::Instant;

use super::AnyFixture;
use super::setup::{LONG, Setup};

/// The shortest ttl of every store.
fn short(locks: &LockManager) -> Duration {
    locks.capabilities().shortest_ttl.max(Duration::from_secs(1))
}

async fn ticket(locks: &LockManager, ttl: Duration) -> Ticket {
    let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
    guard.into_ticket(ttl).await.unwrap()
}

/// Whether the store has tickets. One whose keys move to other shards has none meanwhile, says so, and releases
/// the lock.
pub(super) async fn has_tickets(locks: &LockManager) -> bool {
    let guard = locks.lock("key").acquire().await.unwrap();
    let made = guard.into_ticket(LONG).await;
    let Err(error) = made else {
        let guard = locks.adopt(&made.unwrap()).await.unwrap();
        guard.release().await.unwrap();
        return true;
    };
    match &error {
        LockError::Unconfirmed { source, .. } => assert_eq!(source.kind(), StoreErrorKind::Unsupported),
        other => panic!("{other:?}"),
    }
    locks
        .lock("key")
        .wait(LONG / 2)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    false
}

async fn is_refused(locks: &LockManager, ticket: &Ticket) {
    let refused = locks.adopt(ticket).await.unwrap_err();
    let reason = match &refused {
        LockError::Lost { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!(reason, LostReason::Ticket);
    assert!(!refused.is_retryable(), "{refused}");
    assert!(refused.to_string().contains("ticket"), "{refused}");
}

/// The key is busy all the way, the tokens grow, and a waiter gets in after the adopter.
pub async fn a_ticket_goes_from_one_manager_to_another(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (handler, worker) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&handler).await {
        return;
    }
    let guard = handler.lock("key").acquire().await.unwrap();
    let first = guard.fence_token();
    let waiting = {
        let (other, worker) = (setup.manager().await, worker.clone());
        tokio::spawn(async move {
            let guard = other.lock("key").wait(LONG).acquire().await.unwrap();
            let is_held = worker.admin().get("key").await.unwrap().unwrap();
            assert_eq!(is_held.fence_token, guard.fence_token());
            let token = guard.fence_token();
            guard.release().await.unwrap();
            token
        })
    };
    setup.until("key", dblock::LockRow::is_wanted).await;
    let message = guard.into_ticket(LONG).await.unwrap().secret();
    for locks in [&handler, &worker] {
        let busy = locks.lock("key").acquire().await.unwrap_err();
        assert!(busy.is_busy(), "{busy:?}");
    }
    let between = setup.the_row("key").await;
    assert!(between.fence_token > first && !waiting.is_finished());
    let ticket: Ticket = message.parse().unwrap();
    let guard = worker.adopt(&ticket).await.unwrap();
    assert_eq!((guard.key(), guard.hold_count()), ("key", 1));
    assert!(guard.fence_token() > between.fence_token);
    let row = setup.the_row("key").await;
    assert_eq!((row.owner, row.fence_token), (guard.owner(), guard.fence_token()));
    assert_ne!(row.lease_id, between.lease_id);
    assert!(!waiting.is_finished());
    let nested = guard.enter(worker.lock("key").run(async {})).await;
    nested.unwrap().unwrap();
    let token = guard.fence_token();
    guard.release().await.unwrap();
    assert!(waiting.await.unwrap() > token);
    is_refused(&worker, &ticket).await;
}

/// A second adopt is refused while the first adopter is inside, when it has left, and in the same process.
pub async fn a_ticket_is_adopted_once(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    let ticket = ticket(&one, LONG).await;
    // In the process that made it, too.
    let guard = one.adopt(&ticket).await.unwrap();
    is_refused(&one, &ticket).await;
    is_refused(&other, &ticket).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    is_refused(&one, &ticket).await;
    is_refused(&other, &ticket).await;
    assert!(setup.is_free("key").await);
}

/// Of many that adopt at once, one gets in.
pub async fn one_of_many_adopts_a_ticket(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    for _ in 0..5 {
        let ticket = ticket(&one, LONG).await;
        let (a, b, c) = tokio::join!(one.adopt(&ticket), other.adopt(&ticket), other.adopt(&ticket));
        let mut adopted: Vec<_> = [a, b, c].into_iter().filter_map(Result::ok).collect();
        assert_eq!(adopted.len(), 1);
        adopted.remove(0).release().await.unwrap();
    }
}

/// A ticket that was not adopted in time is refused when somebody else holds the key, and when nobody does.
pub async fn a_ticket_that_is_adopted_late_is_refused(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    let ticket = ticket(&one, short(&one)).await;
    let guard = other.lock("key").wait(LONG).acquire().await.unwrap();
    is_refused(&one, &ticket).await;
    is_refused(&other, &ticket).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    is_refused(&one, &ticket).await;
    assert!(setup.is_free("key").await);
}

/// A ticket that expires, with nobody there to take the key.
pub async fn an_expired_ticket_is_refused(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let one = setup.manager().await;
    if !has_tickets(&one).await {
        return;
    }
    let ticket = ticket(&one, short(&one)).await;
    while one.admin().is_locked("key").await.unwrap() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_refused(&one, &ticket).await;
    one.lock("key")
        .wait(LONG)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// Operators end a ticket as any lease.
pub async fn a_ticket_is_over_after_an_operators_order(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    let forced = ticket(&one, LONG).await;
    assert!(other.admin().force_release("key").await.unwrap());
    is_refused(&one, &forced).await;
    let revoked = ticket(&one, short(&one)).await;
    assert!(other.admin().revoke("key").await.unwrap());
    is_refused(&other, &revoked).await;
    one.lock("key")
        .wait(LONG)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    let guard = one.lock("key").acquire().await.unwrap();
    assert!(other.admin().force_release("key").await.unwrap());
    let lost = guard.into_ticket(LONG).await.unwrap_err();
    assert!(lost.is_lost(), "{lost:?}");
    assert!(setup.is_free("key").await);
}

/// A secret that somebody has made up opens nothing: neither a ticket, nor a lock that is held, nor a free key.
pub async fn an_impostor_adopts_nothing(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    let ticket = ticket(&one, LONG).await;
    let secret = ticket.secret();
    let lease = secret.split('.').nth(1).unwrap();
    let forged = secret.replace(lease, &uuid::Uuid::new_v4().simple().to_string());
    let forged: Ticket = forged.parse().unwrap();
    is_refused(&other, &forged).await;
    let guard = other.adopt(&ticket).await.unwrap();
    is_refused(&one, &forged).await;
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    is_refused(&one, &forged).await;
    assert!(setup.is_free("key").await);
}

/// A ticket is refused while a nested call holds the lock, and the nested call keeps it.
pub async fn a_lock_with_another_hold_goes_into_no_ticket(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    let guard = one.lock("key").acquire().await.unwrap();
    let nested = guard.enter(one.lock("key").acquire()).await.unwrap().unwrap();
    let refused = guard.into_ticket(LONG).await.unwrap_err();
    assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
    assert!(!nested.is_lost());
    assert!(other.lock("key").try_acquire().await.unwrap().is_none());
    nested.release().await.unwrap();
    other
        .lock("key")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    for several in [true, false] {
        let guard = if several {
            one.lock(["key", "two"]).acquire().await.unwrap()
        } else {
            let brief = Duration::from_millis(1);
            one.lock("key").hold_min(brief).acquire().await.unwrap()
        };
        let refused = guard.into_ticket(LONG).await.unwrap_err();
        assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
        one.lock(["key", "two"])
            .wait(LONG)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// Polls `call` for some time, in small steps over the time of a statement.
async fn cut_off<T>(step: u64, call: impl Future<Output = T>) -> Option<T> {
    let passed = async {
        let since = Instant::now();
        while since.elapsed() < Duration::from_micros(step * 150) {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = call => Some(done),
        () = passed => None,
    }
}

/// An adopt that is dropped while its statement is on its way leaves the ticket, or a lock that is released.
pub async fn an_adopt_cut_off_at_any_time_leaves_no_second_owner(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    for step in 0..12 {
        let ticket = ticket(&one, short(&one) * 2).await;
        if let Some(adopted) = cut_off(step, other.adopt(&ticket)).await {
            adopted.unwrap().release().await.unwrap();
            is_refused(&one, &ticket).await;
            continue;
        }
        match one.adopt(&ticket).await {
            Ok(guard) => {
                assert!(other.lock("key").try_acquire().await.unwrap().is_none());
                guard.release().await.unwrap();
            }
            Err(LockError::Lost {
                reason: LostReason::Ticket,
                ..
            }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    // No later than a lease that nobody has.
    let next = one.lock("key").wait(LONG * 3).acquire().await;
    next.unwrap().release().await.unwrap();
}

/// A ticket whose maker is dropped while the statement is on its way expires.
pub async fn a_ticket_that_nobody_gets_expires(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (one, other) = (setup.manager().await, setup.manager().await);
    if !has_tickets(&one).await {
        return;
    }
    for step in [0, 1, 5] {
        let guard = one.lock("key").wait(LONG).acquire().await.unwrap();
        drop(cut_off(step, guard.into_ticket(short(&one))).await);
        let next = other.lock("key").wait(LONG * 2 / 3).acquire().await;
        next.unwrap().release().await.unwrap();
    }
    assert!(setup.is_free("key").await);
}
