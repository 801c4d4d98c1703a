//! The history as operations on locks and counters, for the linearizability checker.
//!
//! - **A lock** is entered and left once by each acquirer. It is entered between its question and its entry. It is left as
//!   soon as its sections have ended, or as an exception of the guarantee may have ended its lease. That is lenient: a lock
//!   that was left sooner forbids less.
//! - **A counter** was increased between the entry of a section and the answer to its call; if that never came, until
//!   [`COMMITS_LATE`] after its process had ended.
//!
//! Left out is who entered with a lease that had been in doubt before: after `force_release` a process lets its callers in
//! until it learns of that. So are transactions that were rolled back, and refused calls: that a key is busy may be due
//! to a successor that has not entered.

use std::collections::HashMap;

use dblock_linearizability::{Done, Operation};

use super::calls::{Call, Calls, Section, counts};
use super::cause::in_doubt_from;
use super::exclusion::lives_until;
use super::facts::Facts;
use crate::history::{History, MS};

/// How long after the end of its process a commit that was on its way may be carried out.
const COMMITS_LATE: i64 = 60_000 * MS;

pub(super) fn all(history: &History, calls: &Calls, facts: &Facts) -> Vec<Operation> {
    // A fail-over loses grants, and with them the order of the tokens: nothing is judged then.
    if facts.fail_overs().next().is_some() {
        return Vec::new();
    }
    // Nor are locks where a lease may have ended at any time.
    let mut operations = if facts.clocks.are_far_apart() {
        Vec::new()
    } else {
        of_locks(calls, facts)
    };
    operations.extend(of_counters(history, calls));
    operations
}

fn of_locks(calls: &Calls, facts: &Facts) -> Vec<Operation> {
    let mut left: HashMap<_, i64> = HashMap::new();
    let mut doubt: HashMap<_, i64> = HashMap::new();
    for call in calls.iter() {
        let Some(section) = &call.section else { continue };
        let acquirer = (call.process, call.acquirer);
        let end = left.entry(acquirer).or_insert(i64::MIN);
        *end = call.section_end().max(*end);
        if let Some(from) = doubt_from(call, section, calls, facts) {
            let doubt = doubt.entry(acquirer).or_insert(i64::MAX);
            *doubt = from.min(*doubt);
        }
    }
    let mut operations = Vec::new();
    for call in calls.iter().filter(|call| call.is_acquirer()) {
        let Some(section) = &call.section else { continue };
        let acquirer = (call.process, call.number);
        let over = doubt.get(&acquirer).copied().unwrap_or(i64::MAX);
        if over <= call.asked {
            continue;
        }
        let over = left[&acquirer].min(over);
        let by = format!("{} {}", call.process, call.number);
        let object = format!("lock {}", call.key);
        let done = Done::Enter {
            by: by.clone(),
            limit: call.parameters.limit,
            token: section.token,
        };
        operations.push(Operation {
            object: object.clone(),
            done,
            from: call.asked,
            to: section.entered,
        });
        operations.push(Operation {
            object,
            done: Done::Leave { by },
            from: over,
            to: over.max(section.entered),
        });
    }
    operations
}

fn doubt_from(call: &Call, section: &Section, calls: &Calls, facts: &Facts) -> Option<i64> {
    let acquirer = calls.get(call.process, call.acquirer).unwrap_or(call);
    if facts.ends_with_transaction(acquirer) {
        // A transaction that was rolled back may have been so at once.
        return (!acquirer.stands).then_some(acquirer.asked);
    }
    in_doubt_from(call, section, lives_until(call, calls, facts), calls, facts)
}

fn of_counters(history: &History, calls: &Calls) -> Vec<Operation> {
    let by_id: HashMap<i64, &Call> = calls
        .iter()
        .map(|call| (call.process.id_of(call.number), call))
        .collect();
    let mut operations = Vec::new();
    for count in counts(history) {
        for (number, token, id) in &count.lines {
            // A line of nobody is another check's finding.
            let Some(call) = by_id.get(id) else { continue };
            let entered = call.section.as_ref().map(|section| section.entered);
            let answered = call.answer.as_ref().map(|answer| answer.at);
            operations.push(Operation {
                object: format!("counter {}", count.key),
                done: Done::Count {
                    number: *number,
                    token: *token,
                },
                from: entered.unwrap_or(call.asked),
                to: answered.unwrap_or(call.section_end() + COMMITS_LATE),
            });
        }
    }
    operations
}
