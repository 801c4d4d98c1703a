//! Looks at records without their locks: what is asked for while a read waits or is on its way goes together into the next.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, Shared};

use crate::engine::{EngineHandle, Turn};
use crate::error::LockError;
use crate::key::Key;
use crate::store::{Record, StoreError, record};

/// The most records of one read.
const MOST: usize = 256;

/// What a read has found for each of its keys, in their order. `None` when the engine has stopped.
type Found = Result<Arc<[Result<Option<Record>, StoreError>]>, Option<StoreError>>;

/// The next read.
#[derive(Debug, Default)]
pub(crate) struct Looks(Mutex<Option<Read>>);

#[derive(Debug)]
struct Read {
    /// `None` once it has begun.
    keys: Arc<Mutex<Option<Vec<Key>>>>,
    found: Shared<BoxFuture<'static, Found>>,
}

impl Looks {
    /// Looks at the record of `key`. The read begins with the first of its callers that is polled, and goes on without them.
    pub(crate) async fn at(
        &self,
        engine: &EngineHandle,
        key: &Key,
        limit: Duration,
    ) -> Result<Option<Record>, LockError> {
        let (place, found) = self.join(engine, key, limit);
        let found = found.await.map_err(|failed| match failed {
            Some(error) => LockError::store(error),
            None => LockError::Shutdown { key: None },
        })?;
        found[place].clone().map_err(LockError::store)
    }

    /// Adds the key to the next read, and returns its place there.
    fn join(
        &self,
        engine: &EngineHandle,
        key: &Key,
        limit: Duration,
    ) -> (usize, Shared<BoxFuture<'static, Found>>) {
        let mut next = lock(&self.0);
        if let Some(read) = &*next
            && let Some(place) = read.add(key)
        {
            return (place, read.found.clone());
        }
        let read = Read::new(engine.clone(), key.clone(), limit);
        let found = read.found.clone();
        *next = Some(read);
        (0, found)
    }
}

impl Read {
    fn new(engine: EngineHandle, first: Key, limit: Duration) -> Self {
        let keys = Arc::new(Mutex::new(Some(vec![first])));
        let of_read = Arc::clone(&keys);
        let found = async move {
            let read = engine.run(Turn::Looks, limit, |store| async move {
                let keys = lock(&of_read).take().unwrap_or_default();
                Ok(record::kept_by(&*store)?.read_all(&keys).await)
            });
            match read.await {
                Ok(found) => Ok(found.into()),
                Err(LockError::Store { source, .. }) => Err(Some(source)),
                Err(_) => Err(None),
            }
        };
        Self {
            keys,
            found: found.boxed().shared(),
        }
    }

    /// The place of the key, if the read has not begun and has room. One that failed before it began is over, too.
    fn add(&self, key: &Key) -> Option<usize> {
        if self.found.peek().is_some() {
            return None;
        }
        let mut keys = lock(&self.keys);
        let keys = keys.as_mut().filter(|keys| keys.len() < MOST)?;
        keys.push(key.clone());
        Some(keys.len() - 1)
    }
}

/// A panic never leaves a half-changed value under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
