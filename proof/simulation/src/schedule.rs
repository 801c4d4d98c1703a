//! One schedule, from a seed or from a tape: runs it, and says what was wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::plan::Plan;
use crate::sometimes::Came;
use crate::tape::Tape;
use crate::world::World;

/// A schedule that broke a rule.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    /// The rule that was broken.
    pub(crate) violation: String,
    /// The choices that lead to it.
    pub(crate) tape: Vec<u32>,
    /// The events, line by line.
    pub(crate) events: Vec<String>,
}

/// Runs the schedule of a seed. Returns how many events it had, and the states that it was in.
///
/// # Errors
/// The rule that was broken.
pub(crate) fn run(seed: u64) -> Result<(u32, Came), String> {
    let (result, world) = run_tape(Tape::from_seed(seed, false), false);
    Ok((result?, world.came))
}

/// Runs the schedule of a tape, and records its events.
pub(crate) fn replay(tape: &[u32]) -> Option<Failure> {
    failure(Tape::repeat(tape.to_vec()))
}

/// As [`replay`], for a seed.
pub(crate) fn explain(seed: u64) -> Option<Failure> {
    failure(Tape::from_seed(seed, true))
}

/// The events of a seed's schedule, line by line. Code that behaves as before has the same ones.
pub(crate) fn events(seed: u64) -> Vec<String> {
    let (_, world) = run_tape(Tape::from_seed(seed, false), true);
    world.trace.unwrap_or_default()
}

fn failure(tape: Tape) -> Option<Failure> {
    let (result, world) = run_tape(tape, true);
    Some(Failure {
        violation: result.err()?,
        tape: world.tape.into_record(),
        events: world.trace.unwrap_or_default(),
    })
}

pub(crate) fn run_tape(mut tape: Tape, traced: bool) -> (Result<u32, String>, World) {
    let plan = Plan::draw(&mut tape);
    let mut world = World::new(plan, tape, traced);
    (run_world(&mut world), world)
}

/// Runs a world to its end. Returns how many events it had.
///
/// # Errors
/// The rule that was broken.
pub(crate) fn run_world(world: &mut World) -> Result<u32, String> {
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).is_err();
    if panicked {
        world.fail("a panic".to_owned());
    }
    match &world.checks.violation {
        Some(violation) => Err(violation.clone()),
        None => Ok(world.events),
    }
}
