//! Reports what machines say to the log, the metrics and the health counters.

use std::time::Duration;

use dblock_core::machine::env::Time;
use dblock_core::machine::out::{Note, Refusal};
use dblock_core::machine::ownership::Ownership;

use super::cells::Waiter;
use crate::Key;
use crate::health::HealthBoard;
use crate::meter::{AcquireOutcome, Meter, Site};
use crate::store::Kind;
use crate::{LockError, LostReason, TimeoutCause};

/// Where it is reported to.
pub(super) struct Reporter<'a> {
    pub(super) now: Time,
    pub(super) health: &'a HealthBoard,
    pub(super) meter: &'a Meter,
}

impl Reporter<'_> {
    /// A caller that came at `since` has the lock.
    pub(super) fn granted(&self, since: Time, ownership: &Ownership) {
        let waited = self.now.since(since);
        tracing::debug!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
            ?waited, "lock acquired");
        self.site(ownership).granted(waited);
    }

    /// A caller does not get the lock of this key.
    pub(super) fn refused(&self, key: &Key, caller: &Waiter, refusal: Refusal) -> LockError {
        let key = key.to_typed();
        let owner = caller.call.owner;
        let waited = self.now.since(caller.since);
        let site = self.meter.site(caller.call.options.function);
        let non_blocking = caller.call.is_non_blocking();
        site.acquire_ended(outcome(&refusal, non_blocking), waited);
        let (holder, cause) = match refusal {
            Refusal::Shutdown => return LockError::shutdown(Some(key)),
            Refusal::TicketOver => return LockError::lost(key, LostReason::Ticket, 0, Duration::ZERO),
            Refusal::Store(source) => {
                tracing::warn!(%key, %owner, ?waited, error = %source, "lock store failed");
                return LockError::store_after(key, waited, source);
            }
            Refusal::Busy(holder) => {
                if !non_blocking {
                    site.waited(waited);
                }
                (holder, TimeoutCause::Held)
            }
            Refusal::RowLocked => (None, TimeoutCause::RowLocked),
            Refusal::NoAnswer => (None, TimeoutCause::NoAnswer),
        };
        tracing::debug!(%key, %owner, ?waited, holder = holder.as_ref().map(|o| o.name.as_str()), ?cause, "lock busy");
        if non_blocking {
            LockError::busy(key, holder, waited)
        } else {
            LockError::timeout(key, holder, waited, cause)
        }
    }

    pub(super) fn note(&self, note: Note) {
        let now = self.now;
        match note {
            Note::TakenOver(ownership, former) => {
                tracing::warn!(key = %ownership.key.typed(), fence_token = ownership.fence_token, former_owner = %former.owner,
                    former_holder = former.name, "lock taken over from an expired lease");
                self.site(&ownership).taken_over();
            }
            Note::Lost(ownership, reason) => self.lost(&ownership, reason),
            Note::Revoked(ownership, remaining) => {
                tracing::warn!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
                    ?remaining, "lock revoked by an operator");
            }
            Note::Released(ownership) => {
                tracing::debug!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
                    held = ?ownership.held_for(now), "lock released");
            }
            Note::GoneBeforeRelease(ownership) => {
                tracing::warn!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
                    held = ?ownership.held_for(now), "lock was gone before its release");
            }
            Note::Failed {
                ownership,
                kind,
                error,
                again,
            } => {
                let what = if kind == Kind::Release {
                    "released"
                } else {
                    "renewed"
                };
                // The request is repeated until it succeeds: one warning for each kind of request.
                if again {
                    tracing::debug!(key = %ownership.key.typed(), owner = %ownership.call.owner,
                        fence_token = ownership.fence_token, %error, "lock still could not be {what}");
                } else {
                    let remaining = ownership.deadline().map(|deadline| deadline.since(now));
                    tracing::warn!(key = %ownership.key.typed(), owner = %ownership.call.owner,
                        fence_token = ownership.fence_token, held = ?ownership.held_for(now), %error,
                        remaining = ?remaining.unwrap_or_default(), "lock could not be {what}; trying again");
                }
            }
            Note::RenewedAgain(ownership) => {
                tracing::info!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
                    "lock renewed again");
            }
            Note::RenewalLag(lag) => {
                self.health.set_renewal_lag(lag);
                self.meter.renewal_lag(lag);
            }
            Note::Waited(ownership, waited) => self.site(&ownership).waited(waited),
            Note::HandedOver(ownership) => self.site(&ownership).handed_over(),
            Note::PassedOn(ownership) => self.site(&ownership).passed_on(),
            Note::StaysBusy(ownership) => {
                tracing::debug!(key = %ownership.key.typed(), "stays busy for hold_min");
            }
        }
    }

    /// The lease ended while an owner held it.
    pub(super) fn lost(&self, ownership: &Ownership, reason: LostReason) {
        let held = ownership.held_for(self.now);
        tracing::error!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
            ?held, ?reason, "lock lost");
        self.site(ownership).lost(reason, held);
    }

    fn site(&self, ownership: &Ownership) -> &Site {
        self.meter.site(ownership.call.options.function)
    }
}

fn outcome(refusal: &Refusal, non_blocking: bool) -> AcquireOutcome {
    match refusal {
        Refusal::Shutdown => AcquireOutcome::Shutdown,
        Refusal::Store(_) => AcquireOutcome::StoreError,
        Refusal::TicketOver => AcquireOutcome::Lost,
        _ if non_blocking => AcquireOutcome::Busy,
        Refusal::Busy(_) => AcquireOutcome::Timeout,
        Refusal::RowLocked => AcquireOutcome::RowLocked,
        Refusal::NoAnswer => AcquireOutcome::NoAnswer,
    }
}
