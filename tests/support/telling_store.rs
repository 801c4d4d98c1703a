//! A memory store that tells of releases, as a database with notifications does; and that can be made deaf.

use std::sync::Arc;
use std::time::Duration;

use dblock::Key;
use dblock::store::memory::MemoryStore;
use dblock::store::{
    Capabilities, InspectFilter, Leave, LockRow, Outcome, Purged, Request, Store, StoreError, StoreErrorKind,
    StoreFuture, WakeUp,
};
use tokio::sync::broadcast;

/// Clones share the rows and hear of each other's releases.
#[derive(Debug, Clone)]
pub struct TellingStore {
    rows: MemoryStore,
    /// `None` ends all listening.
    wake_ups: broadcast::Sender<Option<WakeUp>>,
    /// The next calls of `listen` fail at once.
    deaf: Arc<std::sync::atomic::AtomicBool>,
}

impl TellingStore {
    /// A store with no rows.
    pub fn new() -> Self {
        Self {
            rows: MemoryStore::new(),
            wake_ups: broadcast::Sender::new(1000),
            deaf: Arc::default(),
        }
    }

    /// From here on nobody hears anything, and nobody can listen.
    pub fn go_deaf(&self) {
        self.deaf.store(true, std::sync::atomic::Ordering::SeqCst);
        let _ = self.wake_ups.send(None);
    }

    /// How many listen.
    pub fn listeners(&self) -> usize {
        self.wake_ups.receiver_count()
    }
}

impl Default for TellingStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for TellingStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.rows.capabilities();
        capabilities.wake_ups = true;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let answers = self.rows.apply(requests).await;
            for (request, answer) in requests.iter().zip(&answers) {
                if let Ok(Outcome::Released { wanted: true, .. }) = answer {
                    let _ = self.wake_ups.send(Some(WakeUp::Released(request.key.clone())));
                }
            }
            answers
        })
    }

    fn announce<'a>(&'a self, leaves: &'a [Leave]) -> StoreFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let rows = self.rows.inspect(&InspectFilter::new()).await?;
            let told = leaves.iter().map(|leave| {
                let is_told = rows.iter().any(|row| {
                    row.key == leave.key
                        && row.lease_id == leave.lease_id
                        && row.reserved.is_some_and(|reserved| reserved.until > row.now)
                });
                if is_told {
                    let left = WakeUp::Left(leave.key.clone(), leave.word);
                    let _ = self.wake_ups.send(Some(left));
                }
                is_told
            });
            Ok(told.collect())
        })
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            let mut wake_ups = self.wake_ups.subscribe();
            if !self.deaf.load(std::sync::atomic::Ordering::SeqCst) {
                tell(WakeUp::Listening);
                while let Ok(Some(wake_up)) = wake_ups.recv().await {
                    tell(wake_up);
                }
            }
            StoreError::new(StoreErrorKind::Unreachable, "told to be deaf")
        })
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        self.rows.purge(idle, after, limit)
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.rows.check_schema()
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.rows.migrate()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        self.rows.inspect(filter)
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        self.rows.revoke(key)
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        self.rows.force_release(key)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.rows.close()
    }
}
