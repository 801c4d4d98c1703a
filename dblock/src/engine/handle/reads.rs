//! Reads by key that many calls make at once: what is asked for while a read waits for its permit goes with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;
use tokio::time::timeout;

use super::tasks::unanswered;
use super::{EngineHandle, Permit, STORE_TIMEOUT};
use crate::Key;
use crate::LockError;
use crate::engine::cells::lock;
use crate::engine::sync::Mutex;
#[cfg(feature = "run_once")]
use crate::store::Record;
use crate::store::{LockRow, Store, StoreError, StoreErrorKind, StoreFuture};

/// The most keys of one read: the results of records may be large.
const MOST: usize = 32;

/// Reads what the store has for several keys, in the order of the keys.
type ReadAll<T> = for<'a> fn(&'a dyn Store, &'a [Key]) -> StoreFuture<'a, Vec<Found<T>>>;

type Found<T> = Result<Option<T>, StoreError>;

/// The next read, which has not begun. Only the engine owns it: what the engine drops is answered to nobody.
pub(in crate::engine) struct Reads<T> {
    next: Arc<Mutex<Weak<Read<T>>>>,
    which: Permit,
    read_all: ReadAll<T>,
}

/// The callers of a read.
type Read<T> = Mutex<Vec<Look<T>>>;

struct Look<T> {
    key: Key,
    answer: oneshot::Sender<Found<T>>,
}

impl<T: Clone + Send + 'static> Reads<T> {
    pub(in crate::engine) fn new(which: Permit, read_all: ReadAll<T>) -> Self {
        Self {
            next: Arc::default(),
            which,
            read_all,
        }
    }

    /// What the store has for `key`, read after this was called. If this is dropped, the read goes on.
    async fn at(&self, engine: &EngineHandle, key: &Key) -> Result<Option<T>, LockError> {
        let (answer, answered) = oneshot::channel();
        let look = Look {
            key: key.clone(),
            answer,
        };
        self.join(engine, look);
        match answered.await {
            Ok(found) => found.map_err(|error| LockError::store_of(key, error)),
            Err(_) => Err(LockError::shutdown(Some(key.to_typed()))),
        }
    }

    fn join(&self, engine: &EngineHandle, look: Look<T>) {
        let mut next = lock(&self.next);
        if let Some(read) = next.upgrade() {
            lock(&read).push(look);
        } else {
            self.clone().start(&mut next, engine, vec![look]);
        }
    }

    /// Makes a read for `looks` the next one.
    fn start(self, next: &mut Weak<Read<T>>, engine: &EngineHandle, looks: Vec<Look<T>>) {
        let read = Arc::new(Mutex::new(looks));
        *next = Arc::downgrade(&read);
        let again = engine.clone();
        engine.spawn(move |store, permits| async move {
            let _permit = permits.permit(self.which).await;
            let looks = self.begin(&read, &again);
            // Whoever still waits for it has joined before it began.
            drop((read, again));
            let (keys, callers): (Vec<Key>, Vec<_>) = looks.into_iter().unzip();
            let found = timeout(STORE_TIMEOUT, self.read(&*store, &keys)).await;
            let found = found.unwrap_or_else(|_| vec![Err(unanswered(STORE_TIMEOUT)); keys.len()]);
            for (answers, found) in callers.into_iter().zip(found) {
                for answer in answers {
                    // A caller that is gone needs no answer.
                    let _ = answer.send(found.clone());
                }
            }
        });
    }

    /// Reads anew when a connection that was idle turned out to be broken.
    async fn read(&self, store: &dyn Store, keys: &[Key]) -> Vec<Found<T>> {
        let found = (self.read_all)(store, keys).await;
        let broken = |found: &Found<T>| {
            let error = found.as_ref().err();
            error.is_some_and(|error| error.kind() == StoreErrorKind::Interrupted)
        };
        if found.iter().any(broken) {
            return (self.read_all)(store, keys).await;
        }
        found
    }

    /// The callers whose keys this read is for. The others get the next one.
    fn begin(&self, read: &Read<T>, engine: &EngineHandle) -> BTreeMap<Key, Vec<oneshot::Sender<Found<T>>>> {
        let mut next = lock(&self.next);
        *next = Weak::new();
        let mut begun: BTreeMap<Key, Vec<_>> = BTreeMap::new();
        let mut rest = Vec::new();
        for look in lock(read).drain(..).filter(|look| !look.answer.is_closed()) {
            if begun.len() < MOST || begun.contains_key(&look.key) {
                begun.entry(look.key).or_default().push(look.answer);
            } else {
                rest.push(look);
            }
        }
        if !rest.is_empty() {
            self.clone().start(&mut next, engine, rest);
        }
        begun
    }
}

impl EngineHandle {
    /// As `row`, for a look that may come late, or be left out.
    pub(crate) async fn look_at_row(&self, key: &Key) -> Result<Option<LockRow>, LockError> {
        self.looks.at(self, key).await
    }

    /// The row of a key as the store's own connections see it.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) async fn row(&self, key: &Key) -> Result<Option<LockRow>, LockError> {
        self.rows.at(self, key).await
    }

    /// Makes a free row for a key that has none. Returns whether it had none, or another one that was asked for at the
    /// same time.
    #[cfg(feature = "sql")]
    pub(crate) async fn make_free_row(&self, key: &Key) -> Result<bool, LockError> {
        Ok(self.free_rows.at(self, key).await?.unwrap_or_default())
    }

    /// The record of a key, read without its lock.
    #[cfg(feature = "run_once")]
    pub(crate) async fn record(&self, key: &Key) -> Result<Option<Record>, LockError> {
        self.records.at(self, key).await
    }
}

impl<T> Clone for Reads<T> {
    fn clone(&self) -> Self {
        Self {
            next: Arc::clone(&self.next),
            ..*self
        }
    }
}
