//! Clocks excuse an overlap only if they are further apart than the margin, and only for as long as a lease may then go on.

use super::sketch::{A, Ask, B, Sketch, overlap};
use crate::check::{Cause, Finding};
use crate::fault::Fault;
use crate::history::{End, Event, Form};
use crate::process_id::ProcessId;

/// A is inside from 0 until `left`, with a lease of 2 seconds. B comes after 2.5 seconds.
fn beside(left: i64) -> Sketch {
    Sketch::default()
        .section(A, 1, 10, 0, left)
        .section(B, 1, 20, 2_500, 12_000)
}

fn with_rate(process: Option<ProcessId>, rate: u32, left: i64) -> Cause {
    let clock = Event::Clock { process, rate };
    overlap(beside(left).runner(0, clock))
}

#[test]
fn a_clock_that_is_too_slow_excuses_so_much() {
    assert_eq!(with_rate(Some(A), 500, 3_000), Cause::Clocks);
    assert_eq!(with_rate(None, 2_000, 3_000), Cause::Clocks);
    // The longest lease lasts for 4.5 seconds more.
    assert_eq!(with_rate(Some(A), 500, 7_000), Cause::Clocks);
    assert_eq!(with_rate(Some(A), 500, 7_100), Cause::Unexplained);
    // Within the margin, fast, or that of the other process.
    for (process, rate) in [(Some(A), 960), (Some(A), 2_000), (Some(B), 500), (None, 500)] {
        assert_eq!(with_rate(process, rate, 3_000), Cause::Unexplained, "{rate}");
    }
}

#[test]
fn a_jump_ahead_that_is_too_far_excuses_what_follows() {
    let jump = |at, to_ms| {
        let fault = Fault::ServerClock { to_ms };
        overlap(beside(3_000).runner(at, Event::Fault { fault }))
    };
    assert_eq!(jump(1_000, 1_000), Cause::Clocks);
    for (at, to_ms) in [(1_000, 20), (1_000, -1_000), (2_600, 1_000)] {
        assert_eq!(jump(at, to_ms), Cause::Unexplained, "{at} {to_ms}");
    }
}

/// Seed 632 on MariaDB: the server's clock was set back by a second after a transaction that took the key was rolled back.
#[test]
fn a_token_that_was_rolled_back_may_be_above_the_next_one() {
    let fell = |committed, to_ms| {
        let mut sketch = Sketch::default();
        let ask = Ask {
            form: Form::Transaction,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 0, ask);
        sketch.enter(A, 1, 0, ("a", 20));
        sketch.leave(A, 1, 10, 10);
        sketch.worker(A, 11, Event::Concluded { call: 1, committed });
        sketch.answer(A, 1, 12, End::Done, None);
        let fault = Fault::ServerClock { to_ms };
        let sketch = sketch.section(B, 1, 10, 200, 300);
        let found = sketch.runner(100, Event::Fault { fault }).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::TokenFell { .. }))
    };
    assert!(!fell(false, -1_000));
    assert!(fell(true, -1_000));
    assert!(fell(false, 1_000), "time goes on");
}

/// Seed 632 on MariaDB, too: beside the next owner it is the one of the transaction that should have ended.
#[test]
fn a_transaction_that_was_rolled_back_is_the_former_owner_in_spite_of_its_token() {
    let beside = |to_ms| {
        let mut sketch = Sketch::default();
        let ask = Ask {
            form: Form::Transaction,
            ..Ask::default()
        };
        sketch.ask_as(A, 1, 0, ask);
        sketch.enter(A, 1, 300, ("a", 20));
        sketch.ask(B, 1, 200, None);
        sketch.enter(B, 1, 400, ("b", 10));
        sketch.end(B, 1, 450, End::Done);
        sketch.end(A, 1, 500, End::Done);
        let fault = Fault::ServerClock { to_ms };
        overlap(sketch.runner(350, Event::Fault { fault }))
    };
    assert_eq!(beside(-1_000), Cause::RolledBack);
    assert_eq!(
        beside(1_000),
        Cause::Unexplained,
        "its token says that it came later"
    );
}

/// The server ends sessions by its own clock.
#[test]
fn a_session_may_end_while_clocks_are_far_apart() {
    let fails = |rate| {
        let process = None;
        let mut sketch = Sketch::default().section(B, 1, 20, 11_000, 11_100);
        sketch.ask(A, 2, 11_000, None);
        sketch.answer(A, 2, 11_001, End::Store, None);
        let sketch = sketch.runner(0, Event::Clock { process, rate });
        let found = sketch.runner(1_000, Event::Calm).findings();
        found
            .iter()
            .any(|found| matches!(found, Finding::StoreFailed { .. }))
    };
    assert!(!fails(2_000));
    assert!(fails(1_010), "within the margin");
}
