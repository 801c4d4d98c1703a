//! Runs in doubt, in the log: nothing else may tell that a person has to decide.

use crate::Key;
use crate::runs::OnCrash;

/// An attempt whose outcome is not known to be recorded. Dropped as such it is in doubt, unless its run may be
/// repeated: its future was dropped, its body panicked or was stopped, or the store did not answer.
#[derive(Debug)]
pub(super) struct Attempted<'a> {
    pub(super) key: &'a Key,
    pub(super) attempt: u32,
    pub(super) on_crash: OnCrash,
    pub(super) is_recorded: bool,
}

impl Drop for Attempted<'_> {
    fn drop(&mut self) {
        if self.on_crash == OnCrash::Stop && !self.is_recorded {
            tracing::warn!(key = %self.key.typed(), attempt = self.attempt,
                "a run is in doubt: it ended without an outcome that is known to be recorded, so somebody must find out what it \
                 did, and decide with `Admin::resolve`");
        }
    }
}

/// A call has found a run in doubt, and runs nothing.
pub(super) fn found(key: &Key, attempt: u32, holder: &str) {
    tracing::warn!(key = %key.typed(), attempt, holder,
        "a run is still in doubt, so the call was refused: somebody must find out what it did, and decide with \
         `Admin::resolve`");
}
