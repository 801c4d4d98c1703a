//! The engine's core in simulation: several processes, a store made of its rules, a network, clocks and faults, all
//! of them driven by a tape of choices. A schedule takes well under a millisecond, and each can be repeated by its seed.
//!
//! The code that runs is the core's own. What stands in for the rest: `process` and `driver` for the engine's shell,
//! `store` for the database, `network` for what lies between, `callers` and `bodies` for the application.
//! `checks` and `always` say what must hold.

mod always;
mod answers;
mod bodies;
mod callers;
mod checks;
mod driver;
mod faults;
mod flaws;
mod network;
mod plan;
mod process;
mod show;
mod shrink;
mod store;
mod tape;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use self::flaws::{Found, find};
pub use self::shrink::{kind, shrink};

use self::tape::Tape;
use self::world::World;
pub use crate::engine::core::flaw::{Flaw, put_in};

/// A schedule in which something that must hold did not.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What does not hold.
    pub violation: String,
    /// The choices that lead there.
    pub tape: Vec<u32>,
    /// What happened, line by line.
    pub events: Vec<String>,
}

/// Runs the schedule of a seed. Returns how many events it had, or what did not hold.
///
/// # Errors
/// What does not hold.
pub fn run(seed: u64) -> Result<u32, String> {
    run_tape(Tape::from_seed(seed, false), false).0
}

/// Runs the schedule of a tape, and writes down what happens.
pub fn replay(tape: &[u32]) -> Option<Failure> {
    failure(Tape::repeat(tape.to_vec()))
}

/// The same for a seed.
pub fn explain(seed: u64) -> Option<Failure> {
    failure(Tape::from_seed(seed, true))
}

fn failure(tape: Tape) -> Option<Failure> {
    let (result, world) = run_tape(tape, true);
    let (tape, events) = world.map_or_else(Default::default, |world| {
        (world.tape.into_record(), world.trace.unwrap_or_default())
    });
    Some(Failure {
        violation: result.err()?,
        tape,
        events,
    })
}

fn run_tape(tape: Tape, traced: bool) -> (Result<u32, String>, Option<World>) {
    let mut world = World::new(tape, traced);
    let panicked = catch_unwind(AssertUnwindSafe(|| world.run())).is_err();
    if panicked {
        world.fail("a panic".to_owned());
    }
    match &world.checks.violation {
        Some(violation) => (Err(violation.clone()), Some(world)),
        None => (Ok(world.events), Some(world)),
    }
}
