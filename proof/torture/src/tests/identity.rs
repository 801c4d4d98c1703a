//! Histories in which the library says what is not so, and the checker does not believe it.

use super::sketch::{A, Ask, B, Sketch, overlap};
use crate::check::{Cause, Finding};
use crate::history::{End, Event};

/// A call inside of another's section, which enters with an owner and a token that the library names.
fn inside(sketch: &mut Sketch, ask: Ask, named: (&str, i64)) {
    sketch.ask(A, 1, 0, None);
    sketch.enter(A, 1, 0, ("x", 10));
    sketch.ask_as(A, 2, 1, ask);
    sketch.enter(A, 2, 2, named);
    for (call, at) in [(2, 3), (1, 4)] {
        sketch.leave(A, call, at, at);
        sketch.answer(A, call, at, End::Done, None);
    }
}

#[test]
fn two_roots_with_the_owner_and_token_of_one_are_two() {
    let mut sketch = Sketch::default().section(B, 1, 10, 50, 150);
    sketch.ask(A, 1, 0, None);
    // The library gives the second what the first has, as if it had enter again.
    sketch.enter(A, 1, 0, ("10", 10));
    sketch.leave(A, 1, 100, 100);
    sketch.answer(A, 1, 100, End::Done, None);
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

#[test]
fn a_task_that_did_not_inherit_is_another_root() {
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

/// Two branches of one chain, each of which asks for a key that neither was inside of.
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
        sketch.leave(A, call, at, at);
        sketch.answer(A, call, at, End::Done, None);
    }
    assert_eq!(overlap(sketch), Cause::Unexplained);
}

#[test]
fn an_owner_of_two_chains_is_found() {
    let sketch = |owner: &str| {
        let mut sketch = Sketch::default().section(A, 1, 10, 0, 100);
        sketch.ask(B, 1, 200, None);
        sketch.enter(B, 1, 200, (owner, 20));
        sketch.leave(B, 1, 300, 300);
        sketch.answer(B, 1, 300, End::Done, None);
        sketch.findings()
    };
    assert_eq!(sketch("another"), []);
    let found = sketch("10");
    assert!(matches!(found[..], [Finding::OwnerShared { .. }]), "{found:?}");
}

/// The later one has a smaller token, as if it had been granted before the first and come late; but it asked
/// only when the first was inside. So the pause of its process explains nothing.
#[test]
fn a_false_token_puts_the_blame_on_nobody_else() {
    let sketch = |asked| {
        let mut sketch = Sketch::default().section(A, 1, 20, 2_100, 2_200);
        sketch.ask(B, 1, asked, None);
        sketch.enter(B, 1, 2_150, ("10", 10));
        sketch.leave(B, 1, 2_160, 2_160);
        sketch.answer(B, 1, 2_160, End::Done, None);
        sketch
            .runner(90, Event::Paused { life: B })
            .runner(2_155, Event::Continued { life: B })
    };
    assert_eq!(overlap(sketch(80)), Cause::Paused);
    assert_eq!(overlap(sketch(2_110)), Cause::Unexplained);
}
