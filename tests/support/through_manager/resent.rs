//! Lost replies: a repeated request counts no hold twice, grants nothing twice, and frees no other owner's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dblock::store::{Capabilities, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture};
use dblock::{LockManager, current};
use dblock_conformance::forward_to_inner;

use super::AnyFixture;
use super::setup::{LONG, RENEWED, Setup};
use super::tickets::has_tickets;

/// Loses every third reply: the batch was carried out, and its sender is told that the connection broke.
#[derive(Debug)]
struct LosesReplies {
    inner: Arc<dyn Store>,
    calls: AtomicUsize,
}

impl LosesReplies {
    async fn manager(fixture: &dyn AnyFixture) -> LockManager {
        let store: Arc<dyn Store> = Arc::new(Self {
            inner: fixture.store().await,
            calls: AtomicUsize::new(0),
        });
        LockManager::builder(store).build().await.unwrap()
    }
}

impl Store for LosesReplies {
    fn capabilities(&self) -> Capabilities {
        // One call at a time, so that the order of the requests alone decides which reply is lost.
        let mut capabilities = self.inner.capabilities();
        capabilities.concurrency = 1;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let answers = self.inner.apply(requests).await;
            if !call.is_multiple_of(3) {
                return answers;
            }
            let lost = |_| Err(StoreError::new(StoreErrorKind::Interrupted, "the reply was lost"));
            answers.into_iter().map(lost).collect()
        })
    }

    forward_to_inner!();
}

/// Every third reply is lost while a chain enters, re-enters and leaves: the row has the chain's own count at
/// each step, one lease all the way, and is free in the end.
pub async fn lost_replies_count_nothing_twice(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = LosesReplies::manager(fixture).await;
    let mut last_token = 0;
    for _ in 0..4 {
        let outer = locks.lock("key").wait(LONG).run(async {
            let before = setup.the_row("key").await;
            let inner = locks
                .lock("key")
                .wait(LONG)
                .run(async { setup.the_row("key").await });
            let inside = inner.await.unwrap();
            let after = setup.the_row("key").await;
            assert_eq!(
                [
                    before.reentrant_count,
                    inside.reentrant_count,
                    after.reentrant_count
                ],
                [1, 2, 1]
            );
            assert_eq!(
                (inside.lease_id, after.lease_id),
                (before.lease_id, before.lease_id)
            );
            assert_eq!(before.fence_token, current().unwrap().fence_token());
            before.fence_token
        });
        let token = outer.await.unwrap();
        assert!(setup.is_free("key").await, "the release is confirmed");
        assert!(token > last_token, "{token} after {last_token}");
        last_token = token;
    }
}

/// Every third reply is lost while two managers compete: neither frees the other's lock, and no unknown grant
/// keeps the key busy.
pub async fn lost_replies_free_nobody_elses_lock(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let managers = [LosesReplies::manager(fixture).await, setup.manager().await];
    for turn in 0..8 {
        let guard = managers[turn % 2].lock("key").wait(LONG).acquire().await.unwrap();
        let row = setup.the_row("key").await;
        assert_eq!(row.fence_token, guard.fence_token());
        let refused = managers[(turn + 1) % 2].lock("key").acquire().await;
        assert!(
            refused.is_err_and(|error| error.is_busy()),
            "somebody is inside at turn {turn}"
        );
        let after = setup.the_row("key").await;
        assert_eq!((after.lease_id, after.reentrant_count), (row.lease_id, 1));
        guard.release().await.unwrap();
    }
}

/// Every third reply is lost while a lease is renewed: it is kept.
pub async fn lost_replies_lose_no_lease(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = LosesReplies::manager(fixture).await;
    let guard = locks.lock("key").wait(LONG).ttl(RENEWED).acquire().await.unwrap();
    let granted = setup.the_row("key").await;
    let later = setup
        .until("key", |row| {
            row.now > granted.acquired_at + std::time::Duration::from_secs(10)
        })
        .await;
    assert_eq!((later.lease_id, later.reentrant_count), (granted.lease_id, 1));
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

/// Every third reply is lost while the lock goes into tickets and out of them: nobody else gets in between.
pub async fn lost_replies_lose_no_ticket(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (LosesReplies::manager(fixture).await, setup.manager().await);
    if !has_tickets(&other).await {
        return;
    }
    let mut guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
    let mut last = guard.fence_token();
    for _ in 0..6 {
        let ticket = guard.into_ticket(LONG).await.unwrap();
        guard = locks.adopt(&ticket).await.unwrap();
        assert!(guard.fence_token() > last);
        last = guard.fence_token();
        assert!(other.lock("key").try_acquire().await.unwrap().is_none());
    }
    guard.release().await.unwrap();
    other
        .lock("key")
        .wait(LONG)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}
