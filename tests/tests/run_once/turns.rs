//! Many calls at once in one process: whose turn it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dblock::store::{
    Capabilities, Outcome, Purged, Record, RecordFilter, RecordWrite, Records, Request, Store, StoreError,
    StoreFuture,
};
use dblock::{Key, LockManager, OnCrash, Once};
use dblock_conformance::Fixture;
use dblock_tests::{Backend, on_every_store};
use futures_util::future::{join_all, poll_immediate};
use tokio::sync::{Notify, Semaphore};

use crate::{PayError, run};

on_every_store!(an_outcome_does_not_queue_behind_new_calls,);

/// Around a store: each read of a record takes a permit.
#[derive(Debug)]
struct SlowReads {
    inner: Arc<dyn Store>,
    permits: Semaphore,
    reads: AtomicU32,
    /// How many there were when a record was written.
    before_write: AtomicU32,
}

impl SlowReads {
    fn inner(&self) -> &dyn Records {
        self.inner.records().unwrap()
    }
}

impl Store for SlowReads {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.inner.apply(requests)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    dblock_conformance::forward_to_inner!(but records);
}

impl Records for SlowReads {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.inner().read(key).await
        })
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        let before = self.reads.load(Ordering::SeqCst);
        self.before_write.store(before, Ordering::SeqCst);
        self.inner().write(write)
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

/// A run ends while twenty calls wait for their reads.
async fn an_outcome_does_not_queue_behind_new_calls(backend: Backend) {
    let store = Arc::new(SlowReads {
        inner: backend.store().await,
        permits: Semaphore::new(1),
        reads: AtomicU32::new(0),
        before_write: AtomicU32::new(0),
    });
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
        .start()
        .unwrap();
    let others = join_all((0..20).map(|n| {
        let locks = &locks;
        let body = async move |_| Ok::<_, PayError>(n);
        async move {
            locks
                .run_once(format!("other {n}"), run(OnCrash::Stop), body)
                .await
        }
    }));
    tokio::pin!(others);
    let ends = Notify::new();
    let body = async |_| {
        assert!(
            poll_immediate(&mut others).await.is_none(),
            "they ask for their records"
        );
        ends.notify_one();
        Ok::<_, PayError>(7)
    };
    let first = locks.run_once("first", run(OnCrash::Stop), body);
    let reads = async {
        ends.notified().await;
        // The engine begins its work in order: after its answers the outcome waits for its turn.
        for _ in 0..20 {
            locks.get("first").await.unwrap();
            store.permits.add_permits(1);
        }
    };
    let (ran, ()) = tokio::join!(first, reads);
    assert_eq!(ran.unwrap(), Once::Ran(7));
    let before = store.before_write.load(Ordering::SeqCst);
    assert!(before < 10, "{before} reads came before the outcome");
}
