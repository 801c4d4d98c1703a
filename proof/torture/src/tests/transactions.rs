//! Histories of calls whose lock ends with their transaction.

use super::sketch::{A, Ask, B, Sketch, TTL, WAIT, overlap};
use crate::check::{Cause, Finding};
use crate::fault::Fault;
use crate::history::{Count, End, Event, Form, How, MS};
use crate::process_id::ProcessId;

/// The key of a sketch.
const KEY: &str = "key0";

/// A call of A in a transaction begins at 100 ms.
fn begun() -> Sketch {
    let mut sketch = Sketch::default();
    let form = Form::Transaction;
    let ask = Ask {
        form,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 100, ask);
    sketch.enter(A, 1, 100, ("a", 10));
    sketch
}

/// As [`begun`], until 300 ms, beside a call of B from 200 to 250 ms. Its session is ended at 150 ms.
fn beside_another() -> Sketch {
    let mut sketch = begun();
    sketch.worker(A, 150, Event::SessionEnds { call: 1 });
    sketch.end(A, 1, 300, End::Done);
    sketch.section(B, 1, 20, 200, 250)
}

fn counted(sketch: Sketch, lines: &[(i64, i64, ProcessId)]) -> Sketch {
    let count = Count {
        key: KEY.to_owned(),
        number: lines.last().map_or(0, |line| line.0),
        lines: lines
            .iter()
            .map(|&(number, token, process)| (number, token, process.id_of(1)))
            .collect(),
    };
    let counts = vec![count];
    sketch.runner(90_000, Event::Counted { counts })
}

#[test]
fn a_transaction_that_committed_shares_its_key_with_nobody() {
    assert_eq!(
        overlap(counted(beside_another(), &[(1, 10, A)])),
        Cause::Unexplained
    );
}

#[test]
fn a_transaction_that_was_rolled_back_may_outlast_its_lock() {
    assert_eq!(overlap(counted(beside_another(), &[])), Cause::RolledBack);
    let beside = |to, fault: Option<Fault>| {
        let mut sketch = begun();
        sketch.end(A, 1, to, End::Done);
        let sketch = sketch.section(B, 1, 20, 200, 400);
        let events = fault.map(|fault| Event::Fault { fault });
        overlap(counted(
            events
                .into_iter()
                .fold(sketch, |sketch, event| sketch.runner(150, event)),
            &[],
        ))
    };
    assert_eq!(beside(300, None), Cause::Unexplained, "nothing rolled it back");
    assert_eq!(
        beside(250, None),
        Cause::RolledBack,
        "its body hears of an error soon"
    );
    let of_slot = |slot| Some(Fault::LoseRequest { slot });
    assert_eq!(beside(300, of_slot(A.slot)), Cause::RolledBack);
    assert_eq!(beside(300, of_slot(B.slot)), Cause::Unexplained);
}

/// Seed 3301 on PostgreSQL: the session was cut after the transaction had taken the key, and the body began two seconds later.
#[test]
fn a_take_that_was_rolled_back_may_be_heard_of_after_the_next_owner() {
    let fell = |lines: &[_]| {
        let mut sketch = Sketch::default().section(B, 1, 20, 200, 250);
        let ask = Ask {
            form: Form::InTransaction,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 100, ask);
        sketch.enter(A, 1, 300, ("a", 10));
        sketch.end(A, 1, 310, End::Done);
        let found = counted(sketch, lines).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::TokenFell { .. }))
    };
    assert!(!fell(&[]));
    assert!(fell(&[(1, 10, A)]), "it committed");
}

/// Seeds 281 and 283 on PostgreSQL: a nested call entered after another owner, and after that had left.
#[test]
fn a_nested_call_of_a_transaction_that_was_rolled_back_may_too() {
    let nested = |rolled_back: bool| {
        let mut sketch = begun();
        sketch.worker(A, 150, Event::SessionEnds { call: 1 });
        let ask = Ask {
            within: Some(1),
            ..Ask::default()
        };
        for (call, at) in [(2, 210), (3, 260)] {
            sketch.ask_as(A, call, at, ask);
            sketch.enter(A, call, at, ("a", 10));
            sketch.end(A, call, at + 10, End::Done);
        }
        sketch.end(A, 1, 300, End::Done);
        let lines: &[_] = if rolled_back { &[] } else { &[(1, 10, A)] };
        let found = counted(sketch.section(B, 1, 20, 200, 250), lines).findings();
        assert!(
            !found
                .iter()
                .any(|found| matches!(found, Finding::TokenFell { .. }))
        );
        found.iter().any(|found| matches!(found, Finding::Overlap { .. }))
    };
    assert!(!nested(true));
    assert!(nested(false));
}

#[test]
fn nobody_enters_in_a_transaction_beside_another_owner() {
    let mut sketch = Sketch::default().section(B, 1, 5, 0, 300);
    let form = Form::InTransaction;
    let ask = Ask {
        form,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 100, ask);
    sketch.enter(A, 1, 100, ("a", 10));
    sketch.end(A, 1, 200, End::Done);
    assert_eq!(overlap(counted(sketch, &[])), Cause::Unexplained);
}

#[test]
fn a_call_in_a_transaction_may_take_as_long_as_its_commit() {
    let mut sketch = Sketch::default();
    let form = Form::Transaction;
    let ask = Ask {
        form,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 0, ask);
    sketch.enter(A, 1, 0, ("a", 10));
    sketch.leave(A, 1, 10, 10);
    sketch.answer(A, 1, 10 + TTL + WAIT, End::Done, None);
    assert_eq!(sketch.findings(), []);
}

/// The findings about a second call in the transaction, with this owner and token.
fn again(named: (&str, i64)) -> Vec<Finding> {
    let mut sketch = Sketch::default();
    let form = Form::InTransaction;
    let ask = Ask {
        form,
        ..Ask::default()
    };
    let second = Ask {
        within: Some(1),
        again: true,
        ..ask
    };
    sketch.ask_as(A, 1, 0, ask);
    sketch.enter(A, 1, 0, ("a", 10));
    sketch.ask_as(A, 2, 10, second);
    sketch.enter(A, 2, 10, named);
    sketch.end(A, 2, 20, End::Done);
    sketch.end(A, 1, 30, End::Done);
    sketch.findings()
}

#[test]
fn a_second_call_in_a_transaction_has_its_lock() {
    assert_eq!(again(("another chain", 10)), []);
    let found = again(("another chain", 11));
    assert!(matches!(found[..], [Finding::ReentryChanged { .. }]), "{found:?}");
    let found = again(("a", 10));
    assert!(matches!(found[..], [Finding::OwnerShared { .. }]), "{found:?}");
}

#[test]
fn every_number_is_written_once_and_with_a_larger_token() {
    let findings = |lines: &[_]| counted(Sketch::default(), lines).findings();
    assert_eq!(findings(&[(1, 10, A), (2, 20, B), (3, 21, B)]), []);
    let miscounted = |number, found| Finding::Miscounted {
        key: KEY.to_owned(),
        number,
        found,
    };
    assert_eq!(
        findings(&[(1, 10, A), (2, 20, B), (2, 21, A)]),
        [miscounted(3, 2)]
    );
    assert_eq!(findings(&[(1, 10, A), (3, 20, B)]), [miscounted(2, 3)]);
    for token in [9, 10] {
        let fell = Finding::CommittedTokenFell {
            key: KEY.to_owned(),
            number: 2,
            token,
            before: 10,
        };
        assert_eq!(findings(&[(1, 10, A), (2, token, B)]), [fell]);
    }
}

#[test]
fn what_a_caller_was_told_stands() {
    for committed in [true, false] {
        let told = || {
            let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
            sketch.worker(A, 100, Event::Concluded { call: 1, committed });
            sketch
        };
        let undone = Finding::CommitUndone {
            process: A,
            call: 1,
            committed,
        };
        let (right, wrong): (&[_], &[_]) = if committed {
            (&[(1, 10, A)], &[])
        } else {
            (&[], &[(1, 10, A)])
        };
        assert_eq!(counted(told(), right).findings(), []);
        assert_eq!(counted(told(), wrong).findings(), [undone]);
    }
}

#[test]
fn nothing_stands_of_a_body_that_did_not_return() {
    let findings = |form, how| {
        let mut sketch = Sketch::default();
        sketch.ask_as(
            A,
            1,
            0,
            Ask {
                form,
                ..Ask::default()
            },
        );
        sketch.enter(A, 1, 0, ("a", 10));
        let last_step = 20 * MS;
        sketch.worker(
            A,
            20,
            Event::Leave {
                call: 1,
                last_step,
                how,
            },
        );
        sketch.answer(A, 1, 30, End::Dropped, None);
        counted(sketch, &[(1, 10, A)]).findings().len()
    };
    for how in [How::Dropped, How::Panicked] {
        assert_eq!(findings(Form::Transaction, how), 1);
    }
    // It was committed, perhaps by the body itself.
    assert_eq!(findings(Form::Transaction, How::Returned), 0);
    assert_eq!(findings(Form::Run, How::Dropped), 0);
}
