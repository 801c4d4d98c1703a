//! Local hand-over: the next caller of this process enters with the same lease.

use std::mem;
use std::sync::Arc;

use super::{ENTERED, Held, ROW_FOLLOWS_WITHIN, State, Term, Times};
use crate::key::Key;
use crate::machine::env::Time;
use crate::machine::key::queue::WaitQueue;
use crate::machine::out::{Note, Waiter};
use crate::machine::ownership::Ownership;
use crate::options::LockOptions;

impl<C> Held<C> {
    /// How often the lock was handed over locally.
    pub(crate) fn hand_overs(&self) -> u32 {
        u32::try_from(self.current.fence_token - self.granted_token).unwrap_or(u32::MAX)
    }

    /// Moves the end of local hand-over to `until`, if it is still allowed.
    pub(crate) fn hand_over_until(&mut self, until: Time) {
        if let Some(before) = &mut self.hand_over_until {
            *before = until;
        }
    }

    /// The next caller, which enters without the store, where the rules allow it.
    pub(crate) fn hand_over<A>(
        &mut self,
        queue: &mut WaitQueue<A>,
        key: &Key,
        now: Time,
    ) -> Option<Waiter<A>> {
        let in_stretch = self.hand_over_until.is_some_and(|until| now < until);
        let not_sent = matches!(self.state, State::ReleaseDue);
        if !not_sent
            || !in_stretch
            || self.undo.is_some()
            || self.is_shared()
            || self.current.hold_min_until.is_some()
            || self.current.is_revoked()
        {
            return None;
        }
        if self.hand_overs() == self.spare_tokens || self.current.fence_token == i64::MAX {
            return None;
        }
        let times = Times {
            since: now,
            ..*self.times()?
        };
        let confirmed = times.store_end.since(now);
        let next = queue.pop_if(
            |LockOptions {
                 ttl, renew, limit, ..
             }| {
                limit.is_none() && *renew && confirmed >= ttl.mul_f64(2.0 / 3.0) && now < times.deadline(*ttl)
            },
        )?;
        let token = self.current.fence_token + 1;
        self.term = Term::Times(times);
        self.ttl = next.call.options.ttl;
        let deadline = times.deadline(self.ttl);
        let ownership = Arc::new(Ownership::new(
            key.clone(),
            Arc::clone(&next.call),
            self.lease_id,
            token,
            now,
            deadline,
        ));
        self.state = ENTERED;
        let waited = Note::Waited(Arc::clone(&ownership), now.since(next.since));
        let former = mem::replace(&mut self.current, ownership);
        self.notes.extend([waited, Note::HandedOver(former)]);
        self.follow_at.get_or_insert(now + ROW_FOLLOWS_WITHIN);
        // The former owner need not wait until the row names the next one.
        self.confirmations.reply_to_waiting();
        Some(next)
    }
}
