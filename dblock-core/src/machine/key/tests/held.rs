//! What is sent for a lease, and when; what its answers mean, and who is told.

use super::*;

/// A second owner, which has entered after a local hand-over, and the first one.
fn handed_over() -> (Process, Arc<Ownership>) {
    let mut a = Process::new();
    for ticket in ["a", "b", "c"] {
        a.wants(ticket, Some(60 * SECOND));
    }
    a.sends().unwrap();
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
    let former = a.ownership.clone().unwrap();
    assert_eq!(a.leaves("a", true), ["a confirmed", "b has 8"]);
    (a, former)
}

fn enters(a: &mut Process, ticket: &'static str) {
    let (own, confirm) = (a.ownership.clone().unwrap(), a.confirm(ticket));
    let (entered, said) = a.step(|machine, env| machine.enter(env, &own, Some(confirm)));
    assert!(entered.is_ok() && said.is_empty(), "{said:?}");
}

fn fails(a: &mut Process, error: StoreError) {
    let said = a.says(|machine, env| machine.handle_answer(env, Err(error)));
    assert!(said.is_empty(), "{said:?}");
}

/// Whether the last step has told of a failure that came after another one of its kind.
fn failed_again(a: &Process) -> Option<bool> {
    a.notes.iter().find_map(|note| match note {
        Note::Failed { again, .. } => Some(*again),
        _ => None,
    })
}

#[test]
fn a_former_owner_changes_nothing() {
    let (mut a, former) = handed_over();
    let current = a.ownership.clone().unwrap();
    assert_eq!((a.machine.holds(&former), a.machine.holds(&current)), (0, 1));
    let confirm = a.confirm("p");
    let said = a.says(|machine, env| machine.pin(env, &former, Some(confirm)));
    assert_eq!(said, ["p lost: Released"]);
    let confirm = a.confirm("t");
    let said = a.says(|machine, env| machine.set_ttl(env, &former, 2 * TTL, confirm));
    assert_eq!(said, ["t lost: Released"]);
    assert_eq!(
        a.leaves("b", true),
        ["b confirmed", "c has 9"],
        "nobody has pinned it"
    );
}

#[test]
fn a_fence_check_needs_no_request_where_the_row_names_the_owner() {
    let mut a = Process::holding("a");
    let (own, confirm) = (a.ownership.clone().unwrap(), a.confirm("p"));
    let said = a.says(|machine, env| machine.pin(env, &own, Some(confirm)));
    assert_eq!(said, ["p confirmed"]);
    assert_eq!(a.sends(), None);
}

#[test]
fn a_fence_check_waits_until_the_row_names_the_owner() {
    let (mut a, _) = handed_over();
    let (own, confirm) = (a.ownership.clone().unwrap(), a.confirm("p"));
    let said = a.says(|machine, env| machine.pin(env, &own, Some(confirm)));
    assert!(said.is_empty(), "the row names the former owner: {said:?}");
    assert!(matches!(a.sends().unwrap().action, Action::Extend(extend) if extend.handed_over.is_some()));
    assert_eq!(a.answered(extended()), ["p confirmed"]);
}

/// A hold that came and went changes nothing in the row. Its callers still hear that the lease stands.
#[test]
fn who_waits_for_a_confirmation_has_a_request_sent_until_it_is_answered() {
    let mut a = Process::holding("a");
    enters(&mut a, "n");
    assert!(a.leaves("m", true).is_empty());
    for again in [false, true] {
        assert!(matches!(a.sends().unwrap().action, Action::Extend(extend) if extend.count == 1));
        fails(&mut a, StoreError::new(StoreErrorKind::Conflict, "no"));
        assert_eq!(failed_again(&a), Some(again));
        a.passes(20 * MS);
    }
    a.sends().unwrap();
    assert_eq!(a.answered(extended()), ["n confirmed", "m confirmed"]);
}

#[test]
fn a_lease_that_is_not_renewed_is_looked_at_when_it_ends() {
    let a = Process::holding_with("a", call(options().renew(false)));
    let deadline = a.ownership.clone().unwrap().deadline();
    assert_eq!(a.machine.poll_timeout(), deadline);
}

/// Leases of one ttl are renewed together.
#[test]
fn renewals_fall_on_a_grid_and_their_lag_is_told() {
    let mut a = Process::holding("a");
    let (planned, grid) = (a.machine.poll_timeout().unwrap(), TTL / 16);
    assert_eq!(u128::from(planned.as_nanos()) % grid.as_nanos(), 0);
    assert!(planned <= a.now + TTL / 3 && planned + grid > a.now + TTL / 3);
    let lag = |a: &Process| {
        a.notes.iter().find_map(|note| match note {
            Note::RenewalLag(lag) => Some(*lag),
            _ => None,
        })
    };
    enters(&mut a, "n");
    a.sends().unwrap();
    a.answered(extended());
    assert_eq!(lag(&a), None, "it was no renewal");
    a.passes(TTL / 2);
    a.sends().unwrap();
    a.answered(extended());
    assert_eq!(lag(&a), Some(a.now.since(planned)));
}

/// An extension that hangs leaves time to be sent again.
#[test]
fn a_request_has_two_thirds_of_what_is_left() {
    let limit = |a: &mut Process| {
        let any = &[Kind::Extend, Kind::Release, Kind::Acquire];
        let transmit = a.step(|machine, env| machine.poll_transmit(env, any)).0;
        transmit.unwrap().time_limit
    };
    let mut a = Process::new();
    a.wants("a", Some(SECOND));
    assert_eq!(limit(&mut a), None);

    let mut a = Process::holding("a");
    a.passes(3 * SECOND);
    assert_eq!(limit(&mut a), Some(4 * SECOND));
    a.answered(extended());
    a.leaves("a", true);
    assert_eq!(limit(&mut a), None);

    let mut a = Process::holding_with("a", call(options().hold_min(60 * SECOND)));
    a.now = a.now + 3 * SECOND;
    a.leaves("a", true);
    assert_eq!(limit(&mut a), Some(4 * SECOND));
}

#[test]
fn nobody_looks_for_what_cannot_be_sent_while_a_request_is_on_its_way() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.wants("b", Some(60 * SECOND));
    a.sends().unwrap();
    a.answered(granted(7));
    enters(&mut a, "n");
    a.sends().unwrap();
    let own = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.leave(env, &own, true, None));
    assert_eq!(a.leaves("a", true), ["a confirmed", "b has 8"]);
    // The row is to follow within 50 ms.
    assert!(a.machine.poll_timeout().unwrap() > a.now + SECOND);
    a.answered(extended());
    assert!(a.machine.poll_timeout().unwrap() <= a.now + 50 * MS);
}

#[test]
fn an_answer_to_something_else_proves_nothing() {
    let mut a = Process::holding("a");
    a.passes(TTL / 2);
    a.sends().unwrap();
    assert!(a.answered(released()).is_empty());
    assert_eq!(failed_again(&a), Some(false));
    let own = a.ownership.clone().unwrap();
    assert_eq!(a.machine.holds(&own), 1);

    a.leaves("a", true);
    a.passes(20 * MS);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert!(a.answered(extended()).is_empty());
    assert!(failed_again(&a).is_some());
    a.passes(20 * MS);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(released()), ["a confirmed"]);
}

#[test]
fn a_release_that_finds_nothing_was_carried_out_or_came_too_late() {
    let mut a = Process::holding("a");
    a.leaves("a", true);
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Lost), ["a lost: Gone"]);
    assert!(
        matches!(a.notes[..], [Note::GoneBeforeRelease(_)]),
        "{:?}",
        a.notes
    );

    let mut a = Process::holding("a");
    a.leaves("a", true);
    a.sends().unwrap();
    fails(&mut a, unknown());
    a.passes(20 * MS);
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Lost), ["a confirmed"]);
    assert!(matches!(a.notes[..], [Note::Released(_)]), "{:?}", a.notes);
}

#[test]
fn a_revoked_lease_ends_when_it_was_to_end_whatever_the_store_answers() {
    let mut a = Process::holding("a");
    let own = a.ownership.clone().unwrap();
    let mut ends = Vec::new();
    for _ in 0..2 {
        a.passes(TTL / 3);
        a.sends().unwrap();
        a.answered(extended().with_revoked(true));
        ends.push(own.deadline());
    }
    assert_eq!(ends[0], ends[1]);
}

#[test]
fn a_shutdown_leaves_a_row_that_hold_min_keeps_busy() {
    let mut a = Process::holding_with("a", call(options().hold_min(5 * SECOND)));
    assert!(a.leaves("a", true).is_empty());
    assert!(!a.machine.needs_grace());
    assert_eq!(a.says(Machine::stop), ["a confirmed"]);
    assert!(matches!(a.notes[..], [Note::StaysBusy(_)]), "{:?}", a.notes);
    assert!(a.sends().is_none() && a.machine.is_idle());

    // This row would be free too soon.
    let mut a = Process::holding_with("a", call(options().hold_min(60 * SECOND)));
    assert!(a.leaves("a", true).is_empty());
    assert!(a.machine.needs_grace());
    assert!(a.says(Machine::stop).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Extend(extend) if extend.count == 0));

    // This lease has ended before its body.
    let mut a = Process::holding_with("a", call(options().hold_min(5 * SECOND)));
    assert!(a.says(Machine::stop).is_empty());
    a.leaves("a", false);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

/// What was sent before the body ended says nothing of `hold_min`.
#[test]
fn callers_wait_for_the_request_that_hold_min_needs() {
    let mut a = Process::holding_with("a", call(options().hold_min(60 * SECOND)));
    enters(&mut a, "n");
    a.sends().unwrap();
    let own = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.leave(env, &own, true, None));
    assert!(a.leaves("a", true).is_empty());
    assert!(a.answered(extended()).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Extend(extend) if extend.count == 0));
    let mut said = a.answered(Outcome::extended(61 * SECOND));
    said.sort();
    assert_eq!(said, ["a confirmed", "n confirmed"]);
}

#[test]
fn a_row_that_may_be_busy_for_hold_min_is_released_after_it() {
    let mut a = Process::holding_with("a", call(options().hold_min(60 * SECOND)));
    a.leaves("a", true);
    a.sends().unwrap();
    fails(&mut a, unknown());
    assert_eq!(a.passes(5 * SECOND), ["a unconfirmed"]);
    a.passes(TTL);
    assert_eq!(a.sends(), None, "the lease is over, as far as is known");
    a.passes(60 * SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

/// A release takes as long as a commit.
#[test]
fn a_caller_that_does_not_wait_waits_for_a_release_on_its_way() {
    let mut a = Process::holding("a");
    a.leaves("a", true);
    a.sends().unwrap();
    a.wants("b", None);
    assert!(a.passes(SECOND).is_empty());
    // Somebody's statement has the row locked for a moment.
    assert!(a.answered(Outcome::Skipped).is_empty());
    assert!(a.passes(19 * MS).is_empty());
    assert_eq!(a.passes(MS), ["b refused: row locked"]);
}

#[test]
fn a_row_that_names_somebody_else_ends_the_lease() {
    let mut a = Process::holding("a");
    let own = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.handle_gone(env, &own));
    assert_eq!(own.ended(), Some(LostReason::Gone));
    assert!(
        matches!(a.notes[..], [Note::Lost(_, LostReason::Gone)]),
        "{:?}",
        a.notes
    );
}

/// The extension may be carried out after the lease has ended.
#[test]
fn a_lease_that_may_be_lengthened_is_released_after_its_end() {
    let mut a = Process::holding("a");
    a.passes(TTL / 2);
    let lease = a.sends().unwrap().lease_id;
    a.passes(TTL);
    assert_eq!(a.sends(), None, "the extension is on its way");
    fails(&mut a, unknown());
    let release = a.sends().unwrap();
    assert_eq!((release.lease_id, release.action), (lease, Action::Release));
}
