//! The work that is still to be done for a key. The driver counts keys by it, and forgets those that need
//! nothing.

use super::Machine;
use super::held::Held;
use super::sending::{OnItsWay, Sent};
use crate::store::Action;

impl<A, C> Machine<A, C> {
    /// A release must still be written to the row, or is on its way.
    pub(crate) fn has_release_pending(&self) -> bool {
        // An acquire that no caller waits for any more is released once it is granted.
        let releases = |sent: &OnItsWay| match &sent.what {
            Sent::Abandoned => true,
            Sent::OwnLease(action) => matches!(action, Action::Release),
            Sent::Acquire(_) => self.queue.is_empty(),
            Sent::Arriving { .. } => false,
        };
        !self.abandoned.is_empty()
            || self.held.as_ref().is_some_and(Held::needs_release)
            || self.on_its_way.as_ref().is_some_and(releases)
    }

    /// An owner holds the lock, or is about to enter or has just left: a shutdown gives them its grace.
    /// Leases that no caller took, and rows that `hold_min` keeps busy by themselves, need none.
    pub(crate) fn needs_grace(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.lingers_by_itself()) || self.on_its_way.is_some()
    }

    /// A lease is held or abandoned, or a request is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.is_some() || !self.abandoned.is_empty() || self.on_its_way.is_some()
    }

    /// Nothing needs to be known about the key.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy() && self.queue.is_empty() && self.asking.stand.is_none() && self.listed.is_none()
    }
}
