//! The places as successor that this process has. They tell what the end of a holder's key means: etcd
//! reports that the key is gone, and not who is next.
//!
//! A place that is missing here costs a quick wake-up: the next ask finds it. A place that is wrong here
//! would let two in.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dblock_core::Key;
use uuid::Uuid;

use crate::keys::Slot;

/// So many locks are kept of which a key was deleted.
const MOST_DELETED: usize = 1_000;

#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    all: HashMap<Key, Place>,
    /// The revisions at which a key of these locks was last deleted. An operator may delete a place before
    /// the answer arrives that tells of it. If the place were believed, this process would enter together
    /// with the one that is next by then.
    deleted: HashMap<Key, i64>,
    /// The watch reports what happens after this revision. A place that was written earlier may be gone
    /// unseen.
    watched_since: i64,
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) lease_id: Uuid,
    /// The token of the lease when the lock is its own.
    pub(crate) fence_token: i64,
    /// The slot of the holder that it waits for.
    pub(crate) behind: Slot,
    /// The revision at which it was written. An earlier end of a key was that of an earlier holder.
    pub(crate) revision: i64,
}

impl Places {
    pub(crate) fn insert(&self, key: Key, place: Place) {
        let mut state = self.state();
        let deleted = state.deleted.get(&key).is_some_and(|at| *at > place.revision);
        if place.revision >= state.watched_since && !deleted {
            state.all.insert(key, place);
        }
    }

    /// A watch begins behind this revision.
    pub(crate) fn watched_since(&self, revision: i64) {
        let mut state = self.state();
        state.watched_since = revision;
        state.all.retain(|_, place| place.revision >= revision);
    }

    /// The lease is over.
    pub(crate) fn remove(&self, key: &Key, lease_id: Uuid) {
        let mut state = self.state();
        if state.all.get(key).is_some_and(|place| place.lease_id == lease_id) {
            state.all.remove(key);
        }
    }

    /// A key is gone since this revision. The place to which the lock was passed on by that, if it is of this
    /// process.
    pub(crate) fn passed_on(&self, key: &Key, slot: Slot, revision: i64) -> Option<Place> {
        let mut state = self.state();
        if state.deleted.len() == MOST_DELETED {
            // With what is forgotten here, no earlier place is believed any more whose answer is still to
            // come.
            let forgotten = state.deleted.drain().map(|(_, at)| at);
            state.watched_since = forgotten.fold(revision, i64::max);
        }
        // A watch on a member that lags tells of an earlier one again.
        let newest = state.deleted.entry(key.clone()).or_default();
        *newest = revision.max(*newest);
        let place = state.all.get(key).filter(|place| place.revision < revision)?;
        let passed_on = place.behind == slot;
        // The other slot is that of the place, which has ended.
        state.all.remove(key).filter(|_| passed_on)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Place {
        Place {
            lease_id: Uuid::nil(),
            fence_token: 7,
            behind: Slot::First,
            revision: 5,
        }
    }

    fn places(key: &Key) -> Places {
        let places = Places::default();
        places.insert(key.clone(), place());
        places
    }

    #[test]
    fn a_lock_is_passed_on_by_the_end_of_the_holder_that_was_waited_for() {
        let key = Key::new(None, "k").unwrap();
        let token = |places: &Places, slot, revision| {
            let place = places.passed_on(&key, slot, revision);
            place.map(|place| place.fence_token)
        };
        let queued = places(&key);
        assert_eq!(token(&queued, Slot::First, 4), None, "an earlier holder");
        assert_eq!(token(&queued, Slot::First, 6), Some(7));
        assert_eq!(token(&queued, Slot::First, 8), None, "once");
        let lapsed = places(&key);
        assert_eq!(
            token(&lapsed, Slot::Second, 6),
            None,
            "the place itself has ended"
        );
        assert_eq!(token(&lapsed, Slot::First, 7), None);
        let withdrawn = places(&key);
        withdrawn.remove(&key, Uuid::max());
        withdrawn.remove(&key, Uuid::nil());
        assert_eq!(token(&withdrawn, Slot::First, 6), None);
    }

    /// The place ended while nobody watched, and the holder that goes now is another one.
    #[test]
    fn a_place_from_before_the_watch_is_not_believed() {
        let key = Key::new(None, "k").unwrap();
        let before = places(&key);
        before.watched_since(6);
        assert!(before.passed_on(&key, Slot::First, 7).is_none());
        // The answer that tells of the place comes after the watch has begun.
        before.insert(key.clone(), place());
        assert!(before.passed_on(&key, Slot::First, 7).is_none());
        let since = places(&key);
        since.watched_since(5);
        assert!(since.passed_on(&key, Slot::First, 6).is_some());
    }
    /// An operator deletes the place while the process waits for the answer that tells of it.
    #[test]
    fn a_place_that_was_deleted_before_its_answer_is_not_believed() {
        let key = Key::new(None, "k").unwrap();
        let places = Places::default();
        assert!(places.passed_on(&key, Slot::Second, 6).is_none());
        places.insert(key.clone(), place());
        assert!(places.passed_on(&key, Slot::First, 8).is_none());
        // The place that was written next is.
        let revision = 9;
        places.insert(key.clone(), Place { revision, ..place() });
        assert!(places.passed_on(&key, Slot::First, 10).is_some());
        // A member that lags tells of an earlier deletion again.
        let lagging = Places::default();
        for revision in [9, 6] {
            assert!(lagging.passed_on(&key, Slot::Second, revision).is_none());
        }
        let revision = 8;
        lagging.insert(key.clone(), Place { revision, ..place() });
        assert!(lagging.passed_on(&key, Slot::First, 10).is_none());
        // So much was deleted since that nobody knows of this key any more.
        let forgetful = Places::default();
        assert!(forgetful.passed_on(&key, Slot::Second, 6).is_none());
        for (number, revision) in (0..MOST_DELETED).zip(7..) {
            let other = Key::new(None, &format!("k{number}")).unwrap();
            assert!(forgetful.passed_on(&other, Slot::First, revision).is_none());
        }
        forgetful.insert(key.clone(), place());
        assert!(forgetful.passed_on(&key, Slot::First, i64::MAX).is_none());
    }
}
