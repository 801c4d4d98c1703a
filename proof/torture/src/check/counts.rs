//! The counters: each number was written once, tokens grow with the numbers, and what stands is what was confirmed.

use super::calls::{self, Calls};
use super::finding::Finding;
use crate::history::{Event, History, How};

pub(super) fn check(history: &History, calls: &Calls, findings: &mut Vec<Finding>) {
    for count in calls::counts(history) {
        for (line, number) in count.lines.iter().zip(1..) {
            if line.0 != number {
                findings.push(Finding::Miscounted {
                    key: count.key.clone(),
                    number,
                    found: line.0,
                });
                // The others follow from it.
                break;
            }
        }
        let written = count.lines.last().map_or(0, |line| line.0);
        if count.number != written {
            findings.push(Finding::Miscounted {
                key: count.key.clone(),
                number: written,
                found: count.number,
            });
        }
        for pair in count.lines.windows(2) {
            if pair[1].1 <= pair[0].1 {
                findings.push(Finding::CommittedTokenFell {
                    key: count.key.clone(),
                    number: pair[1].0,
                    token: pair[1].1,
                    before: pair[0].1,
                });
            }
        }
    }
    // Without an end nobody knows what stands.
    let is_end = |event: &Event| matches!(event, Event::Counted { .. });
    if !history.runner.iter().any(|line| is_end(&line.event)) {
        return;
    }
    for call in calls.iter() {
        // A body that did not return was not committed.
        let undone = call.form.ends_with_transaction()
            && matches!(call.left_how(), Some(How::Dropped | How::Panicked));
        let told = call.committed.or(undone.then_some(false));
        if let Some(committed) = told.filter(|committed| *committed != call.stands) {
            findings.push(Finding::CommitUndone {
                process: call.process,
                call: call.number,
                committed,
            });
        }
    }
}
