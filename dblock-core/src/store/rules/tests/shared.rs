//! Shared holds.

use super::*;
use crate::store::{Enter, Share, SharedHold};

const NO_LIMIT: u32 = u32::MAX;

/// An acquire of a shared hold.
fn share(lease_id: Uuid, limit: u32) -> Request {
    acquire(lease_id, |ask| ask.limit = Some(limit))
}

/// One that waits, and has done so for this long.
fn share_queued(lease_id: Uuid, limit: u32, waited: Duration) -> Request {
    acquire(lease_id, |ask| {
        ask.limit = Some(limit);
        ask.wanted_for = Some(WANTED);
        ask.queue = Some(waited);
    })
}

/// So many are inside.
fn extend_share(lease_id: Uuid, number: u64, count: u32) -> Request {
    let mut ask = Extend::new(count, TTL);
    ask.share = Some(Share::new(number, None));
    request(lease_id, Action::Extend(ask))
}

/// One is inside, and so many want to enter.
fn enter(lease_id: Uuid, count: u32, limit: u32, waited: Duration) -> Request {
    let mut ask = Extend::new(1, TTL);
    ask.share = Some(Share::new(1, Some(Enter::new(count, limit, waited))));
    request(lease_id, Action::Extend(ask))
}

/// The lease of the row while a phase lasts that this one began.
fn phase(lease_id: Uuid) -> Uuid {
    let (_, row) = after(
        &share(lease_id, NO_LIMIT),
        &row(Uuid::now_v7(), 0, Timestamp::EPOCH),
    );
    assert_ne!(row.lease_id, lease_id);
    row.lease_id
}

/// A row that these leases share, with so many chains inside each.
fn shared(holds: &[(Uuid, u32)]) -> LockRow {
    let first = phase(holds[0].0);
    let mut row = row(first, holds.iter().map(|(_, count)| count).sum(), NOW + SECOND);
    row.shared = holds
        .iter()
        .map(|(lease_id, count)| SharedHold {
            count: *count,
            ..SharedHold::new(*lease_id, "h", NOW + SECOND)
        })
        .collect();
    row
}

fn ids<const N: usize>() -> [Uuid; N] {
    std::array::from_fn(|_| Uuid::now_v7())
}

fn is_granted(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Granted { .. })
}

fn counts(row: &LockRow) -> Vec<u32> {
    row.shared.iter().map(|hold| hold.count).collect()
}

/// The row, with a lease that waits since this long and lives.
fn with_next(row: &LockRow, lease_id: Uuid, waited: Duration, limit: Option<u32>) -> LockRow {
    let next = successor(lease_id, Uuid::now_v7(), NOW - waited, NOW + SECOND);
    LockRow {
        next: Some(Successor { limit, ..next }),
        ..row.clone()
    }
}

#[test]
fn those_who_share_enter_beside_each_other_with_one_token() {
    let [one, two] = ids();
    let free = row(Uuid::now_v7(), 0, Timestamp::EPOCH);
    let (granted, row) = after(&share(one, NO_LIMIT), &free);
    assert!(
        matches!(
            granted,
            Outcome::Granted {
                fence_token: TOKEN,
                remaining: TTL,
                ..
            }
        ),
        "{granted:?}"
    );
    assert_eq!(
        (row.lease_id, row.reentrant_count, row.expire_at),
        (phase(one), 1, NOW + TTL)
    );
    let (granted, row) = after(&share(two, NO_LIMIT), &row);
    assert!(
        matches!(
            granted,
            Outcome::Granted {
                fence_token: TOKEN,
                taken_over: None,
                ..
            }
        ),
        "{granted:?}"
    );
    assert_eq!(
        (row.lease_id, row.reentrant_count, counts(&row)),
        (phase(one), 2, vec![1, 1])
    );
    assert!(
        is_granted(&unchanged(&share(two, NO_LIMIT), &row)),
        "a repeated request"
    );
    let alone = Uuid::now_v7();
    assert!(matches!(
        unchanged(&acquire(alone, |_| ()), &row),
        Outcome::Busy(_)
    ));
    for of_one_alone in [
        extend(one, 1, None),
        request(one, Action::Transfer(Transfer::new(alone, alone, TTL, "t"))),
    ] {
        assert_eq!(unchanged(&of_one_alone, &row), Outcome::Lost);
    }
}

#[test]
fn nobody_shares_with_one_who_has_it_alone() {
    let mine = Uuid::now_v7();
    assert!(matches!(
        unchanged(&share(mine, NO_LIMIT), &held_by(Uuid::now_v7())),
        Outcome::Busy(_)
    ));
    let kept = LockRow {
        transaction: Some(crate::OpenTransaction::default()),
        ..shared(&[(Uuid::now_v7(), 1)])
    };
    assert!(matches!(
        unchanged(&share(mine, NO_LIMIT), &kept),
        Outcome::Busy(_)
    ));
}

#[test]
fn a_limit_counts_all_who_are_inside() {
    let [one, two, three] = ids();
    let row = shared(&[(one, 2), (two, 1)]);
    for (limit, enters) in [(2, false), (3, false), (4, true), (NO_LIMIT, true)] {
        let (outcome, _) = after(&share(three, limit), &row);
        assert_eq!(is_granted(&outcome), enters, "{limit}");
    }
    // One of the two that the row counts has left, and one is in the other process.
    for (limit, enters, inside) in [(1, 1, 1), (2, 1, 1), (3, 1, 2), (3, 9, 2), (9, 4, 5), (9, 0, 1)] {
        let (outcome, after) = after(&enter(one, enters, limit, Duration::ZERO), &row);
        assert!(
            matches!(outcome, Outcome::Extended { count, .. } if count == inside),
            "{outcome:?}"
        );
        assert_eq!(
            (counts(&after), after.reentrant_count),
            (vec![inside, 1], inside + 1)
        );
    }
}

#[test]
fn a_hold_that_has_expired_counts_for_nothing() {
    let [one, two, three] = ids();
    let mut row = shared(&[(one, 2), (two, 1)]);
    row.shared[0].expire_at = NOW;
    assert_eq!(unchanged(&extend_share(one, 1, 1), &row), Outcome::Lost);
    assert_eq!(
        unchanged(&release(one), &row),
        Outcome::Lost,
        "the others keep the row"
    );
    let (granted, row) = after(&share(three, 2), &row);
    assert!(is_granted(&granted));
    assert_eq!(
        (counts(&row), row.reentrant_count, row.expire_at),
        (vec![1, 1], 2, NOW + TTL)
    );
    let over = LockRow {
        now: NOW + TTL,
        ..row
    };
    let next = Uuid::now_v7();
    let (granted, row) = after(&share(next, 1), &over);
    assert!(
        matches!(
            granted,
            Outcome::Granted {
                taken_over: Some(_),
                ..
            }
        ),
        "{granted:?}"
    );
    assert_eq!(
        (row.lease_id, counts(&row)),
        (phase(next), vec![1]),
        "all have expired"
    );
}

#[test]
fn one_who_waits_for_room_is_told_when_the_first_hold_ends() {
    let mut row = shared(&[(Uuid::now_v7(), 1), (Uuid::now_v7(), 1)]);
    row.shared[1].expire_at = NOW + MICRO;
    let Outcome::Busy(holder) = unchanged(&share(Uuid::now_v7(), 2), &row) else {
        panic!("there was room");
    };
    assert_eq!(holder.remaining, Some(MICRO));
    let Outcome::Busy(holder) = unchanged(&acquire(Uuid::now_v7(), |_| ()), &row) else {
        panic!("it was free");
    };
    assert_eq!(holder.remaining, Some(SECOND));
    let sharer = row.shared[0].lease_id;
    let room_in = |row: &LockRow, request: &Request| match after(request, row).0 {
        Outcome::Extended { room_in, .. } => room_in,
        other => panic!("{other:?}"),
    };
    assert_eq!(room_in(&row, &enter(sharer, 1, 2, SECOND)), Some(MICRO));
    assert_eq!(room_in(&row, &enter(sharer, 1, 3, SECOND)), None, "there is room");
    assert_eq!(room_in(&row, &extend_share(sharer, 1, 1)), None, "nobody asks");
    row.shared.truncate(1);
    row.reentrant_count = 1;
    assert_eq!(room_in(&row, &enter(sharer, 1, 1, SECOND)), None, "it has all");
}

#[test]
fn an_end_that_leaves_others_inside_keeps_the_row_held() {
    let [one, two, next] = ids();
    let mut row = with_next(&shared(&[(one, 1), (two, 3)]), next, SECOND, None);
    (row.shared[0].expire_at, row.expire_at) = (NOW + 9 * SECOND, NOW + 9 * SECOND);
    let (outcome, row) = after(&release(one), &row);
    assert_eq!(outcome, Outcome::Released(Released::Freed));
    assert_eq!(
        (row.lease_id, counts(&row), row.reentrant_count),
        (phase(one), vec![3], 3)
    );
    assert_eq!(row.expire_at, NOW + SECOND);
    assert_eq!(unchanged(&release(one), &row), Outcome::Lost, "it has left");
    assert_eq!(unchanged(&share(one, NO_LIMIT), &row), Outcome::Lost);
    let (outcome, row) = after(&release(two), &row);
    assert_eq!(outcome, Outcome::Released(Released::PassedOn));
    assert_eq!((row.lease_id, row.reentrant_count), (next, 1));
    assert!(row.shared.is_empty(), "to one who has it alone");
}

#[test]
fn the_last_end_frees_the_row() {
    let [one, next] = ids();
    let (outcome, row) = after(&release(one), &shared(&[(one, 7)]));
    assert_eq!(
        (outcome, row.reentrant_count),
        (Outcome::Released(Released::Freed), 0)
    );
    assert!(row.shared.is_empty());
    let row = with_next(&held_by(one), next, SECOND, Some(3));
    let (outcome, row) = after(&release(one), &row);
    assert_eq!(
        (outcome, row.lease_id),
        (Outcome::Released(Released::PassedOn), next)
    );
    let other = share(Uuid::now_v7(), 3);
    assert!(
        matches!(unchanged(&other, &row), Outcome::Busy(_)),
        "the first one comes first"
    );
    for first in [share(next, 3), extend_share(next, 0, 1)] {
        let (_, row) = after(&first, &row);
        assert_eq!((row.lease_id, counts(&row)), (phase(next), vec![1]));
        assert!(is_granted(&after(&other, &row).0), "others follow");
    }
    let (outcome, row) = after(&release(next), &row);
    assert_eq!(
        (outcome, row.reentrant_count),
        (Outcome::Released(Released::Freed), 0),
        "or it gives up"
    );
}

#[test]
fn a_phase_that_is_over_does_not_begin_again() {
    let one = Uuid::now_v7();
    let (_, row) = after(&release(one), &shared(&[(one, 1)]));
    assert_eq!(unchanged(&share(one, NO_LIMIT), &row), Outcome::Lost);
}

#[test]
fn nobody_enters_before_one_who_came_earlier() {
    let [inside, next, mine] = ids();
    let row = with_next(&shared(&[(inside, 1)]), next, SECOND, None);
    for (waited, enters) in [(Duration::ZERO, false), (SECOND, false), (SECOND + MICRO, true)] {
        let (outcome, _) = after(&share_queued(mine, NO_LIMIT, waited), &row);
        assert_eq!(is_granted(&outcome), enters, "{waited:?}");
        let (outcome, _) = after(&enter(inside, 1, NO_LIMIT, waited), &row);
        let count = if enters { 2 } else { 1 };
        assert!(
            matches!(outcome, Outcome::Extended { count: is, .. } if is == count),
            "{outcome:?}"
        );
    }
    let (outcome, entered) = after(&share_queued(next, NO_LIMIT, SECOND), &row);
    assert!(is_granted(&outcome), "it came first itself");
    assert_eq!(entered.next, None, "and waits no longer");
    let mut lapsed = row.clone();
    lapsed.next.as_mut().unwrap().until = NOW;
    assert!(is_granted(&after(&share(mine, NO_LIMIT), &lapsed).0));
}

/// The first has let two enter, of whom the second would know nothing.
#[test]
fn an_extension_that_arrives_twice_counts_once() {
    let [mine, next] = ids();
    let ask = enter(mine, 2, 4, Duration::ZERO);
    let (first, row) = after(&ask, &shared(&[(mine, 1)]));
    let row = with_next(&row, next, SECOND, Some(4));
    assert_eq!(unchanged(&ask, &row), first);
    assert_eq!(counts(&row), [3]);
}

/// The lease that a pass-on gives is short.
#[test]
fn an_extension_before_anybody_has_entered_lasts_its_ttl() {
    let [mine] = ids();
    let ask = extend_share(mine, 0, 1);
    let (answer, row) = after(&ask, &shared(&[(mine, 1)]));
    let Outcome::Extended { remaining, .. } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((remaining, row.shared[0].expire_at), (TTL, NOW + TTL));
}

#[test]
fn one_who_waits_says_whether_it_shares() {
    let [mine, owner] = ids();
    let ask = |limit| {
        acquire(mine, |ask| {
            (ask.owner, ask.limit) = (owner, limit);
            (ask.wanted_for, ask.queue) = (Some(WANTED), Some(SECOND));
        })
    };
    let (outcome, row) = after(&ask(None), &held_by(Uuid::now_v7()));
    assert!(is_queued(&outcome));
    let (_, row) = after(&ask(Some(3)), &row);
    assert_eq!(row.next.as_ref().unwrap().limit, Some(3));
    assert!(is_queued(&unchanged(&ask(Some(3)), &row)));
    let (outcome, row) = after(&release(mine), &row);
    assert_eq!((outcome, row.next), (Outcome::Withdrawn, None));
}

#[test]
fn those_who_are_inside_are_written_whoever_waits() {
    let [mine, next] = ids();
    let row = with_next(&shared(&[(mine, 1)]), next, SECOND, None);
    let (extended, _) = after(&extend_share(mine, 1, 7), &row);
    assert!(
        matches!(extended, Outcome::Extended { count: 7, .. }),
        "{extended:?}"
    );
}

#[test]
fn a_late_extension_changes_nothing() {
    let mine = Uuid::now_v7();
    let (_, row) = after(&extend_share(mine, 2, 5), &shared(&[(mine, 1)]));
    let late = unchanged(&extend_share(mine, 1, 1), &row);
    assert!(matches!(late, Outcome::Extended { count: 5, .. }), "{late:?}");
}

#[test]
fn a_revoked_row_takes_nobody_in_and_is_not_lengthened() {
    let mine = Uuid::now_v7();
    let mut row = shared(&[(mine, 1)]);
    row.revoked = true;
    assert!(matches!(
        unchanged(&share(Uuid::now_v7(), NO_LIMIT), &row),
        Outcome::Busy(_)
    ));
    let (extended, after) = after(&enter(mine, 3, NO_LIMIT, Duration::ZERO), &row);
    assert!(
        matches!(
            extended,
            Outcome::Extended {
                revoked: true,
                count: 1,
                remaining: SECOND,
                ..
            }
        ),
        "{extended:?}"
    );
    assert_eq!(after.expire_at, row.expire_at);
}

/// An operator has freed the key, and somebody else has it since: the lease id is another one.
#[test]
fn the_holds_of_a_phase_that_is_over_count_for_nothing() {
    let [one, two] = ids();
    let mut freed = shared(&[(one, 1), (two, 1)]);
    (freed.reentrant_count, freed.lease_id) = (0, Uuid::now_v7());
    for late in [extend_share(two, 1, 1), release(two)] {
        assert_eq!(unchanged(&late, &freed), Outcome::Lost);
    }
    let (granted, row) = after(&acquire(Uuid::now_v7(), |_| ()), &freed);
    assert!(is_granted(&granted) && row.shared.is_empty());
}

#[test]
fn a_row_that_was_passed_on_keeps_its_end_and_its_token() {
    let mine = Uuid::now_v7();
    let (granted, row) = after(&share(mine, 3), &held_by(mine));
    assert!(
        matches!(
            granted,
            Outcome::Granted {
                fence_token: 7,
                remaining: SECOND,
                ..
            }
        ),
        "{granted:?}"
    );
    assert_eq!((counts(&row), row.expire_at), (vec![1], NOW + SECOND));
    let (extended, row) = after(&extend_share(mine, 1, 1), &held_by(mine));
    assert!(
        matches!(
            extended,
            Outcome::Extended {
                count: 1,
                remaining: TTL,
                ..
            }
        ),
        "{extended:?}"
    );
    assert_eq!((counts(&row), row.expire_at), (vec![1], NOW + TTL));
}
