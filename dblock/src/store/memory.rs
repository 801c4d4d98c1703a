//! Rows in the memory of this process, for unit tests and for programs of a single process.

mod table;

use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use self::table::{Kept, Table};
use super::clock::Timestamp;
use super::{
    Capabilities, InspectFilter, LockRow, Outcome, Purged, Request, Store, StoreError, StoreFuture, WakeUp,
};
use super::{Record, RecordFilter, RecordWrite, Records, RunState};
use crate::Key;

/// Rows in the memory of this process.
///
/// Clones share the rows: two managers over two clones exclude each other like two processes over one
/// database. The clock follows tokio's, so a test with paused time can move it. Later requests drop the row of a
/// key that has been free for some seconds; the next token of that key is the clock, which is larger.
///
/// ```
/// use dblock::store::MemoryStore;
/// use dblock::LockManager;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let store = MemoryStore::new();
/// let one = LockManager::builder(store.clone()).build().await?;
/// let other = LockManager::builder(store).build().await?;
/// let guard = one.lock("order:42").acquire().await?;
/// assert!(other.lock("order:42").try_acquire().await?.is_none());
/// # guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The wall clock when the store was made, and tokio's clock at the same instant.
    origin: (Timestamp, Instant),
    table: Mutex<Table>,
}

impl MemoryStore {
    /// A store with no rows.
    pub fn new() -> Self {
        let origin = (SystemTime::now().into(), Instant::now());
        Self {
            shared: Arc::new(Shared {
                origin,
                table: Mutex::default(),
            }),
        }
    }

    /// Writes rows, for [`open`](crate::open).
    pub(crate) fn place(&self, rows: &[LockRow]) {
        let placed = rows.iter().map(|row| (row.key.clone(), Kept::new(row.clone())));
        self.table().rows.extend(placed);
    }

    /// Carries out a request, for [`open`](crate::open).
    pub(crate) fn apply_telling(&self, request: &Request) -> Result<(Outcome, Option<WakeUp>), StoreError> {
        self.table().apply(request)
    }

    /// The table, with its clock set to this instant. The guard must not live across an await.
    fn table(&self) -> MutexGuard<'_, Table> {
        let (wall, instant) = self.shared.origin;
        // A panic leaves no half-written row, so the table is still good.
        let mut table = self.shared.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.now = table.now.max(wall + instant.elapsed());
        table
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new("memory");
        can.callers_runtime = true;
        can.concurrency = 3;
        can.raises_tokens = true;
        can.immediate = true;
        can.purge = true;
        can.shares = true;
        can
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let mut table = self.table();
            let answers = requests.iter().map(|request| table.apply(request));
            answers.map(|answer| answer.map(|(outcome, _)| outcome)).collect()
        })
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(async move {
            let table = self.table();
            let prefix = filter.get_prefix();
            let rows = table
                .rows
                .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
                .take_while(|(key, _)| key.as_str().starts_with(prefix));
            Ok(filter.select(rows.map(|(_, kept)| {
                let mut row = kept.row.clone();
                row.now = table.now;
                row
            })))
        })
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut table = self.table();
            let held = table.held(key);
            Ok(held.map(|kept| kept.row.revoked = true).is_some())
        })
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { Ok(self.table().force_release(key)) })
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move { Ok(self.table().purge(idle, after, limit)) })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {})
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}

impl Records for MemoryStore {
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move {
            {
                let table = self.table();
                let record = table.records.get(key);
                Ok(record.map(|record| {
                    let mut record = record.clone();
                    record.now = table.now;
                    record
                }))
            }
        })
    }

    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move { Ok(self.table().write_record(write)) })
    }

    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let table = self.table();
            let records = table.records();
            Ok(records
                .filter(|record| record.key.as_str().starts_with(filter.get_prefix()))
                .filter(|record| filter.get_state().is_none_or(|state| state == record.state))
                .map(|record| {
                    let has_lock = table.has_lock(&record);
                    record.listed(has_lock)
                })
                .filter(|record| {
                    filter
                        .get_run_state()
                        .and_then(RunState::has_lock)
                        .is_none_or(|lock| record.has_lock == Some(lock))
                })
                .take(usize::try_from(filter.get_limit()).unwrap_or(usize::MAX))
                .collect())
        })
    }

    fn purge<'a>(
        &'a self,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move { Ok(self.table().purge_records(after, limit)) })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::{Acquire, Action};

    fn request(lease_id: Uuid, action: Action) -> Request {
        of("k", lease_id, action)
    }

    fn acquire(ttl: Duration) -> Action {
        Action::Acquire(Acquire::new(Uuid::now_v7(), ttl, "test"))
    }

    async fn one(store: &MemoryStore, request: Request) -> Outcome {
        store.apply(&[request]).await.remove(0).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_moves_the_clock() {
        let store = MemoryStore::new();
        let ttl = Duration::from_secs(30);
        assert!(matches!(
            one(&store, request(Uuid::now_v7(), acquire(ttl))).await,
            Outcome::Granted { .. }
        ));

        tokio::time::advance(Duration::from_millis(29_999)).await;
        let busy = one(&store.clone(), request(Uuid::now_v7(), acquire(ttl))).await;
        assert!(matches!(busy, Outcome::Busy(holder) if holder.remaining == Some(Duration::from_millis(1))));

        tokio::time::advance(Duration::from_millis(1)).await;
        let taken = one(&store, request(Uuid::now_v7(), acquire(ttl))).await;
        assert!(
            matches!(
                taken,
                Outcome::Granted {
                    taken_over: Some(_),
                    ..
                }
            ),
            "{taken:?}"
        );
    }

    #[tokio::test]
    async fn the_next_token_is_above_the_ceiling() {
        let store = MemoryStore::new();
        let first = request(Uuid::now_v7(), acquire(Duration::from_secs(30)));
        one(&store, first.clone()).await;
        one(&store, request(first.lease_id, Action::Release)).await;
        let ceiling = store.table().now.as_micros() + 3_600_000_000;
        store.table().rows.get_mut(&first.key).unwrap().row.fence_ceiling = ceiling;
        let next = one(&store, request(Uuid::now_v7(), acquire(Duration::from_secs(30)))).await;
        assert!(
            matches!(next, Outcome::Granted { fence_token, .. } if fence_token == ceiling + 1),
            "{next:?}"
        );
    }

    fn of(key: &str, lease_id: Uuid, action: Action) -> Request {
        Request::new(Key::new(None, key).unwrap(), lease_id, action)
    }

    /// A program with a key for each order: 20,000 keys in 20 seconds.
    #[tokio::test(start_paused = true)]
    async fn the_rows_of_free_keys_do_not_pile_up() {
        let store = MemoryStore::new();
        let ttl = Duration::from_secs(30);
        let held = of("held", Uuid::now_v7(), acquire(ttl));
        one(&store, held).await;
        let mut most = 0;
        for number in 0..20_000 {
            let lease = Uuid::now_v7();
            let key = format!("order:{number}");
            one(&store, of(&key, lease, acquire(ttl))).await;
            one(&store, of(&key, lease, Action::Release)).await;
            tokio::time::advance(Duration::from_millis(1)).await;
            most = most.max(store.table().rows.len());
        }
        assert!(most < 11_000, "{most} rows");
        let is_held = store.table().held(&Key::new(None, "held").unwrap()).is_some();
        assert!(is_held, "a held row stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_row_goes_only_when_nothing_depends_on_it() {
        let store = MemoryStore::new();
        let (ttl, second) = (Duration::from_secs(30), Duration::from_secs(1));
        let other = async || {
            let lease = Uuid::now_v7();
            one(&store, of("other", lease, acquire(ttl))).await;
            one(&store, of("other", lease, Action::Release)).await;
        };
        let is_there = |key: &str| store.table().rows.contains_key(key);
        let lease = Uuid::now_v7();
        let Outcome::Granted { fence_token, .. } = one(&store, of("k", lease, acquire(ttl))).await else {
            panic!("it was free");
        };
        one(&store, of("k", lease, Action::Release)).await;
        // Its free tokens reach an hour ahead.
        let mut ahead = Acquire::new(Uuid::now_v7(), ttl, "test");
        ahead.spare_tokens = u32::MAX;
        let spares = Uuid::now_v7();
        one(&store, of("ahead", spares, Action::Acquire(ahead))).await;
        one(&store, of("ahead", spares, Action::Release)).await;

        tokio::time::advance(second * 9).await;
        other().await;
        let late = one(&store, of("k", lease, acquire(ttl))).await;
        assert_eq!(late, Outcome::Lost, "a late acquire of a lease that was released");
        tokio::time::advance(second * 2).await;
        other().await;
        assert!(!is_there("k") && is_there("ahead"));
        let next = one(&store, of("k", Uuid::now_v7(), acquire(ttl))).await;
        assert!(
            matches!(next, Outcome::Granted { fence_token: token, .. } if token > fence_token),
            "{next:?} after {fence_token}"
        );

        tokio::time::advance(second * 5_000).await;
        other().await;
        assert!(!is_there("ahead"), "its tokens are in the past");
        assert!(is_there("k"), "it has expired: its next owner takes it over");
    }

    #[test]
    fn the_clock_never_falls() {
        let store = MemoryStore::new();
        let ahead = store.table().now + Duration::from_secs(1_000);
        store.table().now = ahead;
        assert_eq!(store.table().now, ahead);
    }
}
