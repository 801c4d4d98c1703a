//! Shared holds: several processes, and several call chains in each, have the lock at once.
//!
//! The row lists one [`SharedHold`] for each process. While one of them lives the row reads as held by a lease of
//! their own, the *phase*: `reentrant_count` is the sum of their counts, `expire_at` is the latest of their ends, and
//! the owner and the token are those of the first. No request names that lease. So an exclusive request, a purge and
//! an older program find the row held by somebody else, and need no rule of their own.
//!
//! A release passes the row on to a shared successor as to any other. The first shared request of that lease begins the
//! phase.

use std::time::Duration;

use uuid::Uuid;

use super::{busy, grant, granted, holder, is_wanted, pass_on, queue, want};
use crate::key::Key;
use crate::store::{
    Acquire, Extend, Holder, LockRow, Outcome, Released, Share, SharedHold, StoreError, Successor, WakeUp,
};

/// An acquire of a shared hold. Who holds the key already enters at once only where [`has_room`] says so.
pub(super) fn acquire(
    lease_id: Uuid,
    ask: &Acquire,
    limit: u32,
    row: &mut LockRow,
) -> Result<(Outcome, bool), StoreError> {
    if row.has_lease() {
        let became_shared = begin_if_passed_on(lease_id, row);
        if let Some(hold) = hold_of(row, lease_id) {
            // A repeated request whose first answer was lost, or a row that was passed on.
            let remaining = hold.expire_at.since(row.now);
            return Ok((granted(row, remaining, None), became_shared));
        }
    }
    if row.lease_id == lease_id || row.lease_id == phase_of(lease_id) {
        // A late request for a lease that is over, which must not come to life again.
        return Ok((Outcome::Lost, false));
    }
    if row.is_held() {
        if row.transaction.is_none() && has_room(row, lease_id, ask.queue.unwrap_or_default(), limit) {
            if row.next.as_ref().is_some_and(|next| next.lease_id == lease_id) {
                row.next = None;
            }
            let entry = SharedHold::new(lease_id, ask.holder.as_ref(), row.now + ask.ttl);
            row.shared.push(entry);
            sum_up(row);
            return Ok((granted(row, ask.ttl, None), true));
        }
        let wanted = ask.wanted_for.is_some_and(|length| want(row, length));
        let queued = queue(lease_id, ask, row);
        return Ok((busy(lease_id, row, holder_until_room(row)), wanted || queued));
    }
    let former = grant(lease_id, ask, 0, row)?;
    begin_if_passed_on(lease_id, row);
    Ok((granted(row, ask.ttl, former), true))
}

/// Writes how many chains of a process are inside. Leaving is always allowed; [`has_room`] decides on entering.
pub(super) fn extend(lease_id: Uuid, ask: &Extend, share: &Share, row: &mut LockRow) -> (Outcome, bool) {
    if !row.has_lease() {
        return (Outcome::Lost, false);
    }
    let began = begin_if_passed_on(lease_id, row);
    let (now, revoked, wanted) = (row.now, row.revoked, is_wanted(row));
    let answer = |hold: &SharedHold| Outcome::Extended {
        remaining: hold.expire_at.since(now),
        revoked,
        wanted,
        count: hold.count,
        room_in: None,
    };
    let room_in = first_end(row, |hold| hold.lease_id != lease_id);
    let comes_next = share
        .enter
        .filter(|enter| comes_next(row, lease_id, enter.waited));
    let total = inside(row);
    let Some(hold) = row
        .shared
        .iter_mut()
        .find(|hold| hold.lease_id == lease_id && hold.expire_at > now)
    else {
        return (Outcome::Lost, false);
    };
    // A repeated one would write a count anew that its answer has told already. Before the first caller has entered there
    // is nothing to tell.
    if hold.number > 0 && share.number <= hold.number {
        return (answer(hold), began);
    }
    hold.number = share.number;
    let others = total.saturating_sub(hold.count);
    hold.count = ask.count.max(1);
    if let Some(enter) = comes_next {
        let room = enter.limit.saturating_sub(others.saturating_add(hold.count));
        hold.count = hold.count.saturating_add(enter.count.min(room));
    }
    if !revoked {
        hold.expire_at = hold.expire_at.max(now + ask.ttl);
    }
    let mut answer = answer(hold);
    if let Some(enter) = share.enter
        && others > 0
        && hold.count < ask.count.max(1).saturating_add(enter.count)
    {
        want(row, enter.wanted_for);
        answer = answer.with_room_in(room_in);
    }
    sum_up(row);
    (answer, true)
}

/// A process leaves. `None` if this lease has no live hold: then the rules of an exclusive release decide.
pub(super) fn release(lease_id: Uuid, row: &mut LockRow) -> Option<Released> {
    hold_of(row, lease_id)?;
    row.shared.retain(|hold| hold.lease_id != lease_id);
    if row.live_shared().next().is_some() {
        sum_up(row);
        return Some(Released::Freed);
    }
    row.shared.clear();
    if pass_on(row) {
        return Some(Released::PassedOn);
    }
    row.reentrant_count = 0;
    row.next = None;
    Some(Released::Freed)
}

/// What those are told who wait for a shared lock.
pub(super) fn may_enter(key: Key, row: &LockRow) -> WakeUp {
    let next = row.next.as_ref().filter(|next| next.until > row.now);
    let next = next.map(|next| (next.lease_id, row.now.since(next.since)));
    WakeUp::may_enter(key, inside(row), next)
}

/// One more may enter beside those who share the key.
fn has_room(row: &LockRow, lease_id: Uuid, waited: Duration, limit: u32) -> bool {
    row.is_shared() && inside(row) < limit && comes_next(row, lease_id, waited)
}

/// How many call chains share the lock.
fn inside(row: &LockRow) -> u32 {
    row.live_shared()
        .fold(0, |sum, hold| hold.count.saturating_add(sum))
}

/// Nobody who waits came earlier, and no operator has revoked the lock.
fn comes_next(row: &LockRow, lease_id: Uuid, waited: Duration) -> bool {
    let since = row.now - waited;
    let before = |next: &Successor| next.until > row.now && next.lease_id != lease_id && next.since <= since;
    !row.revoked && !row.next.as_ref().is_some_and(before)
}

/// Begins a phase with the hold of this lease, if the row names it: it was passed on to it.
fn begin_if_passed_on(lease_id: Uuid, row: &mut LockRow) -> bool {
    let begins = row.lease_id == lease_id;
    if begins {
        row.shared = vec![SharedHold::new(lease_id, row.holder.as_str(), row.expire_at)];
        row.lease_id = phase_of(lease_id);
        row.reentrant_count = 1;
    }
    begins
}

/// The lease that the row names while a phase lasts that this lease began: no request names one.
fn phase_of(lease_id: Uuid) -> Uuid {
    Uuid::from_u128(lease_id.as_u128() ^ (1 << 127))
}

fn hold_of(row: &LockRow, lease_id: Uuid) -> Option<&SharedHold> {
    row.live_shared().find(|hold| hold.lease_id == lease_id)
}

/// The holder, as one is told who waits for room: there may be some when the first of the holds ends.
fn holder_until_room(row: &LockRow) -> Holder {
    Holder {
        remaining: Some(first_end(row, |_| true).unwrap_or_else(|| row.remaining())),
        ..holder(row)
    }
}

/// Time until the first of these holds ends.
fn first_end(row: &LockRow, of: impl Fn(&SharedHold) -> bool) -> Option<Duration> {
    let holds = row.live_shared().filter(|hold| of(hold));
    holds.map(|hold| hold.expire_at.since(row.now)).min()
}

/// Drops what has expired, and brings the columns that all programs read up to date. There is a live hold.
fn sum_up(row: &mut LockRow) {
    let now = row.now;
    row.shared.retain(|hold| hold.expire_at > now);
    row.reentrant_count = inside(row);
    let ends = row.shared.iter().map(|hold| hold.expire_at);
    row.expire_at = ends.max().unwrap_or(now);
    if let Some(first) = row.shared.first() {
        row.holder.clone_from(&first.holder);
    }
}
