//! Small worlds: two processes, three callers, one key, and one kind of fault. All their schedules are run that
//! make at most so many choices other than the simplest one.

use crate::plan::Plan;
use crate::schedule::{Failure, run_world};
use crate::tape::{Choice, Tape};
use crate::world::World;

/// What goes wrong in a small world.
type Fault = fn(&mut Plan);

/// The small worlds, by what goes wrong in each.
pub(crate) const WORLDS: [(&str, Fault); 18] = [
    ("nothing", nothing),
    ("no wake-ups", |plan| plan.wake_ups = false),
    ("a late thread", |plan| plan.late_driver = true),
    ("errors", |plan| plan.faults.errors = 1),
    ("lost answers", |plan| plan.faults.lost = 1),
    ("late statements", |plan| plan.faults.late = 1),
    ("slow network", |plan| plan.faults.slow_network = 1),
    ("slow commits", |plan| plan.faults.slow_commits = 1),
    ("lost wake-ups", |plan| plan.faults.lost_wake_ups = 1),
    ("repeated wake-ups", |plan| plan.faults.repeated_wake_ups = 1),
    ("broken listeners", |plan| plan.faults.broken_listeners = 1),
    ("pauses", |plan| plan.faults.pauses = 1),
    ("deaths", |plan| plan.faults.deaths = 2),
    ("cuts", |plan| plan.faults.cuts = 1),
    ("operators", |plan| plan.faults.operators = 1),
    ("clock back", |plan| plan.faults.clock_back = 1),
    ("clock ahead", |plan| plan.faults.clock_ahead = 1),
    ("crashes", |plan| plan.faults.crashes = 1),
];

/// Such callers alone make no lease late.
fn nothing(plan: &mut Plan) {
    plan.healthy = true;
    plan.callers.pins = 0;
    plan.callers.hold_min = 0;
    plan.callers.max_hold = 0;
}

/// Runs all schedules of a world with at most `most` choices that are not the simplest. Returns how many there
/// were.
///
/// # Errors
/// The first schedule that breaks a rule, with its events.
pub(crate) fn run_all(fault: Fault, most: usize) -> Result<u64, Failure> {
    let plan = Plan::small(fault);
    let mut schedules = 0;
    let mut choices = Vec::new();
    loop {
        schedules += 1;
        let (result, world) = run(&plan, &choices, false);
        if let Err(violation) = result {
            let (_, world) = run(&plan, &choices, true);
            return Err(Failure {
                violation,
                tape: choices,
                events: world.trace.unwrap_or_default(),
            });
        }
        match next(world.tape.into_few(), most) {
            Some(others) => choices = others,
            None => return Ok(schedules),
        }
    }
}

fn run(plan: &Plan, choices: &[u32], traced: bool) -> (Result<u32, String>, World) {
    let mut world = World::new(plan.clone(), Tape::few(choices.to_vec()), traced);
    world.most_callers = 3;
    world.most_faults = 1;
    (run_world(&mut world), world)
}

/// The choices of the schedule after the one that made these.
fn next(mut made: Vec<Choice>, most: usize) -> Option<Vec<u32>> {
    let counts = |choice: &Choice| choice.chosen > 0 && !choice.goes_on;
    let mut others = made.iter().filter(|choice| counts(choice)).count();
    while let Some(last) = made.pop() {
        others -= usize::from(counts(&last));
        if last.chosen + 1 < last.of && (others < most || last.goes_on) {
            let before = made.iter().map(|choice| choice.chosen);
            return Some(before.chain([last.chosen + 1]).collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_choices_comes_once() {
        // After the first choice 0 there are two more, of three and two; else one of two, which goes on.
        let made = |choices: &[u32]| -> Vec<Choice> {
            let one = |index: usize, of, goes_on| Choice {
                chosen: choices.get(index).copied().unwrap_or(0),
                of,
                goes_on,
            };
            match one(0, 2, false) {
                first @ Choice { chosen: 0, .. } => vec![first, one(1, 3, false), one(2, 2, false)],
                first => vec![first, one(1, 2, true)],
            }
        };
        let all = |most| {
            let mut seen = vec![made(&[])];
            while let Some(choices) = next(seen.last().unwrap().clone(), most) {
                seen.push(made(&choices));
            }
            let count = seen.len();
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), count, "none comes twice");
            count
        };
        assert_eq!([0, 1, 2, 3].map(all), [1, 6, 8, 8]);
    }
}
