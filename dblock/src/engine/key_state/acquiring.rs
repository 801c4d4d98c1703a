//! What the store's answer to an acquire means for the callers of this process.

use std::sync::Arc;

use super::{InFlight, KeyState, Scene};
use crate::engine::grant::{Grant, HandOver};
use crate::engine::holding::Holding;
use crate::engine::lease::{Hold, Lease};
use crate::engine::orphan::Orphan;
use crate::engine::terms::LeaseTerms;
use crate::store::{Acquire, Action, Outcome, StoreError, StoreErrorKind};

impl KeyState {
    pub(super) fn settle_acquire(
        &mut self,
        waiter: u64,
        sent: &InFlight,
        answer: Result<Outcome, StoreError>,
        scene: Scene<'_>,
    ) {
        let now = scene.now;
        let Action::Acquire(Acquire {
            ttl, spare_tokens, ..
        }) = sent.action
        else {
            return debug_assert!(false, "only an acquire is sent for a waiter");
        };
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
            }) => {
                if let Some(former) = &taken_over {
                    tracing::warn!(key = %self.key, fence_token, former_owner = %former.owner,
                        former_holder = former.holder, "lock taken over from an expired lease");
                }
                let until = self.queue.granted(wanted, scene.listening, now);
                let taken = scene.engine.upgrade().zip(self.queue.remove(waiter));
                let Some((engine, waiter)) = taken else {
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                    return;
                };
                let terms = LeaseTerms::new(&waiter.call, sent.lease_id, fence_token, sent.sent_at, now);
                let terms = Arc::new(terms);
                let hand_over = HandOver { spare_tokens, until };
                let line = Arc::clone(self.queue.line());
                let grant = Grant::new(Arc::clone(&terms), remaining, line, hand_over);
                if grant.lost_reason().is_some() {
                    // The reply took so long that nothing of the lease is left for the caller.
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                    self.queue.put_back(waiter, now);
                    return;
                }
                self.holding = Some(Holding::new(Arc::clone(&grant)));
                waiter.grant(Hold::granted(Lease::new(terms, grant), engine));
            }
            Ok(Outcome::Busy(occupant) | Outcome::Queued { occupant, .. }) => {
                self.queue.busy(occupant, scene.listening, now);
            }
            Ok(Outcome::Skipped) => self.queue.skipped(now),
            Ok(other) => {
                // The lease_id was never granted, so no store that keeps its contract says that.
                let message = format!("the store answered an acquire with {other:?}");
                self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                self.queue
                    .failed(StoreError::new(StoreErrorKind::Interrupted, message), now);
            }
            Err(error) => {
                if error.is_outcome_unknown() {
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                }
                self.queue.failed(error, now);
            }
        }
    }
}
