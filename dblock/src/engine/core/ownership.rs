//! One owner's time in a lease: what stays the same for it, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use uuid::Uuid;

use super::end::{End, Ends};
use super::flaw::{Flaw, flawed};
use super::time::Time;
use crate::error::LostReason;
use crate::key::Key;
use crate::options::OnLost;

/// What a caller asks for.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) owner: Uuid,
    pub(crate) holder: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) on_lost: OnLost,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) hold_min: Option<Duration>,
    /// The call chain holds another lock: it is let in even while the manager shuts down.
    pub(crate) nested: bool,
}

/// One owner's time in a lease. After a local hand-over the same lease has another ownership, with a larger token.
#[derive(Debug)]
pub(crate) struct Ownership {
    pub(crate) key: Key,
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
    pub(crate) call: Call,
    /// When the owner entered; for a grant of the store, when its request was sent.
    pub(crate) since: Time,
    /// It ends here whatever is renewed.
    pub(crate) max_hold_until: Option<Time>,
    /// The row stays busy until here even when the body ended.
    pub(crate) hold_min_until: Option<Time>,
    end: End,
    revoked: AtomicBool,
    changed: Notify,
}

impl Ownership {
    /// `entered` is when the owner is let in: what it asked for at most and at least counts from there.
    /// `deadline` is that of the lease.
    pub(super) fn new(
        key: Key,
        call: Call,
        (lease_id, fence_token): (Uuid, i64),
        (since, entered): (Time, Time),
        deadline: Time,
    ) -> Self {
        let max_hold = call.max_hold.filter(|_| !flawed(Flaw::MaxHoldIsForgotten));
        let max_hold_until = max_hold.map(|length| entered + length);
        Self {
            key,
            lease_id,
            fence_token,
            since,
            max_hold_until,
            hold_min_until: call.hold_min.map(|length| entered + length),
            end: End::at(max_hold_until.map_or(deadline, |end| end.min(deadline))),
            revoked: AtomicBool::new(false),
            changed: Notify::new(),
            call,
        }
    }

    /// Why it has ended, if it has; the first reason stays. `true` for the first look after its time: whoever
    /// gets that calls [`tell`](Self::tell).
    pub(crate) fn look(&self, now: Time) -> (Option<LostReason>, bool) {
        let reason = match self.max_hold_until {
            Some(end) if now >= end => LostReason::MaxHold,
            _ if self.is_revoked() => LostReason::Revoked,
            _ => LostReason::Expired,
        };
        let first = self.end.end_in_time(reason, now);
        match self.end.read() {
            Ends::Ended(reason, _) => (Some(reason), first),
            Ends::At(_) => (None, false),
        }
    }

    /// Its lease ends later now, if it has not ended.
    pub(super) fn move_deadline(&self, deadline: Time, now: Time) {
        let deadline = self.max_hold_until.map_or(deadline, |end| end.min(deadline));
        self.end.move_to(deadline, now);
    }

    /// Ends it. Returns whether this call did.
    pub(crate) fn end(&self, reason: LostReason, now: Time) -> bool {
        self.end.end(reason, now)
    }

    /// When it ends unless it is extended; `None` when it has.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match self.end.read() {
            Ends::At(deadline) => Some(deadline),
            Ends::Ended(..) => None,
        }
    }

    /// Why it has ended, if somebody has seen that it has.
    pub(super) fn ended(&self) -> Option<LostReason> {
        match self.end.read() {
            Ends::Ended(reason, _) => Some(reason),
            Ends::At(_) => None,
        }
    }

    /// For how long the owner has, or had, the lock.
    pub(crate) fn held(&self, now: Time) -> Duration {
        match self.end.read() {
            Ends::At(_) => now.since(self.since),
            Ends::Ended(_, at) => at.since(self.since),
        }
    }

    pub(super) fn mark_revoked(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Wakes whoever waits for its end or for a revocation.
    pub(crate) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Completes when `test` holds, which is asked at once and whenever it is told.
    pub(crate) async fn until(&self, test: impl Fn(&Self) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if test(self) {
                return;
            }
            changed.await;
        }
    }
}
