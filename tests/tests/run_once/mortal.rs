//! A store whose process dies at one of its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dblock::Key;
use dblock::store::{Outcome, Record, RecordWrite, Records, Request, Store, StoreError, StoreFuture};
use dblock_tests::around::{Around, Between};
use tokio::sync::Notify;

/// From one of the store's calls on, nothing is answered any more.
#[derive(Debug)]
pub(crate) struct Mortal {
    /// How many calls are still answered.
    left: AtomicI64,
    /// How many calls have read records.
    reads: AtomicI64,
    /// The call at which it dies is still carried out.
    carries_out: bool,
    dead: Notify,
}

impl Mortal {
    pub(crate) fn around(inner: Arc<dyn Store>, calls: i64, carries_out: bool) -> Arc<Around<Self>> {
        let mortal = Self {
            left: AtomicI64::new(calls),
            reads: AtomicI64::new(0),
            carries_out,
            dead: Notify::new(),
        };
        Around::new(inner, mortal)
    }

    /// How many calls were answered, of a store that lives.
    pub(crate) fn calls(&self) -> i64 {
        i64::MAX - self.left.load(Ordering::SeqCst)
    }

    /// How many calls have read records.
    pub(crate) fn reads(&self) -> i64 {
        self.reads.load(Ordering::SeqCst)
    }

    /// Completes when it has died.
    pub(crate) async fn died(&self) {
        self.dead.notified().await;
    }

    /// Dies now.
    pub(crate) fn die(&self) {
        self.left.store(0, Ordering::SeqCst);
        self.dead.notify_one();
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
}

impl Between for Mortal {
    fn apply<'a>(
        &'a self,
        store: &'a dyn Store,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(self.live(store.apply(requests)))
    }

    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        Box::pin(self.live(records.read_all(keys)))
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.live(records.write(write)))
    }
}
