//! Wake-ups: a process watches the rows for which its callers wait, and reads a row that was written. So a
//! release is one write of the row, whether somebody waits or not.
//!
//! A session of its own watches, opened while somebody waits. A waiter that misses a release polls again
//! within a second.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::{Action, Outcome, Request, Share, StoreError, StoreErrorKind, WakeUp};
use dblock_core::{Key, LockRow};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;
use zookeeper_client::{Client, Error, OneshotWatcher, SessionState};

use crate::session::Ensemble;
use crate::{error, row, rows};

/// How long a row is watched after the last ask for it, as [`Store::listen`](dblock_core::store::Store::listen)
/// says. A caller that waits asks about once a second.
const WATCHED: Duration = Duration::from_secs(10);

/// A lease waits for a key from now on, or does not any more.
#[derive(Clone)]
struct Ask {
    key: Key,
    lease: Uuid,
    waits: bool,
}

/// Tells those who listen with this store which rows to watch.
#[derive(Default)]
pub(crate) struct Asks {
    listeners: Mutex<Vec<UnboundedSender<Ask>>>,
}

impl Asks {
    /// Notes the answer to a request.
    pub(crate) fn note(&self, request: &Request, answer: &Result<Outcome, StoreError>) {
        let waits = match (&request.action, answer) {
            (Action::Acquire(ask), Ok(Outcome::Busy(_) | Outcome::Queued { .. })) => ask.wanted_for.is_some(),
            (Action::Acquire(_), Ok(Outcome::Granted { .. })) | (Action::Release, _) => false,
            (Action::Extend(ask), Ok(Outcome::Extended { count, .. })) => match ask.share {
                // Callers of a process that shares the key may wait for more room.
                Some(Share {
                    enter: Some(enter), ..
                }) => *count < ask.count.max(1) + enter.count,
                _ => return,
            },
            _ => return,
        };
        let mut listeners = self.listeners();
        if !listeners.is_empty() {
            let (key, lease) = (request.key.clone(), request.lease_id);
            let ask = Ask { key, lease, waits };
            listeners.retain(|listener| listener.send(ask.clone()).is_ok());
        }
    }

    fn listen(&self) -> UnboundedReceiver<Ask> {
        let (tell, asks) = unbounded_channel();
        let mut listeners = self.listeners();
        listeners.retain(|listener| !listener.is_closed());
        listeners.push(tell);
        asks
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<UnboundedSender<Ask>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A row that is watched.
#[derive(Default)]
struct Watched {
    /// The leases that wait for it, each with the time of its last ask.
    waiting: HashMap<Uuid, Instant>,
    /// The lease that held it when it was last read, by how many holds, and its successor.
    holder: Option<(Uuid, u32, Option<Uuid>)>,
}

impl Watched {
    fn note(&mut self, ask: &Ask) {
        if ask.waits {
            self.waiting.insert(ask.lease, Instant::now());
        } else {
            self.waiting.remove(&ask.lease);
        }
    }

    /// When watching ends if nobody asks again; `None`: nobody waits.
    fn ends_at(&self) -> Option<Instant> {
        self.waiting.values().max().map(|asked_at| *asked_at + WATCHED)
    }

    /// Returns the wake-up to report for the row as it was read now; `None` stands for a row that is not there.
    /// The holder is compared, because the row may have been written again since it was released.
    fn wake_up(&mut self, key: &Key, row: Option<LockRow>) -> Option<WakeUp> {
        let Some(row) = row.filter(|row| row.reentrant_count > 0) else {
            self.holder = None;
            return Some(WakeUp::Released(key.clone()));
        };
        let next = row.next.as_ref().map(|next| next.lease_id);
        let before = self.holder.replace((row.lease_id, row.reentrant_count, next));
        let arrived = self.waiting.remove(&row.lease_id).is_some();
        let is_other = before.is_some_and(|(lease, ..)| lease != row.lease_id);
        if arrived || is_other {
            return Some(WakeUp::passed_on(key.clone(), row.lease_id, row.fence_token));
        }
        // There is more room, or nobody any more who comes first.
        let may_enter = before
            .is_none_or(|(_, holds, first)| holds > row.reentrant_count || first.is_some() && next.is_none());
        (row.is_shared() && may_enter).then(|| WakeUp::Released(key.clone()))
    }
}

/// Reports releases until the connection is lost, and why it was: a release meanwhile is not reported.
pub(crate) async fn listen(
    ensemble: &Ensemble,
    report: &(dyn Fn(WakeUp) + Send + Sync),
) -> Result<Infallible, StoreError> {
    let client = ensemble.way.connect().await?;
    let mut session = client.state_watcher();
    let mut state = session.peek_state();
    let mut asks = ensemble.asks.listen();
    report(WakeUp::Listening);
    let mut watched: HashMap<Key, Watched> = HashMap::new();
    // Each key that is watched is in one of these.
    let (mut looks, mut writes) = (FuturesUnordered::new(), FuturesUnordered::new());
    while state == SessionState::SyncConnected {
        tokio::select! {
            Some(ask) = asks.recv() => match watched.entry(ask.key.clone()) {
                Entry::Occupied(mut known) => known.get_mut().note(&ask),
                Entry::Vacant(new) if ask.waits => {
                    looks.push(look(ensemble, &client, ask.key.clone()));
                    new.insert(Watched::default()).note(&ask);
                }
                Entry::Vacant(_) => {}
            },
            Some(looked) = looks.next() => {
                let (key, row, written) = looked.map_err(|error| ensemble.way.at(error))?;
                let known = watched.entry(key.clone()).or_default();
                known.wake_up(&key, row).into_iter().for_each(report);
                // A lease that has just arrived writes the row itself, which ends the watch.
                let until = known.ends_at().unwrap_or_else(|| Instant::now() + WATCHED);
                writes.push(next_write(key, written, until));
            }
            Some(key) = writes.next() => {
                let ends_at = watched.get(&key).and_then(Watched::ends_at);
                if ends_at.is_some_and(|ends_at| ends_at > Instant::now()) {
                    looks.push(look(ensemble, &client, key));
                } else {
                    watched.remove(&key);
                }
            }
            changed = session.changed() => state = changed,
        }
    }
    let message = format!("the session that listens for releases is {state}");
    Err(ensemble
        .way
        .at(StoreError::new(StoreErrorKind::Interrupted, message)))
}

/// Reads the row of a key, if it is there. Returns what tells of the next write, too.
async fn look(
    ensemble: &Ensemble,
    client: &Client,
    key: Key,
) -> Result<(Key, Option<LockRow>, OneshotWatcher), StoreError> {
    let path = ensemble.place.row(&key);
    loop {
        match client.get_and_watch_data(&path).await {
            Ok((data, stat, written)) => {
                let written_at = rows::written_at(&stat);
                // A row that cannot be read must not end the wake-ups of all keys. A caller that asks for it
                // gets the error.
                let row = row::read(&data, &key, written_at, written_at).ok();
                return Ok((key, row, written));
            }
            Err(Error::NoNode) => {
                let (stat, made) = client.check_and_watch_stat(&path).await.map_err(error::of_look)?;
                if stat.is_none() {
                    return Ok((key, None, made));
                }
            }
            Err(error) => return Err(error::of_look(error)),
        }
    }
}

/// Waits until the row of a key is written, but not for longer than `until`.
async fn next_write(key: Key, written: OneshotWatcher, until: Instant) -> Key {
    // If it is late, the caller knows whether somebody still waits.
    let _ = timeout_at(until, written.changed()).await;
    key
}

#[cfg(test)]
mod tests {
    use dblock::store::clock::Timestamp;

    use super::*;

    fn key() -> Key {
        Key::new(None, "k").unwrap()
    }

    /// A row that the lease holds, or a free one.
    fn row(lease: Option<Uuid>) -> LockRow {
        let mut row = LockRow::new(key(), Timestamp::EPOCH);
        if let Some(lease) = lease {
            (row.lease_id, row.reentrant_count, row.fence_token) = (lease, 1, 7);
        }
        row
    }

    fn waits(lease: Uuid) -> Watched {
        let mut watched = Watched::default();
        let key = key();
        watched.note(&Ask {
            key,
            lease,
            waits: true,
        });
        watched
    }

    #[test]
    fn what_became_of_a_release_is_told_although_the_row_was_written_again() {
        let [holder, next, other] = [(); 3].map(|()| Uuid::now_v7());
        let passed_on = |lease| Some(WakeUp::passed_on(key(), lease, 7));
        let mut watched = waits(next);
        let mut told = |lease| watched.wake_up(&key(), Some(row(lease)));
        assert_eq!(told(Some(holder)), None, "nothing is released");
        assert_eq!(told(Some(holder)), None, "it was renewed");
        assert_eq!(told(Some(other)), passed_on(other));
        assert_eq!(told(None), Some(WakeUp::Released(key())));
        assert_eq!(told(Some(next)), passed_on(next));
        // It was purged.
        assert_eq!(watched.wake_up(&key(), None), Some(WakeUp::Released(key())));
        // Between the answer to the ask and the first look.
        assert_eq!(
            waits(next).wake_up(&key(), Some(row(Some(next)))),
            passed_on(next)
        );
    }

    #[test]
    fn a_row_is_watched_as_long_as_a_lease_waits() {
        let [one, other] = [(); 2].map(|()| Uuid::now_v7());
        let mut watched = waits(one);
        let ask = |lease, waits| Ask {
            key: key(),
            lease,
            waits,
        };
        watched.note(&ask(other, true));
        assert!(watched.ends_at() > Some(Instant::now()));
        watched.note(&ask(one, false));
        assert!(watched.ends_at().is_some(), "the other one still waits");
        watched.wake_up(&key(), Some(row(Some(other))));
        assert_eq!(watched.ends_at(), None, "it has arrived");
    }
}
