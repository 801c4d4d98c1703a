//! Takes by transactions of callers.

use super::*;

fn ask(sees: Sees) -> Take {
    Take {
        lease_id: Uuid::now_v7(),
        owner: Uuid::now_v7(),
        holder: "me".into(),
        sees,
    }
}

fn free() -> LockRow {
    row(Uuid::now_v7(), 0, NOW - SECOND)
}

/// What a take does that sees one row and locks another. Returns whether it has locked that.
fn takes(ask: &Take, seen: &LockRow, newest: &mut LockRow) -> (Took, bool) {
    let mut locked = false;
    let took = take(ask, Some(seen), || {
        locked = true;
        Some(newest)
    });
    (took, locked)
}

#[test]
fn a_free_row_is_written_and_stays_free() {
    let (ask, seen) = (ask(Sees::FirstSeen), free());
    let mut row = seen.clone();
    row.next = queued(Uuid::now_v7(), NOW, NOW + SECOND).next;
    row.revoked = true;
    let (took, _) = takes(&ask, &seen, &mut row);
    assert_eq!(took, Took::Taken(TOKEN));
    let written = LockRow {
        lease_id: ask.lease_id,
        owner: ask.owner,
        holder: "me".into(),
        fence_token: TOKEN,
        fence_ceiling: TOKEN,
        acquired_at: NOW,
        expire_at: NOW,
        ..seen
    };
    assert_eq!(row, written);
    // After the commit: it was released with it.
    assert!(!row.is_held());
    let (outcome, changed) = after(&request(ask.lease_id, Action::Release), &row);
    assert_eq!(outcome, Outcome::Released(Released::Before));
    assert_eq!(changed, row);
}

/// Else the holder's own requests would find the row locked.
#[test]
fn what_is_seen_to_be_of_no_use_is_not_locked() {
    let ask = ask(Sees::Newest);
    let locks = || -> Option<&mut LockRow> { panic!("it is locked") };
    assert_eq!(take(&ask, None, locks), Took::Absent);
    for end in [NOW + SECOND, NOW - SECOND] {
        let held = row(Uuid::now_v7(), 1, end);
        assert_eq!(take(&ask, Some(&held), locks), Took::Held);
    }
    for (ahead, micros) in [(0, 1), (5, 6)] {
        let mut row = free();
        row.fence_ceiling = TOKEN + ahead;
        let expected = Took::Ahead(micros * MICRO);
        assert_eq!(take(&ask, Some(&row), locks), expected);
    }
    assert_eq!(take(&ask, Some(&free()), || None), Took::Skipped);
}

#[test]
fn a_row_that_has_changed_is_locked_and_not_written() {
    let seen = free();
    let expired = row(seen.lease_id, 1, NOW - SECOND);
    let ahead = LockRow {
        fence_ceiling: TOKEN,
        ..seen.clone()
    };
    for changed in [expired, ahead] {
        let mut row = changed.clone();
        assert_eq!(takes(&ask(Sees::Newest), &seen, &mut row), (Took::Locked, true));
        assert_eq!(row, changed);
    }
}

/// Whoever had the key in between may have written what this transaction does not see.
#[test]
fn a_snapshot_that_is_older_than_the_row_takes_nothing() {
    let seen = free();
    let again = LockRow {
        lease_id: Uuid::now_v7(),
        ..seen.clone()
    };
    let later = LockRow {
        fence_token: seen.fence_token + 1,
        ..seen.clone()
    };
    for newer in [again, later] {
        let takes = |sees| takes(&ask(sees), &seen, &mut newer.clone()).0;
        assert_eq!(takes(Sees::FirstSeen), Took::Locked);
        assert!(matches!(takes(Sees::Newest), Took::Taken(_)));
    }
}

#[test]
fn a_ceiling_says_for_how_long_no_try_is_of_use() {
    assert_eq!(Took::<i64>::Ahead(SECOND).ahead(), SECOND);
    assert_eq!(Took::Taken(TOKEN).ahead(), Duration::ZERO);
}
