//! A ticket keeps its key until it is adopted or its time is over, and is adopted once.

use std::collections::HashMap;

use super::calls::{Call, Calls, Section};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut adopted: HashMap<_, (&Call, &Section)> = HashMap::new();
    for (key, sections) in calls.sections() {
        for &(call, section) in &sections {
            let Some(ticket) = call.adopts else { continue };
            let (first, first_section) = *adopted.entry(ticket).or_insert((call, section));
            if first.number != call.number || first.process != call.process {
                findings.push(Finding::TicketAdoptedTwice {
                    key: key.to_owned(),
                    first: Who::of(first, first_section),
                    second: Who::of(call, section),
                });
            }
        }
        for (giver, section) in &sections {
            let Some([since, given, until]) = giver.ticket else {
                continue;
            };
            // By the server's clock.
            let kept = Span {
                from: since,
                to: until,
            };
            let until = since + facts.clocks.least(giver.process, kept);
            // From when somebody adopts it the lock may be that one's, and may be released.
            let adopts = |other: &&Call| other.adopts == Some((giver.process, giver.number));
            let first = calls.iter().filter(adopts).map(|other| other.asked).min();
            let until = first.map_or(until, |first| first.min(until));
            let next = sections.partition_point(|(_, section)| section.entered <= given);
            let Some((call, early)) = sections.get(next).filter(|(_, next)| next.entered < until) else {
                continue;
            };
            let kept = Span {
                from: since,
                to: early.entered,
            };
            if !facts.taken_away(key, kept) {
                findings.push(Finding::TicketCut {
                    key: key.to_owned(),
                    first: Who::of(giver, section),
                    second: Who::of(call, early),
                    early: until - early.entered,
                });
            }
        }
    }
}
