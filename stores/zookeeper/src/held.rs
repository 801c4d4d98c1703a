//! The rows of the leases that this store holds, as it last saw them. So a renewal and a release are one write each,
//! with no read before it.
//!
//! A row that is kept here is a guess, because anybody may write a row at any time. The write
//! names the version of the node and that of `purges`, so ZooKeeper refuses it if the guess is wrong, and the
//! row is read.
//!
//! A process that waits for a lock writes itself into the row, so a task for each lease watches it. The task
//! ends with the lease, or with the session: nothing is kept of keys that are not held. Most locks are held
//! for a moment, and nobody waits: their rows are not watched, because that would cost more than it saves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use dblock_core::Key;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;
use zookeeper_client::Client;

use crate::place::Place;
use crate::rows::{self, Found};

/// How long a lock is held before its row is watched, if nobody is known to wait.
const MOMENT: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct Held {
    leases: Arc<Leases>,
}

#[derive(Default)]
struct Leases(Mutex<HashMap<Key, Lease>>);

struct Lease {
    id: Uuid,
    /// `None` while it is read again.
    found: Option<Found>,
    follows: AbortOnDropHandle<()>,
}

impl Held {
    /// Keeps the row of a lease that has just got it or extended itself.
    pub(crate) fn keep(&self, place: &Place, client: &Client, found: Found) {
        let (key, id) = (found.row.key.clone(), found.row.lease_id);
        let wanted = found.row.wanted_until > found.row.now;
        let mut leases = self.leases.all();
        match leases.get_mut(&key) {
            Some(lease) if lease.id == id => lease.found = Some(found),
            _ => {
                let (leases_then, place, client) =
                    (Arc::downgrade(&self.leases), place.clone(), client.clone());
                let follow = follow(leases_then, place, client, key.clone(), id, wanted);
                let lease = Lease {
                    id,
                    found: Some(found),
                    follows: AbortOnDropHandle::new(tokio::spawn(follow)),
                };
                leases.insert(key, lease);
            }
        }
    }

    /// The row of a lease, if it is known.
    pub(crate) fn known(&self, key: &Key, id: Uuid) -> Option<Found> {
        let leases = self.leases.all();
        leases.get(key).filter(|lease| lease.id == id)?.found.clone()
    }

    /// The row of a lease that is about to be released, if it is known.
    pub(crate) fn take(&self, key: &Key, id: Uuid) -> Option<Found> {
        let mut leases = self.leases.all();
        leases.get(key).filter(|lease| lease.id == id)?;
        let lease = leases.remove(key)?;
        // The release itself wakes the task, which then ends. Ended now, it would ask ZooKeeper to take the
        // watch back.
        lease.follows.detach();
        lease.found
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        self.leases.all().clear();
    }
}

impl Leases {
    fn has(&self, key: &Key, id: Uuid) -> bool {
        self.all().get(key).is_some_and(|lease| lease.id == id)
    }

    fn set(&self, key: &Key, id: Uuid, found: Option<Found>) {
        if let Some(lease) = self.all().get_mut(key).filter(|lease| lease.id == id) {
            lease.found = found;
        }
    }

    fn end(&self, key: &Key, id: Uuid) {
        let mut leases = self.all();
        if leases.get(key).is_some_and(|lease| lease.id == id) {
            leases.remove(key);
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Lease>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the row of a lease after each write, until the lease is released or over. An error ends it too: then
/// the release reads the row.
async fn follow(leases: Weak<Leases>, place: Place, client: Client, key: Key, id: Uuid, wanted: bool) {
    let set = |found| {
        if let Some(leases) = leases.upgrade() {
            leases.set(&key, id, found);
        }
    };
    if !wanted {
        sleep(MOMENT).await;
    }
    while leases.upgrade().is_some_and(|leases| leases.has(&key, id))
        && let Ok((found, written)) = rows::watch(&place, &client, &key).await
        && found.is_of(id)
    {
        let left = found.row.expire_at.since(found.row.now);
        set(Some(found));
        tokio::select! {
            _ = written.changed() => {}
            () = sleep(left) => break,
        }
        set(None);
    }
    if let Some(leases) = leases.upgrade() {
        leases.end(&key, id);
    }
}

#[cfg(test)]
mod tests;
