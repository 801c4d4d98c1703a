//! A part of what `cargo xtask simulate` runs. Failures that it found are kept as tests of the core, because
//! a tape is no longer valid once the code draws its choices differently.

use dblock_core::LockRow;
use dblock_core::store::clock::Timestamp;

use crate::plan::{MS, Others, Plan, S};
use crate::schedule::{events, explain, run, run_tape};
use crate::shrink;
use crate::small;
use crate::tape::Tape;
use crate::world::World;

/// Runs seeds on two threads.
fn run_all(first: u64, count: u64) {
    let half = count / 2;
    let run_some = |seeds: std::ops::Range<u64>| {
        for seed in seeds {
            if let Err(violation) = run(seed) {
                let events = explain(seed).map_or_else(Vec::new, |failure| failure.events);
                panic!("seed {seed}: {violation}\n{}", events.join("\n"));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run_some(first..first + half));
        run_some(first + half..first + count);
    });
}

#[test]
fn what_is_promised_holds_in_each_schedule() {
    run_all(1, 3_000);
}

#[test]
fn what_is_promised_holds_in_the_small_worlds() {
    for (wrong, fault) in small::WORLDS {
        if let Err(failure) = small::run_all(fault, 1) {
            panic!("{wrong}: {}\n{}", failure.violation, failure.events.join("\n"));
        }
    }
}

/// The checks see what a broken store does: here a row is free again after each event.
#[test]
fn a_store_that_forgets_its_rows_is_found() {
    let found = (1..=100).filter_map(|seed| {
        let mut tape = Tape::from_seed(seed, false);
        let plan = Plan::draw(&mut tape);
        let mut world = World::new(plan, tape, false);
        while world.advance() {
            for row in &mut world.store.rows {
                row.committed = LockRow::new(row.committed.key.clone(), Timestamp::EPOCH);
            }
        }
        world.checks.violation
    });
    let exclusion = found.filter(|violation| violation.starts_with("exclusion"));
    assert!(exclusion.count() > 10);
}

/// Runs the schedule of a tape. Returns its choices and its events.
fn traced(tape: Tape) -> (Vec<u32>, Vec<String>) {
    let (_, world) = run_tape(tape, true);
    (world.tape.into_record(), world.trace.unwrap())
}

#[test]
fn a_seed_and_its_tape_tell_the_same() {
    let (tape, events) = traced(Tape::from_seed(7, true));
    assert_eq!(events, crate::schedule::events(7));
    assert_eq!(traced(Tape::repeat(tape)).1, events);
}

#[test]
fn a_tape_becomes_as_short_as_it_still_shows_the_same() {
    let shows = |events: &[String]| events.iter().any(|event| event.contains("listener breaks"));
    let seed = (1..1_000).find(|seed| shows(&events(*seed))).unwrap();
    let (tape, _) = traced(Tape::from_seed(seed, true));
    let short = shrink::shorter(tape.clone(), |tape| shows(&traced(Tape::repeat(tape.to_vec())).1));
    assert!(short.len() < tape.len() / 4, "{} of {}", short.len(), tape.len());
    assert!(shows(&traced(Tape::repeat(short)).1));
}

/// The longest wait of a caller in `length` ns, in ms.
fn longest_wait(plan: Plan, seed: u64, length: u64) -> u64 {
    let mut world = World::new(plan, Tape::from_seed(seed, false), false);
    while world.now < length && world.advance() {}
    assert_eq!(world.checks.violation, None, "seed {seed}");
    world.checks.longest_wait / MS
}

/// Nobody hears of the end of a transaction, so a process that takes the key again and again must leave it to others.
#[test]
fn nobody_waits_for_long_beside_takers() {
    for wake_ups in [true, false] {
        for (section, length) in [(1, 30 * S), (100, 120 * S)] {
            let cases = [
                ("eight takers", 8, None, 8000),
                ("a taker beside one", 2, Some(Others::Take), 3000),
                ("a waiter beside a taker", 2, Some(Others::Wait), 3000),
            ];
            for (case, processes, others, most) in cases {
                let plan = || Plan::takers(processes, section, wake_ups, others);
                let waits = (1..=3).map(|seed| longest_wait(plan(), seed, length));
                let longest = waits.max().unwrap_or(0);
                println!("{case}, bodies of {section} ms, wake-ups {wake_ups}: {longest} ms");
                assert!(longest < most, "{case}, bodies of {section} ms: {longest} ms");
            }
        }
    }
}
