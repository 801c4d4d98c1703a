//! Looks at records without their locks: what is asked for while a read waits for its turn goes with it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::engine::{EngineHandle, Turn, lock};
use crate::error::LockError;
use crate::key::Key;
use crate::store::{Record, Store, StoreError, record};

/// The most records of one read: their results may be large.
const MOST: usize = 32;

/// The next read, which has not begun. Only the engine owns it: what the engine drops is answered to nobody.
#[derive(Debug, Default)]
pub(crate) struct Looks(Arc<Mutex<Weak<Read>>>);

/// The callers of a read.
#[derive(Debug)]
struct Read(Mutex<Vec<Look>>);

#[derive(Debug)]
struct Look {
    key: Key,
    answer: oneshot::Sender<Result<Option<Record>, StoreError>>,
}

impl Looks {
    /// Looks at the record of `key`. If this is dropped, the read goes on.
    pub(crate) async fn at(
        &self,
        engine: &EngineHandle,
        key: &Key,
        limit: Duration,
    ) -> Result<Option<Record>, LockError> {
        let (answer, answered) = oneshot::channel();
        let key = key.clone();
        self.join(engine, Look { key, answer }, limit);
        match answered.await {
            Ok(found) => found.map_err(LockError::store),
            Err(_) => Err(LockError::Shutdown { key: None }),
        }
    }

    fn join(&self, engine: &EngineHandle, look: Look, limit: Duration) {
        let mut next = lock(&self.0);
        match next.upgrade() {
            Some(read) => lock(&read.0).push(look),
            None => start(&self.0, &mut next, engine, vec![look], limit),
        }
    }
}

/// Makes a read for `looks` the next one.
fn start(
    place: &Arc<Mutex<Weak<Read>>>,
    next: &mut Weak<Read>,
    engine: &EngineHandle,
    looks: Vec<Look>,
    limit: Duration,
) {
    let read = Arc::new(Read(Mutex::new(looks)));
    *next = Arc::downgrade(&read);
    let begin = {
        let (place, read, engine) = (Arc::clone(place), Arc::clone(&read), engine.clone());
        move || {
            let mut next = lock(&place);
            *next = Weak::new();
            let mut looks = lock(&read.0);
            if looks.len() > MOST {
                let rest = looks.split_off(MOST);
                start(&place, &mut next, &engine, rest, limit);
            }
            looks.iter().map(|look| look.key.clone()).collect::<Vec<_>>()
        }
    };
    let work = |store: Arc<dyn Store>| async move {
        let keys = begin();
        Ok(record::kept_by(&*store)?.read_all(&keys).await)
    };
    let place = Arc::clone(place);
    engine.start(Turn::Looks, limit, work, move |found| {
        let mut next = lock(&place);
        // It may have failed before it began.
        if next.as_ptr() == Arc::as_ptr(&read) {
            *next = Weak::new();
        }
        drop(next);
        read.answer(found);
    });
}

impl Read {
    fn answer(&self, found: Result<Vec<Result<Option<Record>, StoreError>>, StoreError>) {
        let looks = std::mem::take(&mut *lock(&self.0));
        let found = found.unwrap_or_else(|error| vec![Err(error); looks.len()]);
        for (look, found) in looks.into_iter().zip(found) {
            // A caller that is gone needs no answer.
            let _ = look.answer.send(found);
        }
    }
}
