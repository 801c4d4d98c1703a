//! A ticket keeps its key until it is adopted or its time is over, and is adopted once.

use std::collections::HashMap;

use super::calls::{Call, Calls, Section};
use super::facts::{Facts, LONGEST_LEASE, Span};
use super::finding::{Finding, Who};
use crate::history::{End, MS};

/// So long before its end a ticket may be refused.
const TOO_LATE: i64 = 500 * MS;

/// A call that was refused a ticket, which nobody else can have adopted and nothing can have ended.
fn refused<'a>(key: &str, adopters: &[&'a Call], kept: Span, facts: &Facts) -> Option<&'a Call> {
    let first = adopters.iter().min_by_key(|call| call.asked)?;
    let is_refused = |call: &&Call| {
        let answer = call.answer.as_ref();
        call.section.is_none() && answer.is_some_and(|answer| answer.end == End::Lost)
    };
    let to = first.answer.as_ref()?.at;
    let span = Span { to, ..kept };
    // A process that holds the key, as it believes, refuses tickets of it. It hears within a lease that it was taken away.
    let taken = Span {
        from: span.from - LONGEST_LEASE,
        ..span
    };
    let excused = facts.taken_away(key, taken)
        || facts.may_have_forgotten(span)
        || adopters
            .iter()
            .any(|call| facts.may_have_ended_a_session(call.process, span));
    (to < kept.to - TOO_LATE && adopters.iter().all(is_refused) && !excused).then_some(first)
}

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
            let adopters: Vec<&Call> = calls.iter().filter(adopts).collect();
            if let Some(call) = refused(
                key,
                &adopters,
                Span {
                    from: since,
                    to: until,
                },
                facts,
            ) {
                findings.push(Finding::TicketRefused {
                    key: key.to_owned(),
                    process: call.process,
                    call: call.number,
                    at: call.asked,
                });
            }
            let first = adopters.iter().map(|other| other.asked).min();
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
