//! How long the store granted nothing while servers failed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::calls::{Call, Calls, Section};
use crate::fault::Fault;
use crate::history::{Event, History};
use crate::process_id::ProcessId;

/// The longest time without a grant around each fault of the servers, by the name of the fault.
pub(super) fn check(history: &History, calls: &Calls) -> BTreeMap<&'static str, Vec<Duration>> {
    let grants = grants(calls, None);
    let mut begun: Vec<(&Fault, i64)> = Vec::new();
    let mut outages: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in &history.runner {
        match &line.event {
            Event::Fault { fault } if fault.is_an_outage() => begun.push((fault, line.at)),
            Event::Done { fault, injected } => {
                let Some(index) = begun.iter().position(|(begun, _)| *begun == fault) else {
                    continue;
                };
                let (_, from) = begun.swap_remove(index);
                if *injected {
                    let longest = longest_gap(&grants, from, line.at);
                    outages.entry(fault.name()).or_default().push(longest);
                }
            }
            _ => {}
        }
    }
    outages
}

/// When the store granted any key, to this process or to any.
pub(super) fn grants(calls: &Calls, process: Option<ProcessId>) -> Vec<i64> {
    let sections = calls.sections();
    let granted = sections.iter().flat_map(|(_, sections)| granted(sections));
    let granted = granted.filter(|(to, _)| process.is_none_or(|process| *to == process));
    let mut grants: Vec<i64> = granted.map(|(_, at)| at).collect();
    grants.sort_unstable();
    grants
}

/// When the store granted a key, and to whom. A token that is one larger than the one before came by a local hand-over.
fn granted(sections: &[(&Call, &Section)]) -> Vec<(ProcessId, i64)> {
    let mut before: Option<(&Call, &Section)> = None;
    let mut granted = Vec::new();
    for &(call, section) in sections.iter().filter(|(call, _)| call.is_acquirer()) {
        let handed_over = before
            .is_some_and(|(former, left)| former.process == call.process && left.token + 1 == section.token);
        if !handed_over {
            granted.push((call.process, section.entered));
        }
        before = Some((call, section));
    }
    granted
}

/// The longest gap between grants that reaches into this time.
fn longest_gap(grants: &[i64], from: i64, to: i64) -> Duration {
    let gaps = grants.windows(2).filter(|gap| gap[1] > from && gap[0] < to);
    let longest = gaps.map(|gap| gap[1] - gap[0]).max().unwrap_or(0);
    Duration::from_nanos(longest.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_as_far_as_it_reaches_into_the_fault() {
        let grants = [0, 100, 350, 400, 1_000];
        let longest = |from, to| longest_gap(&grants, from, to).as_nanos();
        assert_eq!(longest(0, 100), 100);
        assert_eq!(longest(50, 120), 250);
        assert_eq!(longest(350, 400), 50);
        assert_eq!(longest(360, 2_000), 600);
        assert_eq!(longest(1_000, 2_000), 0);
    }
}
