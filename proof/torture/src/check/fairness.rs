//! A waiter gets its turn. Judged in the time without faults only: before, a process that is cut off waits for
//! good reasons.

use std::collections::HashMap;

use super::calls::{Call, Calls};
use super::facts::{Facts, Span};
use super::finding::Finding;
use crate::history::{End, MS};
use crate::once::PREFIX;
use crate::worker::TICKET;

/// How long a waiter may be passed over, if at least so many callers that asked later enter. (A wait queue may
/// be long.)
const BOUND: i64 = 5_000 * MS;
const OVERTAKERS: usize = 20;

/// If the next owner enters later than this, the key does not change hands: a section is long, or a lease runs
/// out.
const ROUND: i64 = 1_000 * MS;

/// How long a key may be busy because of a lease that nobody entered with: it is released when its caller gives
/// up, and a process believes the store's last answer for a second.
const NOBODY: i64 = 1_500 * MS;

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(healthy) = facts.healthy() else { return };
    // A call of a run may hold its key without a section, and is no waiter.
    let sections = calls.sections().into_iter();
    for (key, sections) in sections.filter(|(key, _)| !key.starts_with(PREFIX)) {
        // Those who adopt a ticket come before all who wait.
        let entries = sections
            .iter()
            .filter(|(call, _)| call.is_acquirer() && call.adopts.is_none());
        let entries: Vec<_> = entries.collect();
        // A call for two keys may be waiting for the other one.
        let waiters = calls
            .iter()
            .filter(|call| call.key == key && call.wait > 0 && call.is_acquirer() && !call.form.takes_two());
        for waiter in waiters {
            let span = Span {
                from: waiter.asked.max(healthy.from),
                to: waiter.decided().min(healthy.to),
            };
            let first = entries.partition_point(|(_, section)| section.entered <= span.from);
            let others = entries[first..]
                .iter()
                .filter(|(other, _)| !other.shares_acquirer(waiter))
                .take_while(|(_, section)| section.entered < span.to);
            let overtakers = others
                .clone()
                .filter(|(other, _)| other.asked > waiter.asked)
                .count();
            let passed_over = went_round(span, others.map(|(_, section)| section.entered))
                - facts.still_within(waiter.process, span);
            if passed_over > BOUND && overtakers >= OVERTAKERS {
                findings.push(Finding::Starved {
                    key: key.to_owned(),
                    process: waiter.process,
                    call: waiter.number,
                    passed_over,
                    overtakers,
                    at: span.to,
                });
            }
        }
    }
    held_by_nobody(calls, facts, healthy, findings);
}

/// For how long of `span` the key changed hands.
fn went_round(span: Span, entries: impl Iterator<Item = i64>) -> i64 {
    let (mut length, mut last) = (0, span.from);
    for entered in entries {
        length += Some(entered - last).filter(|gap| *gap <= ROUND).unwrap_or(0);
        last = entered;
    }
    length
}

/// Callers were refused because of one token for too long, and nobody ever entered with it.
fn held_by_nobody(calls: &Calls, facts: &Facts, healthy: Span, findings: &mut Vec<Finding>) {
    let mut refused: HashMap<(&str, i64), Span> = HashMap::new();
    // A ticket has a token of its own.
    let locks = calls
        .iter()
        .filter(|call| !call.key.starts_with(PREFIX) && call.key != TICKET);
    for call in locks.filter(|call| call.asked >= healthy.from) {
        let Some(by) = refused_by(call).filter(|_| call.decided() < healthy.to) else {
            continue;
        };
        // The key was busy at some moment between ask and answer.
        let span = refused.entry((&call.key, by)).or_insert(Span {
            from: i64::MAX,
            to: i64::MIN,
        });
        span.from = span.from.min(call.decided());
        span.to = span.to.max(call.asked);
    }
    for (key, sections) in calls.sections() {
        for (_, section) in sections {
            refused.remove(&(key, section.token));
        }
    }
    let mut refused: Vec<_> = refused.into_iter().collect();
    refused.sort_by_key(|(_, span)| span.from);
    for ((key, token), span) in refused {
        if span.to - span.from > NOBODY && !facts.stalled(span) && !held_for_another(calls, key, span) {
            findings.push(Finding::HeldByNobody {
                key: key.to_owned(),
                token,
                length: span.to - span.from,
                at: span.to,
            });
        }
    }
}

/// Whether a call for two keys may have held this one all the time while it waited for the other.
fn held_for_another(calls: &Calls, key: &str, span: Span) -> bool {
    calls.iter().any(|call| {
        call.form.takes_two()
            && call.key == key
            && call.asked <= span.from
            && call.decided() + NOBODY >= span.to
    })
}

fn refused_by(call: &Call) -> Option<i64> {
    let answer = call.answer.as_ref()?;
    answer
        .by
        .filter(|_| matches!(answer.end, End::Busy | End::Timeout))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_somebody_keeps_does_not_go_round() {
        let span = Span {
            from: 0,
            to: 20_000 * MS,
        };
        let at = |entries: &[i64]| went_round(span, entries.iter().map(|ms| ms * MS));
        assert_eq!(at(&[]), 0);
        assert_eq!(at(&[500, 1_500, 2_000]), 2_000 * MS);
        assert_eq!(at(&[1_001, 1_500]), 499 * MS);
    }
}
