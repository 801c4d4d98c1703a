//! The callers of this process that want one key, first in first out. The engine puts them in and answers
//! them; an owner that leaves takes the next one out to hand the lock over.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use super::waiter::{AcquireCall, Waiter};

#[derive(Debug, Default)]
pub(super) struct Line(Mutex<Callers>);

#[derive(Debug, Default)]
struct Callers {
    waiters: VecDeque<Waiter>,
    /// How many of them do not wait while the key is busy.
    impatient: usize,
    /// No deadline is earlier. It may be that of a caller that has been answered.
    first_deadline: Option<Instant>,
}

impl Line {
    fn callers(&self) -> MutexGuard<'_, Callers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, waiter: Waiter) {
        let mut callers = self.callers();
        callers.count_in(&waiter);
        callers.waiters.push_back(waiter);
    }

    /// Puts a caller back whose grant came too late to be of use.
    pub(super) fn push_front(&self, waiter: Waiter) {
        let mut callers = self.callers();
        callers.count_in(&waiter);
        callers.waiters.push_front(waiter);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.callers().waiters.is_empty()
    }

    pub(super) fn has_impatient(&self) -> bool {
        self.callers().impatient > 0
    }

    /// When to look for callers whose time is over.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.callers().first_deadline
    }

    /// What `read` says of the first caller and of how many there are, and how many of them wait.
    pub(super) fn first<T>(&self, read: impl FnOnce(&Waiter, usize, usize) -> T) -> Option<T> {
        let callers = self.callers();
        let all = callers.waiters.len();
        let first = callers.waiters.front()?;
        Some(read(first, all, all - callers.impatient))
    }

    pub(super) fn remove(&self, id: u64) -> Option<Waiter> {
        let mut callers = self.callers();
        let at = callers.waiters.iter().position(|waiter| waiter.id == id)?;
        let waiter = callers.waiters.remove(at)?;
        callers.count_out(&waiter);
        Some(waiter)
    }

    /// Takes the first caller that is still there out, if it is in time and passes `test`.
    pub(super) fn pop_if(&self, now: Instant, test: impl FnOnce(&AcquireCall) -> bool) -> Option<Waiter> {
        let mut callers = self.callers();
        while callers.waiters.front().is_some_and(Waiter::is_gone) {
            callers.pop();
        }
        let first = callers.waiters.front()?;
        let in_time = first.deadline.is_none_or(|deadline| now < deadline);
        if in_time && test(&first.call) {
            callers.pop()
        } else {
            None
        }
    }

    /// Takes all callers out that pass `test`, for instance because their time is over.
    pub(super) fn take_if(&self, mut test: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let mut callers = self.callers();
        if !callers.waiters.iter().any(&mut test) {
            callers.first_deadline = callers.waiters.iter().filter_map(|waiter| waiter.deadline).min();
            return Vec::new();
        }
        let all = std::mem::take(&mut *callers);
        let mut taken = Vec::new();
        for waiter in all.waiters {
            if test(&waiter) {
                taken.push(waiter);
            } else {
                callers.count_in(&waiter);
                callers.waiters.push_back(waiter);
            }
        }
        taken
    }
}

impl Callers {
    fn count_in(&mut self, waiter: &Waiter) {
        self.impatient += usize::from(waiter.is_impatient());
        self.first_deadline = self.first_deadline.into_iter().chain(waiter.deadline).min();
    }

    fn count_out(&mut self, waiter: &Waiter) {
        self.impatient -= usize::from(waiter.is_impatient());
    }

    fn pop(&mut self) -> Option<Waiter> {
        let waiter = self.waiters.pop_front()?;
        self.count_out(&waiter);
        Some(waiter)
    }
}
