//! Callers that do not get the lock: who is refused, when, and why.

use super::Machine;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::out::{Refusal, Reply};
use crate::engine::core::time::Time;
use crate::store::{StoreError, StoreErrorKind};

impl<A, C> Machine<A, C> {
    /// Refuses callers whose timeout has passed, and non-blocking callers of a key that is held.
    pub(super) fn refuse_overdue(&mut self, now: Time) {
        if self.queue.first_deadline().is_none_or(|deadline| now < deadline) && !self.queue.has_non_blocking()
        {
            return;
        }
        let mut holder = None;
        if let Some(held) = &self.held {
            if held.needs_release() {
                // Nobody holds the lock, but the row is not released yet: callers wait for that.
                self.asking.note_last_error(held.last_error(), now);
            } else {
                holder = Some(held.holder(now));
                self.refuse_non_blocking(Time::MAX, &Refusal::Busy(holder.clone()));
            }
        }
        if flawed(Flaw::TimeoutsAreForgotten) {
            return;
        }
        while let Some(waiter) = self.queue.pop_overdue(now) {
            let refusal = match &holder {
                Some(_) => Refusal::Busy(holder.clone()),
                None => self.asking.refusal(waiter.since, waiter.call.is_non_blocking()),
            };
            self.reply(Reply::Refused(waiter, refusal));
        }
    }

    pub(super) fn refuse_non_blocking(&mut self, came_before: Time, refusal: &Refusal) {
        while let Some(waiter) = self.queue.pop_non_blocking(came_before) {
            self.reply(Reply::Refused(waiter, refusal.clone()));
        }
    }

    pub(super) fn refuse_all(&mut self, nested_too: bool) {
        for waiter in self.queue.take(nested_too) {
            self.reply(Reply::Refused(waiter, Refusal::Shutdown));
        }
    }

    /// Refuses the callers for whom asking again cannot help.
    pub(super) fn refuse_hopeless(&mut self, error: &StoreError) {
        let refusal = Refusal::Store(error.clone());
        if error.kind() == StoreErrorKind::Unreachable {
            self.refuse_non_blocking(Time::MAX, &refusal);
        }
        if !error.is_retryable() {
            for waiter in self.queue.take(true) {
                self.reply(Reply::Refused(waiter, refusal.clone()));
            }
        }
    }
}
