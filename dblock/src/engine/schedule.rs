//! The keys that have something to send, and the times at which the driver looks at a key again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cells::Cell;
use super::core::dispatch::Dispatch;
use super::core::env::Time;

pub(super) struct Schedule {
    pub(super) dispatch: Dispatch<Arc<Cell>>,
    looks: BTreeMap<(Time, u64), Arc<Cell>>,
    /// When the driver looks next by itself, as it knew when it went to sleep, or a sooner time that woke it.
    pub(super) next_look: Option<Time>,
}

impl Schedule {
    pub(super) fn new(dispatch: Dispatch<Arc<Cell>>) -> Self {
        Self {
            dispatch,
            looks: BTreeMap::new(),
            next_look: None,
        }
    }

    /// Schedules a look at the key at `at`, unless one is due sooner. Returns whether the driver must be
    /// woken.
    pub(super) fn look(&mut self, cell: &Arc<Cell>, at: Time) -> bool {
        let registered = cell.look_at.load(Ordering::Acquire);
        if registered != 0 && registered <= at.as_nanos() {
            // A later step has already scheduled a sooner look.
            return false;
        }
        self.look_never(cell);
        cell.look_at.store(at.as_nanos().max(1), Ordering::Release);
        self.looks.insert((at, cell.id), Arc::clone(cell));
        let sooner = self.next_look.is_none_or(|next_look| at < next_look);
        if sooner {
            self.next_look = Some(at);
        }
        sooner
    }

    pub(super) fn look_never(&mut self, cell: &Arc<Cell>) {
        let registered = cell.look_at.swap(0, Ordering::AcqRel);
        if registered != 0 {
            self.looks.remove(&(Time::from_nanos(registered), cell.id));
        }
    }

    pub(super) fn pop_due(&mut self, now: Time) -> Option<Arc<Cell>> {
        let first = self.looks.first_entry().filter(|first| first.key().0 <= now)?;
        let cell = first.remove();
        cell.look_at.store(0, Ordering::Release);
        Some(cell)
    }

    /// When the driver has to look again by itself.
    pub(super) fn next_look(&mut self) -> Option<Time> {
        let look = self.looks.first_key_value().map(|((at, _), _)| *at);
        self.next_look = look.into_iter().chain(self.dispatch.coalesces_until()).min();
        self.next_look
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::engine::cells::Cells;
    use crate::key::Key;

    /// Two steps of one key may reach the schedule in the other order.
    #[test]
    fn a_later_look_does_not_take_the_place_of_a_sooner_one() {
        let cell = Cells::new().find_or_make(&Key::new(None, "key").unwrap());
        let mut schedule = Schedule::new(Dispatch::new(1, 1));
        let at = |ms| Time::from_nanos(0) + Duration::from_millis(ms);
        assert!(schedule.look(&cell, at(100)));
        assert!(!schedule.look(&cell, at(10_000)));
        assert_eq!(schedule.next_look(), Some(at(100)));
        assert!(schedule.look(&cell, at(50)));
        assert_eq!(schedule.next_look(), Some(at(50)));
        assert_eq!(schedule.looks.len(), 1);
    }
}
