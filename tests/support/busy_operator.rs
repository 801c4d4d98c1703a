//! A store whose operator is never done.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Capabilities, Outcome, Purged, Request, Store, StoreError, StoreFuture};
use dblock::{Key, LockManager};
use dblock_conformance::forward_to_inner;
use tokio::sync::Notify;

use crate::Backend;

/// Its purge does not end.
#[derive(Debug)]
struct EndlessPurge {
    inner: Arc<dyn Store>,
    purges: Notify,
}

/// What `calls` return, while the turn of the operators is taken. They get a manager of the backend's rows.
///
/// # Panics
/// When the purge ends.
pub async fn beside_an_operator<T>(backend: &Backend, calls: impl AsyncFnOnce(LockManager) -> T) -> T {
    let store = Arc::new(EndlessPurge {
        inner: dblock_conformance::Fixture::store(backend).await,
        purges: Notify::new(),
    });
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>);
    let locks = locks
        .build_lazy()
        .expect("a manager starts without asking the store");
    let purge = locks.admin().purge(Duration::from_hours(24));
    let calls = async {
        store.purges.notified().await;
        calls(locks.clone()).await
    };
    tokio::select! {
        purged = purge => panic!("{purged:?}"),
        answer = calls => answer,
    }
}

impl Store for EndlessPurge {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.inner.apply(requests)
    }

    fn purge<'a>(
        &'a self,
        _: Duration,
        _: Option<&'a Key>,
        _: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        self.purges.notify_one();
        Box::pin(std::future::pending())
    }

    forward_to_inner!(but purge);
}
