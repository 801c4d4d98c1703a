//! Guesses whether the next run has a new key, from the runs before it.

use std::sync::atomic::{AtomicU32, Ordering};

/// After this many new keys in a row the next one is expected to be new. So at most one replay in nine takes
/// the lock.
const IN_A_ROW: u32 = 8;

/// A call whose key is new needs no read before it asks for the lock: the beginning of its run then finds no
/// record. A wrong guess costs a lock and its release.
#[derive(Debug, Default)]
pub(crate) struct NewKeys(AtomicU32);

impl NewKeys {
    pub(crate) fn are_expected(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// Notes whether a call found its key new.
    pub(crate) fn note(&self, is_new: bool) {
        let row = self.0.load(Ordering::Relaxed);
        self.0
            .store(if is_new { row.saturating_add(1) } else { 0 }, Ordering::Relaxed);
    }
}
