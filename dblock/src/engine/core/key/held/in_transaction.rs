//! A lease that a transaction of the owner's keeps: see [`Held::keep_in_transaction`].

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{ENTERED, FIRST_RETRY, Held, Holds, State, Term, ended_reason};
use crate::engine::core::call::Call;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::ownership::Ownership;
use crate::engine::core::time::Time;
use crate::error::LostReason;
use crate::key::Key;

impl<C> Held<C> {
    /// A transaction of the owner's has freed the row, and keeps it locked until it ends: no ttl runs, and no
    /// request reaches the row. Refused when there is another hold: it would go on in a lock that ends.
    pub(crate) fn keep_in_transaction(
        &mut self,
        ownership: &Arc<Ownership>,
        now: Time,
    ) -> Result<(), LostReason> {
        if !matches!(self.state, State::Held(Holds { count: 1, .. }))
            && !flawed(Flaw::TransactionsIgnoreOtherHolds)
        {
            return Err(ended_reason(ownership));
        }
        self.pin(ownership)?;
        self.term = Term::Transaction;
        self.current.move_deadline(Time::MAX, now);
        Ok(())
    }

    /// A transaction ends it.
    pub(super) fn is_in_transaction(&self) -> bool {
        matches!(self.term, Term::Transaction)
    }

    /// An owner holds it, and the lease ends with a transaction of that owner's.
    pub(crate) fn is_kept_in_transaction(&self) -> bool {
        self.is_in_transaction() && self.is_held()
    }

    /// The owner's transaction has committed, and with it the release.
    pub(crate) fn committed(&mut self, now: Time) -> Option<Duration> {
        let held_for = self.end_ownership(now);
        self.released(now);
        held_for
    }

    /// Another call in the transaction that keeps the row locked.
    pub(crate) fn enter_again(
        &mut self,
        lease_id: Uuid,
        call: &Arc<Call>,
        key: &Key,
        now: Time,
    ) -> Option<Arc<Ownership>> {
        if self.left_in_transaction().is_none() || self.lease_id != lease_id {
            return None;
        }
        let ids = (lease_id, self.current.fence_token);
        let ownership = Ownership::new(key.clone(), Arc::clone(call), ids, (now, now), Time::MAX);
        self.current = Arc::new(ownership);
        self.ttl = call.options.ttl;
        self.state = ENTERED;
        Some(Arc::clone(&self.current))
    }

    /// The transaction that keeps the row locked may have ended.
    pub(crate) fn woken(&mut self) {
        if self.left_in_transaction().is_some() {
            self.retry_at = None;
            self.pause = FIRST_RETRY;
        }
    }

    /// The lease that a transaction keeps although its owner has left. The transaction may have ended
    /// unnoticed.
    pub(crate) fn left_in_transaction(&self) -> Option<(Uuid, i64)> {
        (self.is_in_transaction() && self.needs_release())
            .then_some((self.lease_id, self.current.fence_token))
    }
}
