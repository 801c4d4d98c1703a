//! Histories in which the library names false owners or tokens, and the checker does not believe it.

use super::sketch::{A, Ask, B, Sketch, overlap};
use crate::check::{Cause, Finding};
use crate::history::{End, Event, Form};

/// A call inside another's section, which enters with an owner and a token that the library names.
fn inside(sketch: &mut Sketch, ask: Ask, named: (&str, i64)) {
    sketch.ask(A, 1, 0, None);
    sketch.enter(A, 1, 0, ("x", 10));
    sketch.ask_as(A, 2, 1, ask);
    sketch.enter(A, 2, 2, named);
    for (call, at) in [(2, 3), (1, 4)] {
        sketch.end(A, call, at, End::Done);
    }
}

#[test]
fn two_acquirers_with_the_owner_and_token_of_one_are_two() {
    let mut sketch = Sketch::default().section(B, 1, 10, 50, 150);
    sketch.ask(A, 1, 0, None);
    // The library gives the second call the first one's owner and token, as if it re-entered.
    sketch.enter(A, 1, 0, ("10", 10));
    sketch.end(A, 1, 100, End::Done);
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

#[test]
fn a_task_that_did_not_inherit_is_another_acquirer() {
    let mut sketch = Sketch::default();
    let nested = Ask {
        within: Some(1),
        ..Ask::default()
    };
    inside(&mut sketch, nested, ("x", 10));
    assert_eq!(sketch.findings(), []);

    let mut sketch = Sketch::default();
    let spawned = Ask {
        spawned_by: Some(1),
        ..Ask::default()
    };
    inside(&mut sketch, spawned, ("x", 10));
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

/// Two branches of one chain ask for the same key, which the chain does not hold.
#[test]
fn a_chain_that_splits_holds_each_key_once() {
    let mut sketch = Sketch::default();
    let outer = Ask {
        key: "another",
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 0, outer);
    sketch.enter(A, 1, 0, ("x", 10));
    for (call, at) in [(2, 1), (3, 2)] {
        sketch.ask(A, call, at, Some(1));
        sketch.enter(A, call, at, ("x", 20));
    }
    for (call, at) in [(2, 3), (3, 4), (1, 5)] {
        sketch.end(A, call, at, End::Done);
    }
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

#[test]
fn an_owner_of_two_chains_is_found() {
    let sketch = |owner: &str| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
        sketch.ask(B, 1, 200, None);
        sketch.enter(B, 1, 200, (owner, 20));
        sketch.end(B, 1, 300, End::Done);
        sketch.findings()
    };
    assert_eq!(sketch("another"), []);
    let found = sketch("10");
    assert!(matches!(found[..], [Finding::OwnerShared { .. }]), "{found:?}");
}

/// The second owner has a smaller token, as if it had been granted first and entered late. But it asked when the
/// first was already inside, so the pause of its process explains nothing.
#[test]
fn a_false_token_puts_the_blame_on_nobody_else() {
    let sketch = |asked| {
        let mut sketch = Sketch::default().section(A, 1, 20, 2_100, 2_200);
        sketch.ask(B, 1, asked, None);
        sketch.enter(B, 1, 2_150, ("10", 10));
        sketch.end(B, 1, 2_160, End::Done);
        sketch
            .runner(90, Event::Paused { process: B })
            .runner(2_155, Event::Continued { process: B })
    };
    assert_eq!(overlap(sketch(80)), Cause::Paused);
    assert_eq!(overlap(sketch(2_110)), Cause::Unexplained);
}

#[test]
fn an_owner_is_not_refused_its_own_key() {
    let findings = |at| {
        let mut sketch = Sketch::default();
        sketch.ask(A, 1, 0, None);
        sketch.enter(A, 1, 0, ("x", 10));
        sketch.ask(A, 2, 10, Some(1));
        sketch.answer(A, 2, at, End::Timeout, None);
        sketch.end(A, 1, 100, End::Done);
        sketch.findings()
    };
    let found = findings(90);
    assert!(
        matches!(found[..], [Finding::ReentryRefused { call: 2, .. }]),
        "{found:?}"
    );
    assert_eq!(findings(110), []);
}

/// When the session of a transaction has ended, its key is free, and another owner may be inside when the body calls
/// again: found as seed 1 of MariaDB.
#[test]
fn a_transaction_whose_session_has_ended_may_be_refused() {
    let findings = |form, cut: Option<i64>| {
        let mut sketch = Sketch::default();
        let outer = Ask {
            form,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 0, outer);
        sketch.enter(A, 1, 0, ("x", 10));
        if let Some(at) = cut {
            sketch.worker(A, at, Event::SessionEnds { call: 1 });
        }
        sketch.ask(A, 2, 60, Some(1));
        sketch.answer(A, 2, 90, End::Timeout, None);
        sketch.end(A, 1, 100, End::Done);
        let found = sketch.findings().into_iter();
        found
            .filter(|finding| matches!(finding, Finding::ReentryRefused { .. }))
            .count()
    };
    assert_eq!(findings(Form::InTransaction, Some(50)), 0);
    assert_eq!(findings(Form::InTransaction, None), 1);
    assert_eq!(findings(Form::Run, Some(50)), 1);
}
