//! What a lease lasts for: as long as the store granted it, or as long as a transaction of the owner's keeps it
//! (see [`Held::keep_in_transaction`] and [`Held::taken`]).

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{ENTERED, FIRST_RETRY, Held, Holds, State, ended_reason};
use crate::error::LostReason;
use crate::key::Key;
use crate::machine::call::Call;
use crate::machine::env::Time;
use crate::machine::key::Left;
use crate::machine::ownership::Ownership;
use crate::options;

/// A lease as the store granted it or passed it on to this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
    /// Tokens kept free above `fence_token`, for local hand-overs.
    pub(crate) spare_tokens: u32,
    pub(crate) times: Times,
    /// The owner that the row names. `None` after a pass-on: then the owner in the row is unknown, and less
    /// than the whole lease may be left.
    pub(crate) row_owner: Option<Uuid>,
    /// Others want the key: another process, or an earlier ask of this one.
    pub(crate) wanted: bool,
    /// A shared hold: the limit with which it was asked for.
    pub(crate) limit: Option<u32>,
}

/// What ends a lease.
#[derive(Debug, Clone, Copy)]
pub(super) enum Term {
    Times(Times),
    /// A transaction of the owner's: no ttl runs, and no request reaches the row.
    Transaction(Kept),
}

/// What a transaction keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// A lease, whose end it has written.
    Lease,
    /// The key itself, which it has taken: nobody else sees its lease id in the row before the commit.
    Key,
}

/// The ends of a lease that a ttl ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The lease's earliest end in the store, counted from when the request was sent.
    pub(crate) store_end: Time,
    /// Its latest end there, counted from the answer.
    pub(crate) over_at: Time,
    /// The ttl for which the store gave the lease. The margin is computed from it.
    pub(crate) length: Duration,
    /// The owner's ttl counts from here: when the last grant or extension was sent, or when the owner entered
    /// by a local hand-over or a wake-up.
    pub(crate) since: Time,
}

impl Times {
    /// The local deadline for an owner that asks for `ttl`, the earlier of two times. One is a margin before
    /// `store_end`. The other is a margin before the owner's own ttl has passed: a former owner may have had
    /// a longer one.
    pub(crate) fn deadline(&self, ttl: Duration) -> Time {
        let in_store = self.store_end.before(options::margin(self.length));
        in_store.min((self.since + ttl).before(options::margin(ttl)))
    }

    /// When the confirmed part of the owner's ttl ends.
    pub(super) fn confirmed_until(&self, ttl: Duration) -> Time {
        self.store_end.min(self.since + ttl)
    }
}

impl<C> Held<C> {
    /// A transaction of the owner's has freed the row, and keeps it locked until it ends: no ttl runs, and no
    /// request reaches the row. Refused when there is another hold: it would go on in a lock that ends.
    pub(crate) fn keep_in_transaction(
        &mut self,
        ownership: &Arc<Ownership>,
        now: Time,
    ) -> Result<(), LostReason> {
        if !matches!(self.state, State::Held(Holds { count: 1, .. })) {
            return Err(ended_reason(ownership));
        }
        self.pin(ownership)?;
        self.term = Term::Transaction(Kept::Lease);
        self.current.move_deadline(Time::MAX, now);
        Ok(())
    }

    /// A transaction ends it.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.term, Term::Transaction(_))
    }

    /// An owner holds it, and the lease ends with a transaction of that owner's.
    pub(crate) fn is_kept_in_transaction(&self) -> bool {
        self.is_in_transaction() && self.is_held()
    }

    /// The owner's transaction is over, and the key is free.
    pub(crate) fn transaction_over(&mut self, now: Time) -> Option<Duration> {
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
        let token = self.current.fence_token;
        let ownership = Ownership::new(key.clone(), Arc::clone(call), lease_id, token, now, Time::MAX);
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

    /// Callers wait for the transaction's end, or for room in a row that others lock: the next look comes at `by` at the
    /// latest.
    pub(crate) fn ask_by(&mut self, by: Time) {
        let waits_for_room = self.is_shared() && self.is_held() && self.row_locked_since.is_some();
        if waits_for_room || self.left_in_transaction().is_some() {
            self.retry_at = self.retry_at.map(|at| at.min(by));
        }
    }

    /// What a transaction keeps although its owner has left. The transaction may have ended unnoticed.
    pub(crate) fn left_in_transaction(&self) -> Option<Left> {
        let Term::Transaction(kept) = self.term else {
            return None;
        };
        self.needs_release().then_some(Left {
            lease_id: self.lease_id,
            fence_token: self.current.fence_token,
            kept,
        })
    }
}
