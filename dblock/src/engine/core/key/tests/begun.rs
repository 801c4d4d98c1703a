//! A run that begins together with the lock, for a caller that may be gone by then.

use super::*;
use crate::engine::core::ownership::Begin;
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
        ..call(TTL)
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
    granted(fence_token).with_record(true)
}

#[test]
fn a_run_whose_caller_has_entered_is_not_taken_back() {
    let (mut a, _) = asking();
    assert_eq!(a.answered(begun(7)), ["a has 7"]);
    let ownership = a.ownership.clone().unwrap();
    assert!(ownership.begun);
    a.says(Event::Begun(ownership));
    a.leaves("a", false);
    assert!(!takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_whose_caller_never_entered_is_taken_back_until_that_is_answered() {
    let (mut a, _) = asking();
    a.answered(begun(7));
    a.leaves("a", false);
    assert!(takes_back(&a.sends().unwrap()));
    a.says(Event::Answer(Err(unknown())));
    a.passes(SECOND);
    assert!(takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_of_a_caller_that_is_gone_is_taken_back_before_the_next_one_enters() {
    let (mut a, number) = asking();
    a.wants("b", Some(60 * SECOND));
    a.says(Event::GiveUp(number));
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
    a.says(Event::GiveUp(number));
    assert_eq!(a.answered(granted(7)), ["b has 7"]);
    a.leaves("b", true);
    assert!(!takes_back(&a.sends().unwrap()));
}

#[test]
fn a_run_of_unknown_outcome_is_taken_back_before_it_is_begun_again() {
    let (mut a, _) = asking();
    a.says(Event::Answer(Err(unknown())));
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
