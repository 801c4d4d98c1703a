//! The table of rules on [`Store::apply`](super::Store::apply) as a function of one row, for stores that
//! decide in Rust. No SQL, no I/O.

use std::time::Duration;

use uuid::Uuid;

use super::clock::{micros, until};
use super::{Action, LockRow, Occupant, Outcome, Request, Reservation, Reserved, Successor};
use crate::key::Key;

/// Does to `row` what `request` asks for. Nobody else can change the row meanwhile, and [`LockRow::now`] was
/// read after that was so.
///
/// `keeps_reservations`: the store does. Returns the answer, and whether the row has changed.
pub(super) fn carry_out(request: &Request, row: &mut LockRow, keeps_reservations: bool) -> (Outcome, bool) {
    match &request.action {
        Action::Acquire { .. } => acquire(request, row, keeps_reservations),
        Action::Extend {
            count,
            ttl,
            successor,
        } => extend(request.lease_id, *count, *ttl, successor.as_ref(), row),
        Action::Release => release(request.lease_id, row),
    }
}

fn acquire(request: &Request, row: &mut LockRow, keeps_reservations: bool) -> (Outcome, bool) {
    let lease_id = request.lease_id;
    let Action::Acquire {
        owner,
        ttl,
        holder,
        wanted_for,
        spare_tokens,
        reserve,
    } = &request.action
    else {
        return (Outcome::Lost, false);
    };
    let held = row.is_held();
    if row.lease_id == lease_id {
        // A late request of a lease that is over: it must not come to life again.
        if !held {
            return (Outcome::Lost, false);
        }
        // A repeated request, whose first answer was lost. Whether it took over a lease is forgotten.
        let changed = row.reentrant_count != 1;
        row.reentrant_count = 1;
        return (granted(row, None), changed);
    }
    if held || is_reserved(row, |next| next != lease_id) {
        let wanted = wanted_for.is_some_and(|length| want(row, length));
        let promise = wanted_for.filter(|_| keeps_reservations && *reserve && held);
        let promised = promise.is_some_and(|length| reserve_for(lease_id, row, length, *spare_tokens));
        return (busy(lease_id, row), wanted || promised);
    }
    let former = (row.reentrant_count > 0).then(|| occupant(row));
    let token = match row.reserved {
        Some(reserved) if is_reserved(row, |next| next == lease_id) => reserved.fence_token,
        _ => next_token(row),
    };
    hold(row, lease_id, *owner, holder, token, *ttl);
    row.fence_ceiling = row
        .fence_ceiling
        .max(token.saturating_add((*spare_tokens).into()));
    (granted(row, former), true)
}

fn extend(
    lease_id: Uuid,
    count: u32,
    ttl: Duration,
    successor: Option<&Successor>,
    row: &mut LockRow,
) -> (Outcome, bool) {
    if row.lease_id == lease_id && row.is_held() {
        if let Some(successor) = successor
            && successor.fence_token >= row.fence_token
        {
            row.owner = successor.owner;
            successor.holder.as_ref().clone_into(&mut row.holder);
            row.fence_token = successor.fence_token;
        }
        if !row.revoked {
            row.expire_at = row.expire_at.max(row.now.saturating_add(micros(ttl)));
        }
    } else {
        // Who has come in by a reservation has it written. A token from before it was given for another one.
        let claim = successor.filter(|next| {
            let is_new = |reserved: Reserved| next.fence_token >= reserved.fence_token;
            row.lease_id != lease_id
                && is_reserved(row, |reserved_for| reserved_for == lease_id)
                && row.reserved.is_some_and(is_new)
        });
        let Some(next) = claim else {
            return (Outcome::Lost, false);
        };
        // What was promised is not shortened: who is inside counts on it until the answer comes.
        let promised = row.reserved.map_or(0, |reserved| reserved.until);
        hold(row, lease_id, next.owner, &next.holder, next.fence_token, ttl);
        row.expire_at = row.expire_at.max(promised);
    }
    row.reentrant_count = count;
    let extended = Outcome::Extended {
        remaining: until(row.expire_at, row.now),
        revoked: row.revoked,
        wanted: is_wanted(row),
    };
    (extended, true)
}

fn release(lease_id: Uuid, row: &mut LockRow) -> (Outcome, bool) {
    let held = row.is_held();
    if row.lease_id == lease_id {
        if !held && row.reentrant_count > 0 {
            return (Outcome::Lost, false);
        }
        row.reentrant_count = 0;
        let released = Outcome::Released {
            freed: held,
            wanted: is_wanted(row),
        };
        return (released, held);
    }
    if is_reserved(row, |next| next == lease_id) {
        row.reserved = None;
        return (Outcome::Withdrawn, true);
    }
    (Outcome::Lost, false)
}

/// The row becomes held, by one hold.
fn hold(row: &mut LockRow, lease_id: Uuid, owner: Uuid, holder: &str, fence_token: i64, ttl: Duration) {
    row.owner = owner;
    row.lease_id = lease_id;
    holder.clone_into(&mut row.holder);
    row.reentrant_count = 1;
    row.fence_token = fence_token;
    row.fence_ceiling = row.fence_ceiling.max(fence_token);
    row.acquired_at = row.now;
    row.expire_at = row.now.saturating_add(micros(ttl));
    row.revoked = false;
    row.reserved = None;
}

fn next_token(row: &LockRow) -> i64 {
    row.fence_ceiling.saturating_add(1).max(row.now)
}

/// The row is reserved for a lease that passes `test`.
fn is_reserved(row: &LockRow, test: impl FnOnce(Uuid) -> bool) -> bool {
    row.reserved
        .is_some_and(|reserved| reserved.until > row.now && test(reserved.lease_id))
}

/// Reserves the row, which is held, unless it is reserved for another lease. The write is spared as in
/// [`must_want`].
fn reserve_for(lease_id: Uuid, row: &mut LockRow, length: Duration, spare_tokens: u32) -> bool {
    let until = row.now.saturating_add(micros(length));
    match &mut row.reserved {
        Some(reserved) if reserved.until > row.now && reserved.lease_id != lease_id => false,
        Some(reserved) if reserved.until > row.now => {
            let must = reserved.until - row.now < micros(length) / 2;
            if must {
                reserved.until = until;
            }
            must
        }
        _ => {
            let fence_token = next_token(row);
            row.fence_ceiling = fence_token.saturating_add(spare_tokens.into());
            row.reserved = Some(Reserved {
                lease_id,
                until,
                fence_token,
            });
            true
        }
    }
}

/// The answer to an acquire of `lease_id` that finds the row held, or reserved for another lease.
fn busy(lease_id: Uuid, row: &LockRow) -> Outcome {
    let mut occupant = occupant(row);
    match row.reserved {
        Some(reserved) if reserved.until > row.now && reserved.lease_id == lease_id => {
            let spare = row.fence_ceiling.saturating_sub(reserved.fence_token);
            let reservation = Reservation {
                behind: row.lease_id,
                fence_token: reserved.fence_token,
                spare_tokens: u32::try_from(spare).unwrap_or(0),
                remaining: until(reserved.until, row.now),
            };
            Outcome::Reserved(occupant, reservation)
        }
        Some(reserved) if !row.is_held() => {
            occupant.remaining = until(reserved.until, row.now);
            Outcome::Busy(occupant)
        }
        _ => Outcome::Busy(occupant),
    }
}

/// What stands for the row of a key that has none: free, the lease nobody's, and no token given yet. It is to
/// be inserted if [`carry_out`] changes it.
pub(super) fn absent(key: Key, now: i64) -> LockRow {
    LockRow {
        key,
        owner: Uuid::nil(),
        reentrant_count: 0,
        expire_at: 0,
        lease_id: Uuid::nil(),
        fence_token: 0,
        fence_ceiling: 0,
        wanted_until: 0,
        acquired_at: 0,
        holder: String::new(),
        revoked: false,
        reserved: None,
        now,
    }
}

/// Who is, or was, inside.
pub(super) fn occupant(row: &LockRow) -> Occupant {
    Occupant {
        owner: row.owner,
        holder: row.holder.clone(),
        fence_token: row.fence_token,
        remaining: until(row.expire_at, row.now),
    }
}

/// Whether a busy acquire must write that it waits for `length`. The write is spared while at least half of the
/// time is still ahead, so that many waiters don't cost a commit each.
pub(super) fn must_want(row: &LockRow, length: Duration) -> bool {
    row.wanted_until.saturating_sub(row.now) < micros(length) / 2
}

fn want(row: &mut LockRow, length: Duration) -> bool {
    let must = must_want(row, length);
    if must {
        row.wanted_until = row.now.saturating_add(micros(length));
    }
    must
}

fn is_wanted(row: &LockRow) -> bool {
    row.wanted_until > row.now
}

fn granted(row: &LockRow, taken_over: Option<Occupant>) -> Outcome {
    Outcome::Granted {
        fence_token: row.fence_token,
        remaining: until(row.expire_at, row.now),
        taken_over,
        wanted: is_wanted(row),
    }
}

#[cfg(test)]
mod tests;
