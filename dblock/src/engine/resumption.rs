//! A short wait for callers that were just answered.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::sync::Notify;

/// The callers that a batch has answered and that do not run yet. They are likely to send a request at once,
/// so the next batch waits a moment for them.
pub(super) struct Resumption {
    callers: AtomicUsize,
    /// A batch is waiting for them.
    waited_for: AtomicBool,
    /// Wakes the driver.
    wake: Arc<Notify>,
}

impl Resumption {
    pub(super) fn new(wake: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            callers: AtomicUsize::new(0),
            waited_for: AtomicBool::new(false),
            wake: Arc::clone(wake),
        })
    }

    /// Whether to wait: some callers do not run yet. The last of them wakes the driver.
    pub(super) fn wait(&self) -> bool {
        self.waited_for.store(true, Ordering::SeqCst);
        self.callers.load(Ordering::SeqCst) > 0
    }
}

/// One of the callers.
pub(crate) struct Resuming(Arc<Resumption>);

impl Resuming {
    pub(super) fn new(resumption: &Arc<Resumption>) -> Self {
        resumption.callers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(resumption))
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        let last = self.0.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.waited_for.load(Ordering::SeqCst) {
            self.0.wake.notify_one();
        }
    }
}

impl fmt::Debug for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resuming")
    }
}
