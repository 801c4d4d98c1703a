//! The table of rules on [`Store::apply`](super::Store::apply) as a function of one row, for stores that
//! decide in Rust. No SQL, no I/O.

mod shared;
mod take;

use std::time::Duration;

use uuid::Uuid;

#[doc(hidden)]
pub use self::take::{Sees, Take, Took, take};
use super::record::RecordChange;
pub use super::record::{RecordEffect, change_record};
use super::{
    Acquire, Action, Extend, Holder, LockRow, NEXT_TTL, Outcome, QUEUE_AHEAD, Released, Request, StoreError,
    StoreErrorKind, Successor, Transfer, WakeUp,
};
use crate::key::Key;

/// What a request has done, from [`carry_out`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CarriedOut {
    /// The answer.
    pub outcome: Outcome,
    /// The row has changed, and must be written.
    pub changed: bool,
    /// What a store with wake-ups reports: somebody waits, and has the lock now, or may enter.
    pub tells: Option<WakeUp>,
    /// The change of the key's record that the request now makes, if it makes one, by [`change_record`].
    pub record: Option<RecordChange>,
}

/// Applies `request` to `row`. The caller must have the row locked, and [`LockRow::now`] must have been read
/// after that.
///
/// [`LockRow::new`] gives the row for a key that has none. The store inserts it if it has changed.
///
/// # Errors
/// The tokens of the key are used up. The row has not changed.
pub fn carry_out(request: &Request, row: &mut LockRow) -> Result<CarriedOut, StoreError> {
    // A release also changes the record when the lease ended before in another way, such as by a transaction.
    let ends = matches!(request.action, Action::Release) && row.lease_id == request.lease_id;
    let ends = ends.then_some(row.fence_token);
    let (inside, named, waits) = (row.reentrant_count, row.lease_id, row.next.is_some());
    let (outcome, changed) = match &request.action {
        Action::Acquire(ask) => acquire(request.lease_id, ask, row)?,
        Action::Extend(ask) => extend(request.lease_id, ask, row),
        Action::Release => release(request.lease_id, row),
        Action::Transfer(ask) => transfer(request.lease_id, ask, row)?,
    };
    let may_enter = match &outcome {
        Outcome::Released(released) => *released == Released::Freed,
        Outcome::Extended { .. } if row.is_shared() && row.reentrant_count < inside => true,
        // A phase begins with a lease that was passed on, or one who waited before others does so no longer.
        Outcome::Extended { .. } | Outcome::Granted { .. } | Outcome::Withdrawn => {
            row.is_shared() && (named == request.lease_id || waits && row.next.is_none())
        }
        _ => false,
    };
    let key = || request.key.clone();
    let tells = match &outcome {
        Outcome::Released(Released::PassedOn) => {
            Some(WakeUp::passed_on(key(), row.lease_id, row.fence_token))
        }
        _ if !may_enter || !is_wanted(row) => None,
        _ if row.is_shared() => Some(shared::may_enter(key(), row)),
        _ => Some(WakeUp::Released(key())),
    };
    let token = granted_token(&outcome).or(ends);
    let record = token.and_then(|token| Some(request.record.as_ref()?.of_lease(token)));
    Ok(CarriedOut {
        outcome,
        changed,
        tells,
        record,
    })
}

/// The token of a lease that was granted.
#[doc(hidden)]
pub fn granted_token(outcome: &Outcome) -> Option<i64> {
    match outcome {
        Outcome::Granted { fence_token, .. } => Some(*fence_token),
        _ => None,
    }
}

fn acquire(lease_id: Uuid, ask: &Acquire, row: &mut LockRow) -> Result<(Outcome, bool), StoreError> {
    if let Some(limit) = ask.limit {
        return shared::acquire(lease_id, ask, limit, row);
    }
    let held = row.is_held();
    if row.lease_id == lease_id {
        // A late request for a lease that is over, which must not come to life again.
        if !held {
            return Ok((Outcome::Lost, false));
        }
        // A repeated request whose first answer was lost, or a row that was passed on. Whether the lease was
        // a takeover is no longer known.
        let changed = row.reentrant_count != 1;
        row.reentrant_count = 1;
        return Ok((granted(row, row.remaining(), None), changed));
    }
    if held {
        let wanted = ask.wanted_for.is_some_and(|length| want(row, length));
        let queued = queue(lease_id, ask, row);
        return Ok((busy(lease_id, row, holder(row)), wanted || queued));
    }
    let former = grant(lease_id, ask, ask.spare_tokens, row)?;
    Ok((granted(row, ask.ttl, former), true))
}

/// The lease gets a row that nobody holds. Returns the former holder, if its lease expired.
fn grant(
    lease_id: Uuid,
    ask: &Acquire,
    spare_tokens: u32,
    row: &mut LockRow,
) -> Result<Option<Holder>, StoreError> {
    let Some(fence_token) = next_token(row) else {
        return Err(used_up(&row.key));
    };
    let former = (row.reentrant_count > 0).then(|| holder(row));
    row.owner = ask.owner;
    ask.holder.as_ref().clone_into(&mut row.holder);
    hold(row, lease_id, fence_token, spare_tokens, ask.ttl);
    Ok(former)
}

fn extend(lease_id: Uuid, ask: &Extend, row: &mut LockRow) -> (Outcome, bool) {
    if let Some(share) = &ask.share {
        return shared::extend(lease_id, ask, share, row);
    }
    if row.lease_id != lease_id || !row.is_held() {
        return (Outcome::Lost, false);
    }
    if let Some(to) = &ask.handed_over
        && to.fence_token >= row.fence_token
    {
        row.owner = to.owner;
        to.holder.as_ref().clone_into(&mut row.holder);
        if to.fence_token > row.fence_ceiling {
            let spare = row.fence_ceiling.saturating_sub(row.fence_token);
            row.fence_ceiling = to.fence_token.saturating_add(spare);
        }
        row.fence_token = to.fence_token;
    }
    if !row.revoked {
        let end = row.now + ask.ttl;
        // Nobody is inside any more, so nobody needs the rest of the lease.
        row.expire_at = if ask.count == 0 {
            end
        } else {
            row.expire_at.max(end)
        };
    }
    row.reentrant_count = ask.count.max(1);
    let extended = Outcome::Extended {
        remaining: row.remaining(),
        revoked: row.revoked,
        wanted: is_wanted(row),
        count: row.reentrant_count,
        room_in: None,
    };
    (extended, true)
}

/// Whether a crash of the store may forget a release with this answer: such a release need not wait for the
/// disk, nor for a standby.
///
/// After a forgotten release the row names a lease that nobody has, and that ends by itself. After a
/// forgotten withdrawal it names a successor that ends by itself. A later grant of the key is durable
/// together with the release, because the log is written in order. A pass-on must not be forgotten: the
/// release would be sent again, and free the row beside the successor.
pub fn may_be_forgotten(released: &Outcome) -> bool {
    matches!(
        released,
        Outcome::Released(Released::Before | Released::Freed) | Outcome::Withdrawn
    )
}

fn release(lease_id: Uuid, row: &mut LockRow) -> (Outcome, bool) {
    if let Some(released) = shared::release(lease_id, row) {
        return (Outcome::Released(released), true);
    }
    let held = row.is_held();
    if row.lease_id != lease_id {
        if row.next.as_ref().is_some_and(|next| next.lease_id == lease_id) {
            row.next = None;
            return (Outcome::Withdrawn, true);
        }
        return (Outcome::Lost, false);
    }
    if !held && row.reentrant_count > 0 {
        return (Outcome::Lost, false);
    }
    let released = if !held {
        Released::Before
    } else if pass_on(row) {
        Released::PassedOn
    } else {
        row.reentrant_count = 0;
        row.next = None;
        Released::Freed
    };
    (Outcome::Released(released), held)
}

/// Gives the row to the lease that the request names. The successor keeps its place, because nobody has got
/// ahead of it: the lock is the same one, on its way. A revoked lease is to end, and does not go on as another.
fn transfer(lease_id: Uuid, ask: &Transfer, row: &mut LockRow) -> Result<(Outcome, bool), StoreError> {
    let held = row.is_held();
    if held && row.lease_id == ask.to {
        // A repeated request whose first answer was lost.
        return Ok((granted(row, row.remaining(), None), false));
    }
    if !held || row.lease_id != lease_id || row.revoked {
        return Ok((Outcome::Lost, false));
    }
    let Some(fence_token) = next_token(row) else {
        return Err(used_up(&row.key));
    };
    let next = row.next.take();
    row.owner = ask.owner;
    ask.holder.as_ref().clone_into(&mut row.holder);
    hold(row, ask.to, fence_token, 0, ask.ttl);
    row.next = next;
    Ok((granted(row, ask.ttl, None), true))
}

/// Passes the row on to its successor, if that is live.
fn pass_on(row: &mut LockRow) -> bool {
    let Some((next, fence_token)) = row.next.take_if(|next| next.until > row.now).zip(next_token(row)) else {
        return false;
    };
    row.owner = next.owner;
    row.holder = next.holder;
    hold(row, next.lease_id, fence_token, next.spare_tokens, next.ttl);
    true
}

/// The row becomes held, by one hold of the owner that it names.
fn hold(row: &mut LockRow, lease_id: Uuid, fence_token: i64, spare_tokens: u32, ttl: Duration) {
    row.lease_id = lease_id;
    row.reentrant_count = 1;
    row.fence_token = fence_token;
    row.fence_ceiling = fence_token.saturating_add(spare_tokens.into());
    row.acquired_at = row.now;
    row.expire_at = row.now + ttl;
    row.revoked = false;
    row.next = None;
    row.shared.clear();
}

/// `None` when the tokens are used up.
fn next_token(row: &LockRow) -> Option<i64> {
    let next = row.fence_ceiling.checked_add(1)?;
    Some(next.max(row.now.as_micros()))
}

fn used_up(key: &Key) -> StoreError {
    let message = format!("the fence tokens of {key:?} are used up: its row must be deleted by hand");
    StoreError::new(StoreErrorKind::Other, message)
}

/// Makes `lease_id` the successor of a held row, unless another lease comes first. It writes nothing while at
/// least half of the time is left, as [`must_want`].
fn queue(lease_id: Uuid, ask: &Acquire, row: &mut LockRow) -> bool {
    let Some((waited, length)) = ask.queue.zip(ask.wanted_for) else {
        return false;
    };
    let mut since = row.now - waited;
    if let Some(next) = row.next.as_ref().filter(|next| next.until > row.now) {
        if next.lease_id == lease_id {
            if next.owner == ask.owner && next.limit == ask.limit && next.until.since(row.now) >= length / 2 {
                return false;
            }
            since = since.min(next.since);
        } else if next.since < since + QUEUE_AHEAD {
            return false;
        }
    }
    row.next = Some(Successor {
        lease_id,
        owner: ask.owner,
        holder: ask.holder.as_ref().to_owned(),
        ttl: ask.ttl.min(NEXT_TTL),
        spare_tokens: ask.spare_tokens,
        since,
        until: row.now + length,
        limit: ask.limit,
    });
    true
}

/// The answer to an acquire of `lease_id` that finds the row held.
fn busy(lease_id: Uuid, row: &LockRow, holder: Holder) -> Outcome {
    match &row.next {
        Some(next) if next.until > row.now && next.lease_id == lease_id => Outcome::Queued {
            holder,
            next_ttl: next.ttl,
        },
        _ => Outcome::Busy(holder),
    }
}

/// The answer to an acquire that finds the key held by another lease and would change nothing. The row was
/// read without a lock. A live successor is answered `Busy` too, because a row that is not locked may be
/// passed on at any time.
pub fn still_busy(request: &Request, row: &LockRow) -> Option<Outcome> {
    let carried_out = carry_out(request, &mut row.clone()).ok()?;
    match carried_out.outcome {
        Outcome::Busy(holder) | Outcome::Queued { holder, .. } if !carried_out.changed => {
            Some(Outcome::Busy(holder))
        }
        _ => None,
    }
}

/// The holder of the row, or the last one.
pub fn holder(row: &LockRow) -> Holder {
    Holder {
        owner: row.owner,
        name: row.holder.clone(),
        fence_token: row.fence_token,
        remaining: Some(row.remaining()),
    }
}

/// Whether a busy acquire must write that it waits for `length`. The write is spared while at least half of
/// the time is still ahead, so that many waiters don't cost a commit each.
pub fn must_want(row: &LockRow, length: Duration) -> bool {
    row.wanted_until.since(row.now) < length / 2
}

fn want(row: &mut LockRow, length: Duration) -> bool {
    let must = must_want(row, length);
    if must {
        row.wanted_until = row.now + length;
    }
    must
}

fn is_wanted(row: &LockRow) -> bool {
    row.wanted_until > row.now
}

fn granted(row: &LockRow, remaining: Duration, taken_over: Option<Holder>) -> Outcome {
    Outcome::Granted {
        fence_token: row.fence_token,
        remaining,
        taken_over,
        wanted: is_wanted(row),
        recorded: false,
    }
}

#[cfg(test)]
mod tests;
