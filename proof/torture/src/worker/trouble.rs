//! Writes of records that come late, get lost, or whose answer gets lost: done by a process to its own writes, so
//! that it meets them on every store, in the very moments that matter.

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

/// How late a write is at most that comes alone, in milliseconds: it outlives every lease, and who waits for it.
pub(crate) const LATEST_WRITE: u16 = 8_000;

/// The same for requests of the engine, which repeats what was not answered. A store with one connection renews no
/// lease meanwhile.
const LATEST_BATCH: u16 = 300;

/// The trouble with one write.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// It arrives so late, also when nobody waits for it any more.
    Late(Duration),
    Lost,
    ReplyLost,
}

/// Stands between a store and its manager.
#[derive(Debug)]
pub(super) struct Troubled {
    store: Arc<dyn Store>,
    rng: Mutex<Rng>,
    /// The last attempt of each run that this process began: what names an earlier one takes it back.
    begun: Mutex<HashMap<Key, u32>>,
    /// Nothing goes wrong before there is somebody to write it down.
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
    async fn befall<T: Send + 'static>(
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
        // Others that go along have nothing to do with records.
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
            let applied = trouble.befall(async move { Ok(store.apply(&all).await) });
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
        Box::pin(trouble.befall(async move {
            let records = store.records().expect("a store that writes records keeps them");
            records.write(&write).await
        }))
    }
}
