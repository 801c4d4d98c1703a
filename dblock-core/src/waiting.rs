//! What a call that waits for a lock is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::Key;
use crate::store::Holder;

/// What a call that waits for a lock sees: [`LockOptions::on_wait`](crate::LockOptions::on_wait).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The key that the call waits for: of several, the one that was busy.
    pub key: Key,
    /// The holder, where known.
    pub holder: Option<Holder>,
    /// How long the call has waited.
    pub waited: Duration,
    /// How many calls of this process come before it. Those of other processes are not counted.
    pub ahead: usize,
}

/// A function of the application's. Two are equal if they are the same value.
#[doc(hidden)]
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&Waiting) + Send + Sync>);

impl OnWait {
    pub(crate) fn new(told: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    #[doc(hidden)]
    pub fn tell(&self, key: Key, holder: Option<Holder>, waited: Duration, ahead: usize) {
        (self.0)(&Waiting {
            key,
            holder,
            waited,
            ahead,
        });
    }
}

impl PartialEq for OnWait {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OnWait {}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWait")
    }
}
