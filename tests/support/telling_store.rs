//! A memory store that tells of releases, as a database with notifications does; and that can be made deaf.

use std::sync::{Arc, Mutex, PoisonError};

use dblock::open;
use dblock::store::{
    Capabilities, MemoryStore, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp,
};
use tokio::sync::broadcast;

/// Clones share the rows and hear of each other's releases.
#[derive(Debug, Clone)]
pub struct TellingStore {
    inner: MemoryStore,
    order: Arc<Mutex<()>>,
    /// `None` ends all listening.
    wake_ups: broadcast::Sender<Option<WakeUp>>,
    /// The next calls of `listen` fail at once.
    deaf: Arc<std::sync::atomic::AtomicBool>,
}

impl TellingStore {
    /// A store with no rows.
    pub fn new() -> Self {
        Self {
            inner: MemoryStore::new(),
            order: Arc::default(),
            wake_ups: broadcast::Sender::new(1000),
            deaf: Arc::default(),
        }
    }

    /// The rows, which tell nothing.
    pub fn rows(&self) -> &MemoryStore {
        &self.inner
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
        let mut capabilities = self.inner.capabilities();
        capabilities.wake_ups = true;
        capabilities.immediate = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            // They are told in the order of the changes.
            let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = |request| {
                let (outcome, tells) = open::memory::apply(&self.inner, request)?;
                if let Some(wake_up) = tells {
                    let _ = self.wake_ups.send(Some(wake_up));
                }
                Ok(outcome)
            };
            requests.iter().map(answer).collect()
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

    dblock_conformance::forward_to_inner!(but listen);
}
