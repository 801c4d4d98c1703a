//! A call of `lead` whose body returns, whose lease is lost, or whose manager stops.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, OnLost};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::{Backend, on_every_store};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::{KEY, LONG};

on_every_store!(
    a_leader_steps_down_by_returning,
    a_leader_whose_lease_is_lost_is_stopped_and_leads_again,
    a_leader_that_is_told_of_its_loss_leads_again,
    a_shutdown_tells_the_leader,
    a_shutdown_ends_a_campaign,
    a_leader_that_ignores_a_shutdown_is_stopped_after_the_grace,
    a_call_that_is_dropped_leads_no_more,
    calls_of_lead_that_cannot_work_are_refused,
);

/// A lease that does not run out during a test.
fn long() -> LockOptions {
    LockOptions::new().ttl(LONG)
}

async fn a_leader_steps_down_by_returning(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let declined = locks
        .lock(KEY)
        .options(&long())
        .lead(async |leader| Err::<(), _>(leader.fence_token()));
    let token = declined.await.unwrap().unwrap_err();
    assert!(backend.the_row(KEY).await.is_free());
    let next = other
        .lock(KEY)
        .options(&long())
        .lead(async |leader| leader.fence_token());
    assert!(next.await.unwrap() > token);
}

async fn a_leader_whose_lease_is_lost_is_stopped_and_leads_again(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let former = AtomicI64::new(0);
    let twice = locks.lock(KEY).ttl(Duration::from_secs(1)).lead(async |leader| {
        let former = former.swap(leader.fence_token(), Ordering::SeqCst);
        if former == 0 {
            operator.admin().force_release(KEY).await.unwrap();
            std::future::pending::<()>().await;
        }
        (former, leader.fence_token())
    });
    let (former, token) = timeout(LONG, twice).await.unwrap().unwrap();
    assert!(0 < former && former < token, "{former}, {token}");
}

async fn a_leader_that_is_told_of_its_loss_leads_again(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let former = AtomicI64::new(0);
    let options = LockOptions::new()
        .ttl(Duration::from_secs(1))
        .on_lost(OnLost::Signal);
    let twice = locks.lock(KEY).options(&options).lead(async |leader| {
        let former = former.swap(leader.fence_token(), Ordering::SeqCst);
        if former == 0 {
            operator.admin().force_release(KEY).await.unwrap();
            leader.lost().await;
        }
        former
    });
    let former = timeout(LONG, twice).await.unwrap().unwrap();
    assert!(former > 0, "what the first term has returned is dropped");
}

async fn a_shutdown_tells_the_leader(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (enter, entered) = oneshot::channel();
    // As users do: in a task of its own.
    let leads = tokio::spawn({
        let locks = locks.clone();
        async move {
            let enter = Mutex::new(Some(enter));
            let body = async |_| {
                enter.lock().unwrap().take().unwrap().send(()).unwrap();
                locks.shutting_down().await;
            };
            locks.lock(KEY).options(&long()).lead(body).await
        }
    });
    entered.await.unwrap();
    let next = other.lock(KEY).options(&long()).lead(async |_| Instant::now());
    let shutdown = async {
        backend.until(KEY, LONG, |row| row.wanted_until > row.now).await;
        let since = Instant::now();
        locks.shutdown(LONG).await;
        assert!(since.elapsed() < LONG / 2, "it does not use up its grace");
        since
    };
    let (next, since) = tokio::join!(next, shutdown);
    leads.await.unwrap().unwrap();
    assert!(next.unwrap().duration_since(since) < LONG / 2);
    // A caller that asks later is told at once.
    timeout(LONG, locks.shutting_down()).await.unwrap();
}

async fn a_shutdown_ends_a_campaign(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let _guard = other.lock(KEY).options(&long()).acquire().await.unwrap();
    let waits = locks.lock(KEY).options(&long()).lead(async |_| ());
    let shutdown = async {
        backend.until(KEY, LONG, |row| row.wanted_until > row.now).await;
        locks.shutdown(LONG).await;
    };
    let (waits, ()) = timeout(LONG, async { tokio::join!(waits, shutdown) })
        .await
        .unwrap();
    assert!(waits.unwrap_err().is_shutdown());
}

async fn a_leader_that_ignores_a_shutdown_is_stopped_after_the_grace(backend: Backend) {
    let locks = backend.manager().await;
    let (enter, entered) = oneshot::channel();
    let mut enter = Some(enter);
    let leads = locks.lock(KEY).options(&long()).lead(|_| {
        enter.take().unwrap().send(()).unwrap();
        std::future::pending::<()>()
    });
    let shutdown = async {
        entered.await.unwrap();
        locks.shutdown(Duration::ZERO).await;
        assert!(backend.the_row(KEY).await.is_free());
    };
    let (leads, ()) = tokio::join!(leads, shutdown);
    assert!(leads.unwrap_err().is_shutdown());
}

async fn a_call_that_is_dropped_leads_no_more(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let (enter, entered) = oneshot::channel();
    let mut enter = Some(enter);
    {
        let mut leads = pin!(locks.lock(KEY).options(&long()).lead(|_| {
            enter.take().unwrap().send(()).unwrap();
            std::future::pending::<()>()
        }));
        tokio::select! {
            _ = &mut leads => panic!("it has ended"),
            entered = entered => entered.unwrap(),
        }
        let waits = pin!(other.lock(KEY).options(&long()).lead(async |_| ()));
        tokio::select! {
            _ = leads => panic!("it has ended"),
            _ = waits => panic!("it leads, too"),
            _ = backend.until(KEY, LONG, |row| row.wanted_until > row.now) => {}
        }
    }
    backend.until_free(KEY).await;
    assert!(
        other
            .lock(KEY)
            .options(&long())
            .lead(async |_| true)
            .await
            .unwrap()
    );
}

async fn calls_of_lead_that_cannot_work_are_refused(backend: Backend) {
    let locks = backend.manager().await;
    let refused = async |key: &str, options: LockOptions, word: &str| {
        let answer = locks.lock(key).options(&options).lead(async |_| ()).await;
        let error = answer.unwrap_err();
        let is_invalid = matches!(error, LockError::Invalid { .. });
        assert!(is_invalid && error.to_string().contains(word), "{error:?}");
    };
    refused(KEY, long().wait(LONG), "wait").await;
    refused("", long(), "key").await;
    refused(KEY, long().ttl(Duration::ZERO), "ttl").await;
    let inside = async {
        refused(KEY, long(), "task of its own").await;
        refused("outer", long(), "task of its own").await;
    };
    locks.lock("outer").options(&long()).run(inside).await.unwrap();
    let forever = locks.lock(KEY).options(&long()).wait_forever().lead(async |_| 7);
    assert_eq!(forever.await.unwrap(), 7);
}

/// An error that asking again does not cure ends a campaign, and an outage does not.
#[tokio::test(start_paused = true)]
async fn a_campaign_outlasts_an_outage() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    store.always(Kind::Acquire, Fault::Fail(StoreErrorKind::Unreachable));
    let leads = tokio::spawn(lead(locks.clone()));
    store.until_asked(Kind::Acquire, 100).await;
    store.heal();
    leads.await.unwrap().unwrap();

    store.always(Kind::Acquire, Fault::Fail(StoreErrorKind::Schema));
    assert!(lead(locks).await.unwrap_err().is_store());
}

async fn lead(locks: LockManager) -> Result<(), LockError> {
    locks.lock(KEY).options(&long()).lead(async |_| ()).await
}
