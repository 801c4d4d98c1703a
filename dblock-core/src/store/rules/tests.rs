//! The rules, case by case.

mod shared;
mod successor;
mod take;

use super::*;
use crate::store::HandedOver;
use crate::store::clock::Timestamp;

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);
const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
/// The clock as a token.
const TOKEN: i64 = NOW.as_micros();
const TTL: Duration = Duration::from_secs(10);
const WANTED: Duration = Duration::from_secs(4);

fn row(lease_id: Uuid, reentrant_count: u32, expire_at: Timestamp) -> LockRow {
    LockRow {
        lease_id,
        reentrant_count,
        expire_at,
        owner: Uuid::now_v7(),
        fence_token: 7,
        fence_ceiling: 9,
        acquired_at: Timestamp::from_micros(1),
        holder: "h".into(),
        ..LockRow::new(Key::new(None, "k").unwrap(), NOW)
    }
}

fn held_by(lease_id: Uuid) -> LockRow {
    row(lease_id, 1, NOW + SECOND)
}

/// A row held by another lease, with a successor that waits since `since` and is live until `until`.
fn queued(next: Uuid, since: Timestamp, until: Timestamp) -> LockRow {
    LockRow {
        next: Some(successor(next, Uuid::now_v7(), since, until)),
        ..held_by(Uuid::now_v7())
    }
}

fn successor(lease_id: Uuid, owner: Uuid, since: Timestamp, until: Timestamp) -> Successor {
    Successor {
        lease_id,
        owner,
        holder: "next".into(),
        ttl: 3 * SECOND,
        spare_tokens: 5,
        since,
        until,
        limit: None,
    }
}

fn request(lease_id: Uuid, action: Action) -> Request {
    Request {
        key: Key::new(None, "k").unwrap(),
        lease_id,
        action,
        record: None,
    }
}

fn acquire(lease_id: Uuid, change: impl FnOnce(&mut Acquire)) -> Request {
    let mut ask = Acquire::new(Uuid::now_v7(), TTL, "me");
    change(&mut ask);
    request(lease_id, Action::Acquire(ask))
}

fn queue(lease_id: Uuid, waited: Duration) -> Request {
    acquire(lease_id, |ask| {
        ask.wanted_for = Some(WANTED);
        ask.queue = Some(waited);
        ask.spare_tokens = 5;
    })
}

fn extend(lease_id: Uuid, count: u32, handed_over: Option<HandedOver>) -> Request {
    let mut ask = Extend::new(count, TTL);
    ask.handed_over = handed_over;
    request(lease_id, Action::Extend(ask))
}

fn release(lease_id: Uuid) -> Request {
    request(lease_id, Action::Release)
}

/// The answer, and the row after it.
fn after(request: &Request, row: &LockRow) -> (Outcome, LockRow) {
    let mut after = row.clone();
    let carried_out = carry_out(request, &mut after).unwrap();
    assert_eq!(carried_out.changed, after != *row, "{request:?}");
    (carried_out.outcome, after)
}

fn unchanged(request: &Request, row: &LockRow) -> Outcome {
    let (outcome, after) = after(request, row);
    assert_eq!(&after, row, "{request:?}");
    outcome
}

fn is_queued(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Queued { .. })
}

#[test]
fn the_expiry_instant_itself_is_expired() {
    let mine = Uuid::now_v7();
    let expired = row(mine, 1, NOW);
    for late in [acquire(mine, |_| ()), extend(mine, 1, None), release(mine)] {
        assert_eq!(unchanged(&late, &expired), Outcome::Lost);
    }
    let next = Uuid::now_v7();
    let (outcome, taken) = after(&acquire(next, |_| ()), &expired);
    assert!(
        matches!(&outcome, Outcome::Granted { taken_over: Some(former), .. } if former.owner == expired.owner),
        "{outcome:?}"
    );
    assert_eq!(taken.lease_id, next);
}

#[test]
fn a_token_passes_the_ceiling_even_when_the_clock_fell_back() {
    let mut free = row(Uuid::now_v7(), 0, Timestamp::EPOCH);
    free.fence_ceiling = TOKEN + 1_000_000;
    let (_, taken) = after(&acquire(Uuid::now_v7(), |ask| ask.spare_tokens = 100), &free);
    assert_eq!(
        (taken.fence_token, taken.fence_ceiling),
        (TOKEN + 1_000_001, TOKEN + 1_000_101)
    );
}

#[test]
fn an_absent_row_becomes_a_whole_one() {
    let owner = Uuid::now_v7();
    let request = acquire(Uuid::now_v7(), |ask| {
        ask.owner = owner;
        ask.spare_tokens = 10;
    });
    let (outcome, row) = after(&request, &LockRow::new(request.key.clone(), NOW));
    assert!(
        matches!(outcome, Outcome::Granted { taken_over: None, .. }),
        "{outcome:?}"
    );
    let whole = LockRow {
        key: request.key,
        owner,
        reentrant_count: 1,
        expire_at: NOW + 10 * SECOND,
        lease_id: request.lease_id,
        fence_token: TOKEN,
        fence_ceiling: TOKEN + 10,
        wanted_until: Timestamp::EPOCH,
        acquired_at: NOW,
        holder: "me".into(),
        revoked: false,
        next: None,
        shared: Vec::new(),
        transaction: None,
        now: NOW,
    };
    assert_eq!(row, whole);
}

#[test]
fn wanted_until_is_written_only_when_half_of_it_has_passed() {
    let request = acquire(Uuid::now_v7(), |ask| ask.wanted_for = Some(WANTED));
    for (before, written) in [
        (NOW - SECOND, true),
        (NOW + SECOND, true),
        (NOW + 2 * SECOND, false),
        (NOW + 9 * SECOND, false),
    ] {
        let mut held = held_by(Uuid::now_v7());
        held.wanted_until = before;
        let (outcome, row) = after(&request, &held);
        assert!(matches!(outcome, Outcome::Busy(_)));
        held.wanted_until = if written { NOW + 4 * SECOND } else { before };
        assert_eq!(row, held);
    }
}

#[test]
fn a_revoked_lease_is_counted_but_not_extended() {
    let mine = Uuid::now_v7();
    let mut held = held_by(mine);
    held.revoked = true;
    let (outcome, row) = after(&extend(mine, 2, None), &held);
    assert!(matches!(outcome, Outcome::Extended { revoked: true, .. }));
    assert_eq!((row.reentrant_count, row.expire_at), (2, NOW + SECOND));
}

#[test]
fn a_local_hand_over_changes_who_has_the_lease_and_nothing_else() {
    let mine = Uuid::now_v7();
    let to = |holder: &str, fence_token| HandedOver {
        owner: Uuid::now_v7(),
        holder: holder.into(),
        fence_token,
    };
    let next = to("next", 8);
    let before = LockRow {
        reentrant_count: 3,
        ..held_by(mine)
    };
    let (_, held) = after(&extend(mine, 1, Some(next.clone())), &before);
    let expected = LockRow {
        owner: next.owner,
        holder: "next".into(),
        fence_token: 8,
        reentrant_count: 1,
        expire_at: NOW + 10 * SECOND,
        ..before
    };
    assert_eq!(held, expected);
    let late = extend(Uuid::now_v7(), 1, Some(next));
    assert_eq!(unchanged(&late, &held), Outcome::Lost);
    // A request that the caller has given up may be carried out after a later one.
    let mut row = held.clone();
    carry_out(&extend(mine, 1, Some(to("former", 7))), &mut row).unwrap();
    assert_eq!(row, held);
}

/// A transaction of the owner's has freed the row.
#[test]
fn a_release_changes_the_record_wherever_the_row_names_its_lease() {
    use crate::store::{RecordChange, RecordState, RecordVersion};
    let lease_id = Uuid::now_v7();
    let version = RecordVersion {
        state: RecordState::Processing,
        fence_token: 7,
        attempts: 1,
    };
    let release = release(lease_id).with_record(RecordChange::Delete(version));
    let changes = |mut row: LockRow| carry_out(&release, &mut row).unwrap().record.is_some();
    for (count, expire_at) in [(1, NOW + SECOND), (1, NOW - SECOND), (0, NOW + SECOND)] {
        assert!(changes(row(lease_id, count, expire_at)), "{count} {expire_at:?}");
    }
    assert!(!changes(held_by(Uuid::now_v7())));
}

/// A run begins with the token of the lease that was granted.
#[test]
fn a_grant_changes_the_record_under_its_own_token() {
    use crate::store::{RecordChange, RecordEntry, RecordState};
    let begun = RecordEntry {
        state: RecordState::Processing,
        attempts: 1,
        fence_token: RecordEntry::OF_THE_LEASE,
        fingerprint: None,
        result: None,
        error: None,
        holder: "me".into(),
        keep: TTL,
    };
    let request = acquire(Uuid::now_v7(), |_| ()).with_record(RecordChange::Insert(begun));
    let mut free = row(Uuid::now_v7(), 0, Timestamp::EPOCH);
    let change = carry_out(&request, &mut free).unwrap().record.unwrap();
    assert_eq!(change.entry().unwrap().fence_token, free.fence_token);
    let mut busy = held_by(Uuid::now_v7());
    assert_eq!(carry_out(&request, &mut busy).unwrap().record, None);
}

#[test]
fn the_ceiling_is_above_the_tokens_of_a_local_hand_over() {
    let mine = Uuid::now_v7();
    for (token, ceiling) in [(8, 9), (9, 9), (12, 14)] {
        let to = HandedOver::new(Uuid::now_v7(), "next", token);
        let (_, extended) = after(&extend(mine, 1, Some(to)), &held_by(mine));
        assert_eq!((extended.fence_token, extended.fence_ceiling), (token, ceiling));
    }
}

#[test]
fn what_may_be_forgotten_passes_nothing_on() {
    for (released, may) in [
        (Outcome::Released(Released::Before), true),
        (Outcome::Released(Released::Freed), true),
        (Outcome::Released(Released::PassedOn), false),
        (Outcome::Withdrawn, true),
        (Outcome::Lost, false),
    ] {
        assert_eq!(may_be_forgotten(&released), may, "{released:?}");
    }
}

/// Also to a successor, which the next release may pass the row on to.
#[test]
fn an_acquire_that_changes_nothing_is_busy_without_the_row_being_locked() {
    let mine = Uuid::now_v7();
    let busy = |request: &Request, row: &LockRow| matches!(still_busy(request, row), Some(Outcome::Busy(_)));
    let mut held = held_by(Uuid::now_v7());
    held.wanted_until = NOW + WANTED;
    assert!(busy(&acquire(mine, |ask| ask.wanted_for = Some(WANTED)), &held));
    held.wanted_until = NOW;
    let wants = acquire(mine, |ask| ask.wanted_for = Some(WANTED));
    assert_eq!(still_busy(&wants, &held), None, "it must be written");
    assert_eq!(still_busy(&acquire(mine, |_| ()), &row(mine, 0, NOW)), None);
    let mut queued = queued(mine, NOW, NOW + 3 * SECOND);
    queued.wanted_until = NOW + WANTED;
    let mut again = acquire(mine, |ask| ask.wanted_for = Some(WANTED));
    assert!(busy(&again, &queued));
    again.lease_id = Uuid::now_v7();
    assert!(busy(&again, &queued));
}

#[test]
fn a_row_is_wanted_until_that_instant() {
    let mine = Uuid::now_v7();
    for (until, expected) in [(NOW - SECOND, false), (NOW, false), (NOW + MICRO, true)] {
        let mut held = held_by(mine);
        held.wanted_until = until;
        let (outcome, _) = after(&extend(mine, 1, None), &held);
        assert!(
            matches!(outcome, Outcome::Extended { wanted, .. } if wanted == expected),
            "{until:?}: {outcome:?}"
        );
    }
}
