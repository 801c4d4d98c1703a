//! A store that answers late, as one does whose disk is slow.

use std::sync::Arc;
use std::time::Duration;

use dblock::LockManager;
use dblock::store::{Capabilities, Outcome, Request, Store, StoreError, StoreFuture};
use dblock_conformance::forward_to_inner;
use tokio::time::sleep;

use super::AnyFixture;
use super::setup::{LONG, Setup};

/// Half of the time that each request takes: its way, and that of its answer.
const WAY: Duration = Duration::from_millis(750);

/// The renewal is due after a third of it, and its answer long before its end.
const TTL: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Store>,
}

impl Store for Slow {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            sleep(WAY).await;
            let answers = self.inner.apply(requests).await;
            sleep(WAY).await;
            answers
        })
    }

    forward_to_inner!();
}

/// Each answer takes a second and a half: a lease is kept for longer than its ttl, a nested call enters, and the
/// release is confirmed.
pub async fn slow_answers_lose_no_lease(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let inner = fixture.store().await;
    let locks = LockManager::builder(Arc::new(Slow { inner }) as Arc<dyn Store>);
    let locks = locks.build().await.unwrap();
    let body = async {
        let granted = setup.the_row("key").await;
        let is_later = |row: &dblock::LockRow| row.now > granted.acquired_at + TTL;
        let later = setup.until("key", is_later).await;
        assert_eq!((later.lease_id, later.reentrant_count), (granted.lease_id, 1));
        let inner = locks.lock("key").ttl(TTL).wait(LONG);
        inner.run(async {}).await.unwrap();
    };
    let outer = locks.lock("key").wait(LONG).ttl(TTL);
    outer.run(body).await.unwrap();
    assert!(setup.is_free("key").await, "the release is confirmed");
}
