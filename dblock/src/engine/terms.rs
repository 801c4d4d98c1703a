//! What stays the same for one owner in a grant.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::waiter::AcquireCall;
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::options::OnLost;

/// What stays the same for one owner in a grant.
#[derive(Debug)]
pub(crate) struct LeaseTerms {
    pub(crate) key: Key,
    pub(crate) owner: Uuid,
    pub(crate) lease_id: Uuid,
    pub(crate) fence_token: i64,
    pub(crate) holder: Arc<str>,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) on_lost: OnLost,
    /// When the owner came in; for the first one, when the request that was granted was sent.
    pub(crate) since: Instant,
    /// The lease ends here whatever is renewed.
    pub(crate) max_hold_until: Option<Instant>,
    /// The row stays busy until here even when the body ended.
    pub(crate) hold_min_until: Option<Instant>,
    /// The owner came in without the store: the row may still name its predecessor.
    pub(crate) handed_over: bool,
    /// When the owner left, or the grant ended.
    ended_at: OnceLock<Instant>,
}

impl LeaseTerms {
    /// `entered` is when the caller is let in: what it asked for at most and at least counts from there.
    pub(super) fn new(
        call: &AcquireCall,
        lease_id: Uuid,
        fence_token: i64,
        since: Instant,
        entered: Instant,
    ) -> Self {
        let options = &call.options;
        Self {
            key: call.key.clone(),
            owner: call.owner,
            lease_id,
            fence_token,
            holder: Arc::clone(&call.holder),
            ttl: options.ttl,
            renew: options.renew,
            on_lost: options.on_lost,
            since,
            max_hold_until: options.max_hold.map(|length| entered + length),
            hold_min_until: options.hold_min.map(|length| entered + length),
            handed_over: false,
            ended_at: OnceLock::new(),
        }
    }

    /// For how long the owner has, or had, the lock.
    pub(crate) fn held(&self) -> Duration {
        let end = self.ended_at.get().copied().unwrap_or_else(Instant::now);
        end.saturating_duration_since(self.since)
    }

    /// The owner has left, or the grant has ended. The first time counts.
    pub(super) fn end(&self, at: Instant) {
        let _ = self.ended_at.set(at);
    }

    pub(crate) fn lost(&self, reason: LostReason) -> LockError {
        LockError::Lost {
            key: self.key.clone(),
            reason,
            fence_token: self.fence_token,
            held: self.held(),
        }
    }
}
