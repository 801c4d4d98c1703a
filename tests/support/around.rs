//! A store with something between it and its callers.

use std::fmt::Debug;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;

use dblock::Key;
use dblock::store::{
    Capabilities, Outcome, Purged, Record, RecordFilter, RecordWrite, Records, Request, Store, StoreError,
    StoreFuture,
};

/// The code between a store and its callers. It passes calls on to the store, unless it says otherwise.
pub trait Between: Debug + Send + Sync + 'static {
    /// As [`Store::apply`].
    fn apply<'a>(
        &'a self,
        store: &'a dyn Store,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        store.apply(requests)
    }

    /// As [`Records::read_all`]. A single record comes this way, too.
    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        records.read_all(keys)
    }

    /// As [`Records::write`].
    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        records.write(write)
    }
}

/// A store that keeps records, behind a `B`, to which it derefs.
#[derive(Debug)]
pub struct Around<B> {
    inner: Arc<dyn Store>,
    between: B,
}

impl<B: Between> Around<B> {
    /// `inner` behind `between`.
    pub fn new(inner: Arc<dyn Store>, between: B) -> Arc<Self> {
        Arc::new(Self { inner, between })
    }

    fn inner(&self) -> &dyn Records {
        self.inner.records().unwrap()
    }
}

impl<B> Deref for Around<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.between
    }
}

impl<B: Between> Store for Around<B> {
    /// Those of the store inside. But what stands between may take its time, so nothing is done at once.
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.inner.capabilities();
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.between.apply(&*self.inner, requests)
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }

    dblock_conformance::forward_to_inner!(but records);
}

impl<B: Between> Records for Around<B> {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { self.read_all(slice::from_ref(key)).await.remove(0) })
    }

    fn read_all<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        self.between.read_all(self.inner(), keys)
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        self.between.write(self.inner(), write)
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
