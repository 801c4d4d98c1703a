//! A memory store that tells of releases, as a database with notifications does; and that can be made deaf.

use std::sync::{Arc, Mutex, PoisonError};

use dblock::InspectFilter;
use dblock::store::{
    Capabilities, MemoryStore, Outcome, Released, Request, Store, StoreError, StoreErrorKind, StoreFuture,
    WakeUp,
};
use futures_util::FutureExt;
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
            // Nobody changes a row before what was done to it is read.
            let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
            let answers = at_once(self.inner.apply(requests));
            for (request, answer) in requests.iter().zip(&answers) {
                let Ok(Outcome::Released(released @ (Released::Freed | Released::PassedOn))) = answer else {
                    continue;
                };
                let key = request.key.clone();
                let filter = InspectFilter::new().prefix(key.as_str()).include_free();
                let rows = at_once(self.inner.inspect(&filter)).expect("memory can be read");
                let row = rows.iter().find(|row| row.key == key);
                let row = row.expect("the row was released");
                if *released == Released::PassedOn {
                    let _ = self
                        .wake_ups
                        .send(Some(WakeUp::passed_on(key, row.lease_id, row.fence_token)));
                } else if row.wanted_until > row.now {
                    let _ = self.wake_ups.send(Some(WakeUp::Released(key)));
                }
            }
            answers
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

fn at_once<T>(future: StoreFuture<'_, T>) -> T {
    future.now_or_never().expect("memory waits for nothing")
}
