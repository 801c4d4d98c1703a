//! A lease as the store granted it or passed it on, and what it lasts for.

use std::time::Duration;

use uuid::Uuid;

use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::time::Time;
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
}

/// What ends a lease.
#[derive(Debug, Clone, Copy)]
pub(super) enum Term {
    Times(Times),
    /// A transaction of the owner's: no ttl runs, and no request reaches the row.
    Transaction,
}

/// The ends of a lease that a ttl ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// When the lease ends in the store: at the earliest, counted from when the request was sent, and at the
    /// latest (`over_at`), counted from its answer.
    pub(crate) store_end: Time,
    pub(crate) over_at: Time,
    /// The length that the lease was given for. The margin is a part of it.
    pub(crate) length: Duration,
    /// Since when the owner has it: when the request was sent that was granted, or that last extended the
    /// lease. After a local hand-over or a wake-up: when the owner entered.
    pub(crate) since: Time,
}

impl Times {
    /// The local deadline for an owner that asks for `ttl`: a margin before the end in the store, and a
    /// margin before the owner's own ttl has passed, because a former owner may have asked for a longer one.
    pub(crate) fn deadline(&self, ttl: Duration) -> Time {
        if flawed(Flaw::NoMargin) {
            return self.store_end;
        }
        let in_store = self.store_end.before(options::margin(self.length));
        in_store.min((self.since + ttl).before(options::margin(ttl)))
    }

    /// When the confirmed part of the owner's ttl ends.
    pub(super) fn confirmed_until(&self, ttl: Duration) -> Time {
        self.store_end.min(self.since + ttl)
    }
}
