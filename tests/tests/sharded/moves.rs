//! A key that moves, and requests for it.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Acquire, Action, Extend, MemoryStore, Outcome, Request, Store, StoreErrorKind};
use dblock::{InspectFilter, LockRow};
use dblock_sharded::ShardedStore;
use dblock_tests::faulty_store::FaultyStore;
use uuid::Uuid;

use crate::{LONG, key, shards};

/// All keys move from `a` to `b`.
pub(crate) struct Move {
    pub(crate) a: (MemoryStore, Arc<FaultyStore>),
    pub(crate) b: (MemoryStore, Arc<FaultyStore>),
    pub(crate) store: ShardedStore,
}

impl Move {
    pub(crate) fn new() -> Self {
        let faulty = || {
            let memory = MemoryStore::new();
            (memory.clone(), FaultyStore::over(Arc::new(memory)))
        };
        let (a, b) = (faulty(), faulty());
        let (one, other): (Arc<dyn Store>, Arc<dyn Store>) = (a.1.clone(), b.1.clone());
        let store = shards([("a", &one)]).moving_to(shards([("b", &other)])).unwrap();
        Self { a, b, store }
    }

    /// The rows of the old and the new shard.
    pub(crate) async fn rows(&self) -> [Option<LockRow>; 2] {
        [row(&self.a.0).await, row(&self.b.0).await]
    }

    /// Whether the old and the new row are held by the lease.
    pub(crate) async fn held_by(&self, lease: Uuid) -> [bool; 2] {
        let held = |row: Option<LockRow>| row.is_some_and(|row| row.is_held() && row.lease_id == lease);
        self.rows().await.map(held)
    }
}

pub(crate) async fn row(store: &MemoryStore) -> Option<LockRow> {
    let rows = store.inspect(&InspectFilter::new().include_free()).await;
    rows.unwrap().into_iter().find(|row| row.key == key("k"))
}

pub(crate) fn request(lease: Uuid, action: Action) -> Request {
    Request::new(key("k"), lease, action)
}

pub(crate) fn acquire(lease: Uuid) -> Request {
    request(lease, Action::Acquire(Acquire::new(lease, LONG, "test")))
}

pub(crate) fn queue(lease: Uuid) -> Request {
    let mut ask = Acquire::new(lease, LONG, "test");
    ask.wanted_for = Some(LONG);
    ask.queue = Some(Duration::ZERO);
    request(lease, Action::Acquire(ask))
}

pub(crate) fn extend(lease: Uuid) -> Request {
    request(lease, Action::Extend(Extend::new(1, LONG)))
}

pub(crate) fn release(lease: Uuid) -> Request {
    request(lease, Action::Release)
}

pub(crate) async fn answer(store: &dyn Store, request: Request) -> Result<Outcome, StoreErrorKind> {
    let answer = store.apply(&[request]).await.remove(0);
    answer.map_err(|error| error.kind())
}

/// The token of a grant.
pub(crate) async fn token(store: &dyn Store, request: Request) -> i64 {
    match answer(store, request).await {
        Ok(Outcome::Granted { fence_token, .. }) => fence_token,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn fresh() -> Uuid {
    Uuid::now_v7()
}
