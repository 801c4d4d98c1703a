//! Trouble with the writes of records: they come late, or they or their answers are lost. A process does this to
//! its own writes, so that it happens on every store and to the writes that matter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dblock::Key;
use dblock::store::{
    Outcome, RecordChange, RecordState, RecordWrite, Records, Request, Store, StoreError, StoreErrorKind,
    StoreFuture,
};
use dblock_tests::around::{Around, Between};
use fastrand::Rng;
use tokio::time::sleep;

use super::Worker;

/// One write of so many is troubled.
const ONE_OF: u8 = 12;

/// How late a write that comes alone is at most, in milliseconds: later than the end of every lease and wait.
pub(crate) const LATEST_WRITE: u16 = 8_000;

/// The same for the engine's requests. Short, because a store with one connection renews no lease meanwhile.
const LATEST_BATCH: u16 = 300;

/// The trouble with one write.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// The write arrives so late, also when nobody waits for it any more.
    Late(Duration),
    Lost,
    ReplyLost,
}

/// Stands between a store and its manager.
#[derive(Debug)]
pub(super) struct Troubled {
    store: Arc<dyn Store>,
    rng: Mutex<Rng>,
    /// The last attempt of each run that this process began. A write of an earlier one takes an attempt back.
    begun: Mutex<HashMap<Key, u32>>,
    /// Writes the trouble into the history. Nothing goes wrong before it is set.
    pub(super) worker: OnceLock<Arc<Worker>>,
}

impl Troubled {
    pub(super) fn around(store: Arc<dyn Store>, seed: u64) -> Arc<Around<Self>> {
        let troubled = Self {
            store: Arc::clone(&store),
            rng: Mutex::new(Rng::with_seed(seed)),
            begun: Mutex::default(),
            worker: OnceLock::new(),
        };
        Around::new(store, troubled)
    }

    fn draw(&self, key: &Key, change: &RecordChange, latest: u16) -> Option<Trouble> {
        let begins = self.begins(key, change);
        let worker = self.worker.get()?;
        let mut rng = self.rng.lock().expect("nobody panics with it");
        let trouble = (rng.u8(..ONE_OF) == 0).then(|| match rng.u8(..4) {
            0 => Trouble::Late(Duration::from_millis(rng.u64(..100))),
            1 => Trouble::Late(Duration::from_millis(rng.u16(..latest).into())),
            2 => Trouble::Lost,
            _ => Trouble::ReplyLost,
        })?;
        worker.troubled(key, begins);
        Some(trouble)
    }

    /// Whether the write begins an attempt.
    fn begins(&self, key: &Key, change: &RecordChange) -> bool {
        let (RecordChange::Insert(entry) | RecordChange::Replace(_, entry)) = change else {
            return false;
        };
        let mut begun = self.begun.lock().expect("nobody panics with it");
        let last = begun.entry(key.clone()).or_default();
        let begins = entry.state == RecordState::Processing && entry.attempts >= *last;
        if begins {
            *last = entry.attempts;
        }
        begins
    }
}

impl Trouble {
    async fn disturb<T: Send + 'static>(
        self,
        write: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        match self {
            Self::Late(by) => {
                let late = tokio::spawn(async move {
                    sleep(by).await;
                    write.await
                });
                late.await.unwrap_or_else(|_| Err(interrupted()))
            }
            Self::Lost => Err(interrupted()),
            Self::ReplyLost => write.await.and_then(|_| Err(interrupted())),
        }
    }
}

fn interrupted() -> StoreError {
    StoreError::new(StoreErrorKind::Interrupted, "the torture kept the answer")
}

impl Between for Troubled {
    fn apply<'a>(
        &'a self,
        store: &'a dyn Store,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        // Batches with other requests than records' go undisturbed.
        let changes: Vec<_> = requests
            .iter()
            .filter_map(|request| Some((&request.key, request.record.as_ref()?)))
            .collect();
        let drawn = changes
            .iter()
            .map(|(key, change)| self.draw(key, change, LATEST_BATCH));
        let trouble = drawn.fold(None, Option::or);
        let Some(trouble) = trouble.filter(|_| changes.len() == requests.len()) else {
            return store.apply(requests);
        };
        let (store, all) = (Arc::clone(&self.store), requests.to_vec());
        Box::pin(async move {
            let applied = trouble.disturb(async move { Ok(store.apply(&all).await) });
            applied
                .await
                .unwrap_or_else(|error| requests.iter().map(|_| Err(error.clone())).collect())
        })
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        let Some(trouble) = self.draw(&write.key, &write.change, LATEST_WRITE) else {
            return records.write(write);
        };
        let (store, write) = (Arc::clone(&self.store), write.clone());
        Box::pin(trouble.disturb(async move {
            let records = store.records().expect("a store that writes records keeps them");
            records.write(&write).await
        }))
    }
}
