//! What a call that waits for a lock is told.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::key::Key;
use crate::store::Holder;

/// What a call that waits for a lock sees: [`LockOptions::on_wait`](crate::LockOptions::on_wait).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiting {
    /// The key that the call waits for: of several, the one that was busy.
    pub key: Key,
    /// The holder. `None` where it is not known: the store has not answered, a transaction has the row locked, or another
    /// call of this process is about to take the lock.
    pub holder: Option<Holder>,
    /// How long the call has waited for this key.
    pub waited: Duration,
    /// How many calls of this process come before it. Those of other processes are not counted.
    pub ahead: usize,
}

// Boxed, so that options, which futures hold, are smaller by a word.
type Told = Box<dyn Fn(&Waiting) + Send + Sync>;

/// A function of the application's. Two are equal if they are the same value.
#[doc(hidden)]
#[derive(Clone)]
pub struct OnWait(Arc<Told>);

/// The same function, for as long as the options that name it live: a lock must not keep it, nor drop it.
#[doc(hidden)]
#[derive(Clone)]
pub struct TellsWait(Weak<Told>);

impl OnWait {
    pub(crate) fn new(told: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Box::new(told)))
    }

    #[doc(hidden)]
    pub fn while_it_lives(&self) -> TellsWait {
        TellsWait(Arc::downgrade(&self.0))
    }
}

impl TellsWait {
    #[doc(hidden)]
    pub fn tell(&self, key: Key, holder: Option<Holder>, waited: Duration, ahead: usize) {
        if let Some(told) = self.0.upgrade() {
            told(&Waiting {
                key,
                holder,
                waited,
                ahead,
            });
        }
    }
}

// It is called only where its panic is the call's.
impl UnwindSafe for OnWait {}
impl RefUnwindSafe for OnWait {}

impl fmt::Debug for TellsWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TellsWait")
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
