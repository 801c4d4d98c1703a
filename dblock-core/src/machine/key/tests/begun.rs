//! A run that begins together with the lock, for a caller that may be gone by then.

use super::*;
use crate::machine::call::Begin;
use crate::store::{RecordChange, RecordEntry, RecordState};

fn entry() -> RecordEntry {
    RecordEntry {
        state: RecordState::Processing,
        attempts: 1,
        fence_token: RecordEntry::OF_THE_LEASE,
        fingerprint: None,
        result: None,
        error: None,
        holder: "h".into(),
        keep: TTL,
    }
}

fn runs() -> Call {
    let begin = Begin {
        change: Arc::new(RecordChange::Insert(entry())),
        undo: Arc::new(RecordChange::Delete(entry().version())),
    };
    Call {
        begin: Some(begin),
        ..call(options())
    }
}

fn begins(request: &Request) -> bool {
    matches!(request.record.as_deref(), Some(RecordChange::Insert(_)))
}

fn takes_back(request: &Request) -> bool {
    let undoes = matches!(request.record.as_deref(), Some(RecordChange::Delete(_)));
    assert!(matches!(request.action, Action::Release));
    undoes
}

/// A process that has asked for a lock for a run.
fn asking() -> (Process, u64) {
    let mut a = Process::new();
    let number = a.wants_with("a", Some(60 * SECOND), runs());
    assert!(begins(&a.sends().unwrap()));
    (a, number)
}

fn begun(fence_token: i64) -> Outcome {
    granted(fence_token).with_recorded(true)
}

#[test]
fn a_run_whose_caller_has_entered_is_not_taken_back() {
    let (mut a, _) = asking();
    assert_eq!(a.answered(begun(7)), ["a has 7"]);
    let ownership = a.ownership.clone().unwrap();
    assert!(ownership.begun);
    a.says(|machine, env| machine.begun(env, &ownership));
    a.leaves("a", false);
    assert!(!takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_whose_caller_never_entered_is_taken_back_until_that_is_answered() {
    let (mut a, _) = asking();
    a.answered(begun(7));
    a.leaves("a", false);
    assert!(takes_back(&a.sends().unwrap()));
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    a.passes(SECOND);
    assert!(takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_of_a_caller_that_is_gone_is_taken_back_before_the_next_one_enters() {
    let (mut a, number) = asking();
    a.wants("b", Some(60 * SECOND));
    a.says(|machine, env| machine.give_up(env, number));
    assert!(
        a.answered(begun(7)).is_empty(),
        "the lease is for the other caller"
    );
    assert!(takes_back(&a.sends().unwrap()));
    a.answered(released());
    assert_eq!(a.sends().unwrap().record, None, "b is no run");
    assert_eq!(a.answered(granted(8)), ["b has 8"]);
}

#[test]
fn a_lease_that_began_nothing_is_for_the_next_caller() {
    let (mut a, number) = asking();
    a.wants("b", Some(60 * SECOND));
    a.says(|machine, env| machine.give_up(env, number));
    assert_eq!(a.answered(granted(7)), ["b has 7"]);
    a.leaves("b", true);
    assert!(!takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_of_unknown_outcome_is_taken_back_before_it_is_begun_again() {
    let (mut a, _) = asking();
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    assert!(takes_back(&a.sends().unwrap()));
    a.answered(released());
    a.passes(SECOND);
    assert!(begins(&a.sends().unwrap()));
}

/// The row may be passed on to its lease at any time, by a process that knows nothing of the run.
#[test]
fn a_successor_begins_nothing_with_its_lease() {
    let (mut a, _) = asking();
    a.answered(queued_behind(7));
    a.passes(SECOND);
    assert_eq!(a.sends().unwrap().record, None);
}

/// A process whose first caller writes by itself that its run begins.
fn beginning() -> Process {
    let mut a = Process::holding("a");
    let undo = RecordChange::Delete(entry().version());
    let ownership = a.ownership.clone().unwrap();
    let (begun, _) = a.step(|machine, env| machine.begin(env, &ownership, Arc::new(undo)));
    assert_eq!(begun, Ok(()));
    a
}

/// The write may have been carried out when the caller is dropped.
#[test]
fn a_run_that_begins_after_its_lock_is_taken_back_unless_its_body_begins() {
    for begins in [true, false] {
        let mut a = beginning();
        if begins {
            let ownership = a.ownership.clone().unwrap();
            assert_eq!(a.step(|machine, env| machine.begun(env, &ownership)).0, Ok(()));
        }
        a.leaves("a", false);
        assert_eq!(takes_back(&a.sends().unwrap()), !begins);
    }
}

#[test]
fn a_run_that_is_taken_back_is_not_handed_over() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.wants("b", Some(60 * SECOND));
    a.sends().unwrap();
    a.answered(granted(7));
    let undo = Arc::new(RecordChange::Delete(entry().version()));
    let ownership = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.begin(env, &ownership, undo));
    let said = a.leaves("a", true);
    assert_eq!(said, Vec::<String>::new(), "b must not enter");
    assert!(takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_is_taken_back_although_its_lease_is_over() {
    let mut a = beginning();
    // Nothing reaches the store.
    a.passes(2 * TTL);
    let ownership = a.ownership.clone().unwrap();
    assert_eq!(
        a.step(|machine, env| machine.begun(env, &ownership)).0,
        Err(LostReason::Expired),
        "its body must not begin"
    );
    a.leaves("a", false);
    a.wants("b", Some(60 * SECOND));
    assert!(takes_back(&a.sends().unwrap()), "before anybody else enters");
    a.answered(Outcome::Lost);
    assert!(matches!(a.sends().unwrap().action, Action::Acquire(_)));
}

/// The lock may be that of an outer body, which has worked.
#[test]
fn a_run_that_never_began_does_not_cut_hold_min_short() {
    let mut a = Process::holding_with("a", call(options().hold_min(5 * SECOND)));
    let undo = Arc::new(RecordChange::Delete(entry().version()));
    let ownership = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.begin(env, &ownership, undo));
    a.leaves("a", true);
    while let Some(request) = a.sends() {
        assert!(matches!(request.action, Action::Extend(_)), "{request:?}");
        a.answered(Outcome::extended(5 * SECOND));
    }
    a.passes(5 * SECOND);
    assert!(takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_is_taken_back_when_its_lock_ends_with_a_transaction() {
    let mut a = beginning();
    let body = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.keep_in_transaction(env, &body));
    a.says(|machine, env| machine.handle_transaction_over(env, &body));
    a.wants("b", Some(60 * SECOND));
    assert!(takes_back(&a.sends().unwrap()), "before anybody else enters");
}

/// The row may still name the lease, which has expired while the extension was on its way.
#[test]
fn a_run_is_taken_back_when_its_lease_is_found_lost() {
    let mut a = beginning();
    a.passes(TTL / 2);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    a.answered(Outcome::Lost);
    assert!(takes_back(&a.sends().unwrap()));
    a.answered(Outcome::Lost);
    a.leaves("a", false);
    assert_eq!(a.sends(), None);
}

/// Its outcome would end the lock beside them.
#[test]
fn a_lock_is_closed_with_its_last_hold_only() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.enter(env, &body, None));
    assert_eq!(
        a.step(|machine, env| machine.close(env, &body)).0,
        Err(NotClosed::OtherHold)
    );
    // A child may go on in a lock that is lost.
    a.passes(TTL * 39 / 40);
    assert!(body.ended().is_some());
    assert_eq!(
        a.step(|machine, env| machine.close(env, &body)).0,
        Err(NotClosed::OtherHold)
    );
    a.leaves("a", true);
    assert_eq!(a.step(|machine, env| machine.close(env, &body)).0, Ok(()));
    a.leaves("a", true);
    let over = NotClosed::Over(LostReason::Expired);
    assert_eq!(a.step(|machine, env| machine.close(env, &body)).0, Err(over));
}

#[test]
fn nobody_enters_a_lock_that_is_closed_until_it_is_opened_again() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    assert_eq!(a.step(|machine, env| machine.close(env, &body)).0, Ok(()));
    assert!(a.step(|machine, env| machine.enter(env, &body, None)).0.is_err());
    // Otherwise the second one could open it under the first.
    assert_eq!(
        a.step(|machine, env| machine.close(env, &body)).0,
        Err(NotClosed::Before)
    );
    a.says(|machine, env| machine.reopen(env, &body));
    assert!(a.step(|machine, env| machine.enter(env, &body, None)).0.is_ok());
}

#[test]
fn what_has_begun_as_one_attempt_is_taken_back_as_a_whole_and_by_its_owner_alone() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.wants("b", Some(60 * SECOND));
    a.sends().unwrap();
    a.answered(granted(7));
    let former = a.ownership.clone().unwrap();
    a.leaves("a", true);
    let own = a.ownership.clone().unwrap();
    let second = RecordEntry {
        attempts: 2,
        ..entry()
    };
    let whole = Arc::new(RecordChange::Delete(entry().version()));
    let part = Arc::new(RecordChange::Replace(entry().version(), second.clone()));
    let other = Arc::new(RecordChange::Delete(second.version()));
    for (by, undo, kept) in [
        (&former, &other, None),
        (&own, &whole, Some(&whole)),
        (&own, &part, Some(&whole)),
        (&former, &other, Some(&whole)),
        (&own, &other, Some(&other)),
    ] {
        let begins = a.step(|machine, env| machine.begin(env, by, Arc::clone(undo))).0;
        assert_eq!(
            (begins.is_ok(), a.machine.undo(&own).as_ref()),
            (Arc::ptr_eq(by, &own), kept)
        );
    }
    assert_eq!(
        a.step(|machine, env| machine.begun(env, &former)).0,
        Err(LostReason::Released)
    );
    assert!(a.machine.undo(&own).is_some() && a.machine.undo(&former).is_none());
    assert_eq!(a.step(|machine, env| machine.begun(env, &own)).0, Ok(()));
    assert!(a.machine.undo(&own).is_none());
}
