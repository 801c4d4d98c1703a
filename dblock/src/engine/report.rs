//! Reports the output of a step to callers, the log and the health counters.

use std::sync::Arc;

use super::cells::{Cell, Reply, Waiter};
use super::core::out::{Kind, Note, Refusal};
use super::core::ownership::Ownership;
use super::hold::Hold;
use super::lease::Lease;
use super::resumption::Resuming;
use super::shared::Shared;
use crate::error::{LockError, LostReason, TimeoutCause};
use crate::meter::AcquireOutcome;

/// Replies to a caller.
pub(super) fn reply(shared: &Arc<Shared>, cell: &Arc<Cell>, reply: Reply, resuming: Option<Resuming>) {
    match reply {
        Reply::Granted(waiter, ownership) => granted(shared, cell, waiter, ownership, resuming),
        Reply::Refused(waiter, refusal) => {
            let error = refused(shared, cell, &waiter, refusal);
            let _ = waiter.to.send((Err(error), resuming));
        }
        Reply::Confirmed(to, answer) => drop(to.send((answer, resuming))),
    }
}

fn granted(
    shared: &Arc<Shared>,
    cell: &Arc<Cell>,
    waiter: Waiter,
    ownership: Arc<Ownership>,
    resuming: Option<Resuming>,
) {
    let now = shared.clock.now();
    tracing::debug!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
        waited = ?now.since(waiter.since), "lock acquired");
    shared
        .meter
        .site(waiter.call.options.function)
        .granted(now.since(waiter.since));
    let lease = Lease::new(Arc::clone(shared), Arc::clone(cell), ownership);
    // A caller that is gone drops the hold, which releases it. Without a handle no caller can be waiting.
    if let Some(hold) = Hold::granted(lease) {
        let _ = waiter.to.send((Ok(hold), resuming));
    }
}

fn refused(shared: &Shared, cell: &Cell, caller: &Waiter, refusal: Refusal) -> LockError {
    let key = cell.key().to_typed();
    let owner = caller.call.owner;
    let waited = shared.clock.now().since(caller.since);
    let site = shared.meter.site(caller.call.options.function);
    site.acquire_ended(outcome(&refusal, caller.call.is_non_blocking()), waited);
    let (holder, cause) = match refusal {
        Refusal::Shutdown => return LockError::shutdown(Some(key)),
        Refusal::Store(source) => {
            tracing::warn!(%key, %owner, ?waited, error = %source, "lock store failed");
            return LockError::store_after(key, waited, source);
        }
        Refusal::Busy(holder) => {
            if !caller.call.is_non_blocking() {
                site.waited(waited);
            }
            (holder, TimeoutCause::Held)
        }
        Refusal::RowLocked => (None, TimeoutCause::RowLocked),
        Refusal::NoAnswer => (None, TimeoutCause::NoAnswer),
    };
    tracing::debug!(%key, %owner, ?waited, holder = holder.as_ref().map(|o| o.name.as_str()), ?cause, "lock busy");
    if caller.call.is_non_blocking() {
        LockError::busy(key, holder, waited)
    } else {
        LockError::timeout(key, holder, waited, cause)
    }
}

fn outcome(refusal: &Refusal, non_blocking: bool) -> AcquireOutcome {
    match refusal {
        Refusal::Shutdown => AcquireOutcome::Shutdown,
        Refusal::Store(_) => AcquireOutcome::StoreError,
        _ if non_blocking => AcquireOutcome::Busy,
        Refusal::Busy(_) => AcquireOutcome::Timeout,
        Refusal::RowLocked => AcquireOutcome::RowLocked,
        Refusal::NoAnswer => AcquireOutcome::NoAnswer,
    }
}

pub(super) fn note(shared: &Shared, note: Note) {
    let now = shared.clock.now();
    let site = |of: &Ownership| shared.meter.site(of.call.options.function);
    match note {
        Note::TakenOver(ownership, former) => {
            tracing::warn!(key = %ownership.key.typed(), fence_token = ownership.fence_token, former_owner = %former.owner,
                former_holder = former.name, "lock taken over from an expired lease");
            site(&ownership).taken_over();
        }
        Note::Lost(ownership, reason) => lost(shared, &ownership, reason),
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
            shared.health.set_renewal_lag(lag);
            shared.meter.renewal_lag(lag);
        }
        Note::Waited(ownership, waited) => site(&ownership).waited(waited),
        Note::HandedOver(ownership) => site(&ownership).handed_over(),
        Note::PassedOn(ownership) => site(&ownership).passed_on(),
        Note::StaysBusy(ownership) => {
            tracing::debug!(key = %ownership.key.typed(), "stays busy for hold_min");
        }
    }
}

/// The lease ended while an owner held it.
pub(super) fn lost(shared: &Shared, ownership: &Ownership, reason: LostReason) {
    let held = ownership.held_for(shared.clock.now());
    tracing::error!(key = %ownership.key.typed(), owner = %ownership.call.owner, fence_token = ownership.fence_token,
        ?held, %reason, "lock lost");
    shared
        .meter
        .site(ownership.call.options.function)
        .lost(reason, held);
}
