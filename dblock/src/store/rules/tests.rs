//! The rules, case by case.

use super::*;

const NOW: i64 = 1_800_000_000_000_000;
const SECOND: i64 = 1_000_000;
const TTL: Duration = Duration::from_secs(3);

fn row(lease_id: Uuid, reentrant_count: u32, expire_at: i64) -> LockRow {
    LockRow {
        lease_id,
        reentrant_count,
        expire_at,
        owner: Uuid::now_v7(),
        fence_token: 7,
        fence_ceiling: 9,
        acquired_at: 1,
        holder: "h".into(),
        ..absent(Key::new(None, "k").unwrap(), NOW)
    }
}

fn request(lease_id: Uuid, action: Action) -> Request {
    Request {
        key: Key::new(None, "k").unwrap(),
        lease_id,
        action,
    }
}

fn acquire(lease_id: Uuid, wanted_for: Option<Duration>, spare_tokens: u32) -> Request {
    let action = Action::Acquire {
        owner: Uuid::now_v7(),
        ttl: TTL,
        holder: "me".into(),
        wanted_for,
        spare_tokens,
        reserve: false,
    };
    request(lease_id, action)
}

fn extend(lease_id: Uuid, count: u32, successor: Option<Successor>) -> Request {
    let action = Action::Extend {
        count,
        ttl: TTL,
        successor,
    };
    request(lease_id, action)
}

fn unchanged(request: &Request, row: &LockRow) -> Outcome {
    let mut after = row.clone();
    let (outcome, changed) = carry_out(request, &mut after, true);
    assert_eq!((&after, changed), (row, false), "{request:?}");
    outcome
}

#[test]
fn the_expiry_instant_itself_is_expired() {
    let mine = Uuid::now_v7();
    let expired = row(mine, 1, NOW);
    for late in [
        acquire(mine, None, 0),
        extend(mine, 1, None),
        request(mine, Action::Release),
    ] {
        assert_eq!(unchanged(&late, &expired), Outcome::Lost);
    }
    let next = Uuid::now_v7();
    let mut taken = expired.clone();
    let (outcome, changed) = carry_out(&acquire(next, None, 0), &mut taken, true);
    assert!(
        matches!(&outcome, Outcome::Granted { taken_over: Some(former), .. } if former.owner == expired.owner),
        "{outcome:?}"
    );
    assert!(changed);
    assert_eq!(taken.lease_id, next);
}

#[test]
fn a_token_passes_the_ceiling_even_when_the_clock_fell_back() {
    let mut free = row(Uuid::now_v7(), 0, 0);
    free.fence_ceiling = NOW + SECOND;
    carry_out(&acquire(Uuid::now_v7(), None, 100), &mut free, true);
    assert_eq!(
        (free.fence_token, free.fence_ceiling),
        (NOW + SECOND + 1, NOW + SECOND + 101)
    );
}

#[test]
fn an_absent_row_becomes_a_whole_one() {
    let request = acquire(Uuid::now_v7(), None, 10);
    let mut row = absent(request.key.clone(), NOW);
    let (outcome, changed) = carry_out(&request, &mut row, true);
    assert!(changed && matches!(outcome, Outcome::Granted { taken_over: None, .. }));
    let Action::Acquire { owner, .. } = request.action else {
        unreachable!()
    };
    let whole = LockRow {
        key: request.key,
        owner,
        reentrant_count: 1,
        expire_at: NOW + 3 * SECOND,
        lease_id: request.lease_id,
        fence_token: NOW,
        fence_ceiling: NOW + 10,
        wanted_until: 0,
        acquired_at: NOW,
        holder: "me".into(),
        revoked: false,
        reserved: None,
        now: NOW,
    };
    assert_eq!(row, whole);
}

#[test]
fn wanted_until_is_written_only_when_half_of_it_has_passed() {
    let request = acquire(Uuid::now_v7(), Some(Duration::from_secs(4)), 0);
    for (ahead, written) in [
        (-SECOND, true),
        (SECOND, true),
        (2 * SECOND, false),
        (9 * SECOND, false),
    ] {
        let mut held = row(Uuid::now_v7(), 1, NOW + SECOND);
        held.wanted_until = NOW + ahead;
        let before = held.clone();
        let (outcome, changed) = carry_out(&request, &mut held, true);
        assert!(matches!(outcome, Outcome::Busy(_)));
        assert_eq!(changed, written, "{ahead}");
        let wanted_until = if written { NOW + 4 * SECOND } else { NOW + ahead };
        assert_eq!(
            held,
            LockRow {
                wanted_until,
                ..before
            }
        );
    }
}

#[test]
fn a_revoked_lease_is_counted_but_not_extended() {
    let mine = Uuid::now_v7();
    let mut held = row(mine, 1, NOW + SECOND);
    held.revoked = true;
    let (outcome, _) = carry_out(&extend(mine, 2, None), &mut held, true);
    assert!(matches!(outcome, Outcome::Extended { revoked: true, .. }));
    assert_eq!((held.reentrant_count, held.expire_at), (2, NOW + SECOND));
}

#[test]
fn a_successor_takes_the_lease_and_nothing_else() {
    let mine = Uuid::now_v7();
    let successor = Successor {
        owner: Uuid::now_v7(),
        holder: "next".into(),
        fence_token: 8,
    };
    let before = row(mine, 3, NOW + SECOND);
    let mut held = before.clone();
    carry_out(&extend(mine, 1, Some(successor.clone())), &mut held, true);
    let after = LockRow {
        owner: successor.owner,
        holder: "next".into(),
        fence_token: 8,
        reentrant_count: 1,
        expire_at: NOW + 3 * SECOND,
        ..before
    };
    assert_eq!(held, after);
    let late = extend(Uuid::now_v7(), 1, Some(successor.clone()));
    assert_eq!(unchanged(&late, &held), Outcome::Lost);
    // A request that was given up may be carried out after a later one.
    let former = Successor {
        owner: Uuid::now_v7(),
        holder: "former".into(),
        fence_token: 7,
    };
    carry_out(&extend(mine, 1, Some(former)), &mut held, true);
    assert_eq!(
        (held.owner, &*held.holder, held.fence_token),
        (successor.owner, "next", 8)
    );
}
