//! Runs the checker, and says what it found.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

/// A model that the checker can walk through.
pub trait Checked:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<M> Checked for M where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Walks through all states of a model. Fails when one of them violates a property, or when one that should
/// be reached is not. Prints the number of states and the depth.
///
/// # Panics
/// With the shortest sequence of events that violates a property.
pub fn holds<M: Checked>(name: &str, model: &M) -> usize {
    let begin = Instant::now();
    let checker = model
        .clone()
        .checker()
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let states = checker.unique_state_count();
    println!(
        "{name}: {states} states, {} steps deep, {:.1} s",
        checker.max_depth(),
        begin.elapsed().as_secs_f64()
    );
    for property in model.properties() {
        let found = checker.discovery(property.name);
        if property.expectation.discovery_is_failure() {
            assert!(
                found.is_none(),
                "{name}: not so: {}\n{}",
                property.name,
                shortest(model, property.name).unwrap_or_default()
            );
        } else {
            assert!(found.is_some(), "{name}: not reached: {}", property.name);
        }
    }
    states
}

/// Fails unless the checker finds that `model` violates `property`. Prints and returns the shortest
/// sequence of events that does.
///
/// # Panics
/// When there is none.
pub fn breaks<M: Checked>(name: &str, model: &M, property: &'static str) -> String {
    let found = shortest(model, property);
    let events = found.unwrap_or_else(|| panic!("{name}: no counterexample to: {property}"));
    println!("{name}: not so: {property}\n{events}");
    events
}

/// The properties that `model` violates, each of which the whole model was searched for.
pub fn broken<M: Checked>(model: &M) -> Vec<&'static str> {
    let checker = model.clone().checker().spawn_bfs().join();
    let properties = model.properties().into_iter();
    properties
        .filter(|property| property.expectation.discovery_is_failure())
        .map(|property| property.name)
        .filter(|name| checker.discovery(name).is_some())
        .collect()
}

/// The shortest sequence of events that ends with a violation of `property`, one a line.
fn shortest<M: Checked>(model: &M, property: &'static str) -> Option<String> {
    let mut shortest: Option<Vec<M::Action>> = None;
    loop {
        // The checker looks at its findings now and then only, and keeps the last of them. So it is asked
        // again for a shorter one. Its depth counts states, of which there is one more than steps.
        let mut search = model
            .clone()
            .checker()
            .finish_when(HasDiscoveries::AnyOf([property].into()));
        if let Some(found) = &shortest {
            search = search.target_max_depth(found.len() + 1);
        }
        let checker = search.spawn_bfs().join();
        match checker.discovery(property) {
            Some(path) => shortest = Some(path.into_actions()),
            None => break,
        }
    }
    let steps = shortest?;
    let lines = (1..).zip(steps).map(|(n, step)| format!("  {n:2}. {step:?}"));
    Some(lines.collect::<Vec<_>>().join("\n") + "\n")
}
