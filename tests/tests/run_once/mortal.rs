//! A store whose process dies at one of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dblock::Key;
use dblock::store::{
    Capabilities, Outcome, Purged, Record, RecordFilter, RecordWrite, Records, Request, Store, StoreError,
    StoreFuture,
};
use tokio::sync::Notify;

/// Around a store: from one of its calls on, nothing is answered any more.
#[derive(Debug)]
pub(crate) struct Mortal {
    inner: Arc<dyn Store>,
    /// How many calls are still answered.
    left: AtomicI64,
    /// The call at which it dies is still carried out.
    carries_out: bool,
    dead: Notify,
}

impl Mortal {
    pub(crate) fn new(inner: Arc<dyn Store>, calls: i64, carries_out: bool) -> Self {
        Self {
            inner,
            left: AtomicI64::new(calls),
            carries_out,
            dead: Notify::new(),
        }
    }

    /// How many calls were answered, of a store that lives.
    pub(crate) fn calls(&self) -> i64 {
        i64::MAX - self.left.load(Ordering::SeqCst)
    }

    /// Completes when it has died.
    pub(crate) async fn died(&self) {
        self.dead.notified().await;
    }

    /// Dies now.
    pub(crate) fn die(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Whether the call that begins now is answered, or at least carried out.
    async fn live<T>(&self, call: impl Future<Output = T>) -> T {
        let left = self.left.fetch_sub(1, Ordering::SeqCst);
        if left > 0 {
            return call.await;
        }
        if left == 0 && self.carries_out {
            call.await;
        }
        self.dead.notify_one();
        std::future::pending().await
    }

    fn inner(&self) -> &dyn Records {
        self.inner.records().unwrap()
    }
}

impl Store for Mortal {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(self.live(self.inner.apply(requests)))
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    dblock_conformance::forward_to_inner!(but records);
}

impl Records for Mortal {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.live(self.inner().read(key)))
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.live(self.inner().write(write)))
    }

    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>> {
        self.inner().list(filter)
    }

    fn purge<'a>(
        &'a self,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        self.inner().purge(after, limit)
    }
}
