//! Which keys were busy when they were last asked for: a caller that waits asks again and again.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::key::Key;
use crate::store::Outcome;

/// How many keys are remembered.
const MOST: usize = 4096;

/// Says which statement to try first, and decides nothing: a key that is here is looked at before it is asked
/// for, so that polls do not need the file's only write lock. A wrong word costs one statement.
#[derive(Debug, Default)]
pub(super) struct BusyKeys(Mutex<HashSet<Key>>);

impl BusyKeys {
    pub(super) fn contains(&self, key: &Key) -> bool {
        self.keys().contains(key)
    }

    pub(super) fn note(&self, key: &Key, outcome: &Outcome) {
        match outcome {
            Outcome::Busy(_) => {
                let mut keys = self.keys();
                if keys.len() >= MOST {
                    keys.clear();
                }
                keys.insert(key.clone());
            }
            Outcome::Granted { .. } => drop(self.keys().remove(key)),
            _ => {}
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
