//! Successors, and releases that pass a row on.

use super::*;
use crate::store::QUEUE_AHEAD;

#[test]
fn a_busy_acquire_becomes_the_successor() {
    let (holder, next) = (held_by(Uuid::now_v7()), Uuid::now_v7());
    for (ttl, next_ttl) in [(2, 2), (3, 3), (60, 3)] {
        let owner = Uuid::now_v7();
        let request = acquire(next, |ask| {
            ask.owner = owner;
            ask.ttl = Duration::from_secs(ttl);
            ask.wanted_for = Some(WANTED);
            ask.queue = Some(Duration::from_secs(7));
            ask.spare_tokens = 5;
        });
        let (outcome, row) = after(&request, &holder);
        let queued = Outcome::Queued {
            holder: crate::store::rules::holder(&holder),
            next_ttl: Duration::from_secs(next_ttl),
        };
        assert_eq!(outcome, queued);
        let (since, until) = (NOW - 7 * SECOND, NOW + 4 * SECOND);
        let expected = LockRow {
            wanted_until: until,
            next: Some(Successor {
                holder: "me".into(),
                ttl: Duration::from_secs(next_ttl),
                ..successor(next, owner, since, until)
            }),
            ..holder.clone()
        };
        assert_eq!(row, expected);
    }
    let timeless = acquire(next, |ask| ask.queue = Some(WANTED));
    assert!(matches!(unchanged(&timeless, &holder), Outcome::Busy(_)));
}

#[test]
fn a_lease_that_has_waited_long_enough_replaces_the_successor() {
    let (former, next) = (Uuid::now_v7(), Uuid::now_v7());
    let waited = Duration::from_secs(8);
    let since = NOW - 8 * SECOND;
    for (former_since, replaced) in [
        (since - 60 * SECOND, false),
        (since, false),
        (since + QUEUE_AHEAD - MICRO, false),
        (since + QUEUE_AHEAD, true),
        (NOW, true),
    ] {
        let before = queued(former, former_since, NOW + SECOND);
        let (outcome, row) = after(&queue(next, waited), &before);
        assert_eq!(is_queued(&outcome), replaced, "{former_since:?}");
        let is = row.next.unwrap().lease_id;
        assert_eq!(is, if replaced { next } else { former });
    }
    let lapsed = queued(former, since - 60 * SECOND, NOW);
    assert!(is_queued(&after(&queue(next, waited), &lapsed).0));
}

#[test]
fn a_successor_that_asks_again_keeps_its_place() {
    let next = Uuid::now_v7();
    let ask = |waited| {
        let mut request = queue(next, Duration::from_secs(waited));
        if let Action::Acquire(ask) = &mut request.action {
            ask.owner = Uuid::nil();
        }
        request
    };
    let place = |since, until| {
        let mut row = queued(next, since, until);
        row.next.as_mut().unwrap().owner = Uuid::nil();
        row.wanted_until = NOW + 60 * SECOND;
        row
    };
    // At least half of its time is left.
    let fresh = place(NOW - SECOND, NOW + 2 * SECOND);
    for request in [ask(0), ask(60), acquire(next, |_| ())] {
        assert!(is_queued(&unchanged(&request, &fresh)));
    }
    // Less than half is left.
    let stale = place(NOW - 5 * SECOND, NOW + 2 * SECOND - MICRO);
    for (waited, since) in [(0, NOW - 5 * SECOND), (60, NOW - 60 * SECOND)] {
        let (outcome, row) = after(&ask(waited), &stale);
        assert!(is_queued(&outcome));
        let is = row.next.unwrap();
        assert_eq!((is.since, is.until), (since, NOW + 4 * SECOND));
    }
    // A lapsed place is free to be taken.
    let lapsed = place(NOW - 5 * SECOND, NOW);
    assert!(matches!(
        unchanged(&acquire(next, |_| ()), &lapsed),
        Outcome::Busy(_)
    ));
    assert_eq!(after(&ask(0), &lapsed).1.next.unwrap().since, NOW);
    // Another caller of the same lease.
    let other = queue(next, Duration::ZERO);
    let (_, row) = after(&other, &fresh);
    assert_ne!(row.next.unwrap().owner, Uuid::nil());
}

#[test]
fn a_release_passes_the_row_on_to_a_live_successor() {
    let next = Uuid::now_v7();
    for (ceiling, token) in [
        (9, TOKEN),
        (TOKEN - 1, TOKEN),
        (TOKEN, TOKEN + 1),
        (TOKEN + 1_000_000, TOKEN + 1_000_001),
    ] {
        let mut held = queued(next, Timestamp::EPOCH, NOW + MICRO);
        held.reentrant_count = 3;
        held.revoked = true;
        held.wanted_until = NOW - MICRO;
        held.fence_ceiling = ceiling;
        let successor = held.next.clone().unwrap();
        let (outcome, row) = after(&release(held.lease_id), &held);
        assert_eq!(outcome, Outcome::Released(Released::PassedOn));
        let expected = LockRow {
            owner: successor.owner,
            holder: "next".into(),
            lease_id: next,
            reentrant_count: 1,
            fence_token: token,
            fence_ceiling: token + 5,
            acquired_at: NOW,
            expire_at: NOW + 3 * SECOND,
            revoked: false,
            next: None,
            ..held.clone()
        };
        assert_eq!(row, expected);

        assert_eq!(unchanged(&release(held.lease_id), &row), Outcome::Lost);
        assert_eq!(unchanged(&extend(held.lease_id, 1, None), &row), Outcome::Lost);
        let granted = unchanged(&acquire(next, |_| ()), &row);
        assert!(
            matches!(granted, Outcome::Granted { fence_token, taken_over: None, .. } if fence_token == token),
            "{granted:?}"
        );
    }
}

#[test]
fn a_release_frees_behind_a_lapsed_successor() {
    let held = queued(Uuid::now_v7(), Timestamp::EPOCH, NOW);
    let (outcome, row) = after(&release(held.lease_id), &held);
    assert_eq!(outcome, Outcome::Released(Released::Freed));
    let expected = LockRow {
        reentrant_count: 0,
        next: None,
        ..held
    };
    assert_eq!(row, expected);
}

#[test]
fn a_repeated_release_passes_nothing_on() {
    let free = LockRow {
        reentrant_count: 0,
        ..queued(Uuid::now_v7(), Timestamp::EPOCH, NOW + MICRO)
    };
    let again = unchanged(&release(free.lease_id), &free);
    assert_eq!(again, Outcome::Released(Released::Before));
}

#[test]
fn a_successor_withdraws_live_or_lapsed_from_a_row_held_or_expired() {
    let (next, soon) = (Uuid::now_v7(), NOW + MICRO);
    for (until, expire_at) in [(soon, soon), (NOW, soon), (soon, NOW)] {
        let before = LockRow {
            expire_at,
            ..queued(next, Timestamp::EPOCH, until)
        };
        let (outcome, row) = after(&release(next), &before);
        assert_eq!(outcome, Outcome::Withdrawn);
        assert_eq!(row, LockRow { next: None, ..before });
        assert_eq!(unchanged(&release(next), &row), Outcome::Lost);
    }
}

#[test]
fn an_expired_row_is_anybodys_and_names_nobody_when_it_is_taken() {
    let next = Uuid::now_v7();
    let expired = LockRow {
        expire_at: NOW,
        ..queued(next, Timestamp::EPOCH, NOW + SECOND)
    };
    for taker in [next, Uuid::now_v7()] {
        let (outcome, row) = after(&queue(taker, WANTED), &expired);
        assert!(matches!(
            outcome,
            Outcome::Granted {
                taken_over: Some(_),
                ..
            }
        ));
        assert_eq!((row.lease_id, row.next), (taker, None));
    }
    // An expired holder passes nothing on.
    assert_eq!(unchanged(&release(expired.lease_id), &expired), Outcome::Lost);
}

#[test]
fn the_last_token_is_given_once() {
    let (mine, next) = (Uuid::now_v7(), Uuid::now_v7());
    let mut free = row(mine, 0, Timestamp::EPOCH);
    free.fence_ceiling = i64::MAX - 1;
    let request = acquire(next, |ask| ask.spare_tokens = 10);
    let (_, mut last) = after(&request, &free);
    assert_eq!((last.fence_token, last.fence_ceiling), (i64::MAX, i64::MAX));

    // The holder goes on, accepts successors, and frees the row. It passes nothing on.
    assert!(matches!(
        unchanged(&request, &last),
        Outcome::Granted {
            fence_token: i64::MAX,
            ..
        }
    ));
    let waiter = queue(Uuid::now_v7(), Duration::ZERO);
    let (queued, row) = after(&waiter, &last);
    assert!(is_queued(&queued));
    let (outcome, row) = after(&release(next), &row);
    assert_eq!(outcome, Outcome::Released(Released::Freed));
    assert_eq!((row.reentrant_count, &row.next), (0, &None));

    last.expire_at = NOW;
    for gone in [row, last] {
        let mut row = gone.clone();
        let error = carry_out(&waiter, &mut row).unwrap_err();
        assert!(!error.is_retryable() && !error.is_outcome_unknown(), "{error:?}");
        assert_eq!(row, gone);
    }
}
