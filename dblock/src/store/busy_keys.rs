//! The keys that were busy when they were last asked for. A waiting caller asks for its key again and again.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Key;
use crate::store::sharing::asks_to_share;
use crate::store::{Action, Outcome, Request, StoreError};

/// The most keys that are remembered. A process that waits for more sends most of its requests twice.
const MOST: usize = 4096;

/// Decides only which statement is tried first: for a remembered key, the one for busy keys. A wrong guess costs
/// one statement.
#[derive(Debug, Default)]
pub(crate) struct BusyKeys(Mutex<HashSet<Key>>);

impl BusyKeys {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys().contains(key)
    }

    /// Remembers the keys that answers to acquires and extends show to be busy.
    pub(crate) fn note(&self, requests: &[Request], answers: &[Result<Outcome, StoreError>]) {
        // A key that is extended is ours, even if no acquire has shown that.
        let telling = requests.iter().zip(answers).filter(|(request, answer)| {
            matches!(request.action, Action::Acquire(_)) || matches!(answer, Ok(Outcome::Extended { .. }))
        });
        let mut keys = self.keys();
        for (request, answer) in telling {
            match answer {
                Ok(Outcome::Busy(_) | Outcome::Queued { .. }) => insert(&mut keys, request),
                Ok(_) => drop(keys.remove(&request.key)),
                Err(_) => {}
            }
        }
    }

    /// Also remembers our keys with waiters. Called after [`note`](Self::note).
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) fn note_wanted(&self, requests: &[Request], answers: &[Result<Outcome, StoreError>]) {
        let wanted = requests.iter().zip(answers).filter(|(_, answer)| {
            use Outcome::{Extended, Granted};
            matches!(
                answer,
                Ok(Granted { wanted: true, .. } | Extended { wanted: true, .. })
            )
        });
        let mut keys = self.keys();
        wanted.for_each(|(request, _)| insert(&mut keys, request));
    }

    /// Remembers other keys: those that this process shares. A release of one is probably that of a shared hold.
    #[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
    pub(crate) fn note_shared(&self, requests: &[Request], answers: &[Result<Outcome, StoreError>]) {
        for (request, answer) in requests.iter().zip(answers) {
            match answer {
                Ok(Outcome::Granted { .. } | Outcome::Extended { .. }) if asks_to_share(&request.action) => {
                    insert(&mut self.keys(), request);
                }
                Ok(Outcome::Released(_)) => drop(self.keys().remove(&request.key)),
                _ => {}
            }
        }
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<Key>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn insert(keys: &mut HashSet<Key>, request: &Request) {
    if keys.len() >= MOST {
        keys.clear();
    }
    keys.insert(request.key.clone());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uuid::Uuid;

    use super::*;
    use crate::store::{Acquire, Holder};

    fn acquires(count: usize) -> Vec<Request> {
        let acquire = |number| {
            let key = Key::new(None, &format!("key {number}")).unwrap();
            let ask = Acquire::new(Uuid::nil(), Duration::from_secs(1), "test");
            Request::new(key, Uuid::nil(), Action::Acquire(ask))
        };
        (0..count).map(acquire).collect()
    }

    fn busy() -> Outcome {
        Outcome::Busy(Holder::new(Uuid::nil(), String::new(), 1, Some(Duration::ZERO)))
    }

    fn wanted() -> Outcome {
        Outcome::granted(1, Duration::ZERO).with_wanted(true)
    }

    /// Keys that are busy, and keys that others want.
    #[test]
    fn no_more_keys_are_kept_than_the_most() {
        let requests = acquires(MOST + 1);
        for (note, outcome) in [
            (BusyKeys::note as fn(&BusyKeys, &[_], &[_]), busy()),
            (BusyKeys::note_wanted, wanted()),
        ] {
            let keys = BusyKeys::default();
            let (last, before) = requests.split_last().unwrap();
            let answers = vec![Ok(outcome); MOST];
            note(&keys, before, &answers);
            assert_eq!(keys.keys().len(), MOST);
            note(&keys, std::slice::from_ref(last), &answers[..1]);
            assert!(keys.contains(&last.key));
            assert!(keys.keys().len() <= MOST);
        }
    }
}
