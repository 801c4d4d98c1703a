//! The engine's core in simulation: several processes, a store made of its rules, a network, clocks and
//! faults, all driven by a tape of choices. A schedule takes well under a millisecond, and its seed repeats
//! it.
//!
//! The code that runs is the core's own. The rest is replaced: the engine's shell by `process` and `driver`,
//! the database by `store`, the network by `network`, and the application by `callers`, `bodies` and `runs`.
//! `checks` and `always` say what must hold.
//!
//! What there is (`process`, `store`, `batch`, `caller`, `ledger`) knows no `world`. What happens is the world's.

mod always;
mod answers;
mod batch;
mod bodies;
mod caller;
mod callers;
mod checks;
mod driver;
mod faults;
mod ledger;
mod network;
mod plan;
mod process;
mod runs;
mod show;
mod shrink;
mod store;
mod tape;
mod world;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use self::shrink::{kind, shrink};

use self::tape::Tape;
use self::world::World;

/// A schedule that broke a rule.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The rule that was broken.
    pub violation: String,
    /// The choices that lead to it.
    pub tape: Vec<u32>,
    /// The events, line by line.
    pub events: Vec<String>,
}

/// Runs the schedule of a seed. Returns how many events it had.
///
/// # Errors
/// The rule that was broken.
pub fn run(seed: u64) -> Result<u32, String> {
    run_tape(Tape::from_seed(seed, false), false).0
}

/// Runs the schedule of a tape, and records its events.
pub fn replay(tape: &[u32]) -> Option<Failure> {
    failure(Tape::repeat(tape.to_vec()))
}

/// As [`replay`], for a seed.
pub fn explain(seed: u64) -> Option<Failure> {
    failure(Tape::from_seed(seed, true))
}

/// The events of a seed's schedule, line by line. Code that behaves as before has the same ones.
pub fn events(seed: u64) -> Vec<String> {
    let (_, world) = run_tape(Tape::from_seed(seed, false), true);
    world.and_then(|world| world.trace).unwrap_or_default()
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
