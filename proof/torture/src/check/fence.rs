//! The resource that checks tokens: what it accepted, and what would have got through without the check.

use std::collections::{BTreeMap, HashMap};

use super::calls::Calls;
use super::cause::{Cause, cause, cause_in_transaction};
use super::facts::{Facts, Span};
use super::finding::Finding;
use crate::history::{Event, Line};

/// The writes, by what became of them.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    pub(crate) accepted: usize,
    /// Writes that were sent before the next owner entered, and arrived later.
    pub(crate) refused_on_their_way: usize,
    /// Writes of a section that went on after the next owner entered, by the cause.
    pub(crate) refused: BTreeMap<Cause, usize>,
}

impl Writes {
    /// How many writes would have been accepted without the check.
    pub(crate) fn all_refused(&self) -> usize {
        self.refused_on_their_way + self.refused.values().sum::<usize>()
    }
}

pub(super) fn check(lines: &[Line], calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) -> Writes {
    let mut writes = Writes::default();
    let mut highest: HashMap<&str, i64> = HashMap::new();
    let arrivals = Arrivals::of(calls);
    for line in lines {
        let Event::Write {
            from,
            call,
            key,
            token,
            sent,
            accepted,
            ..
        } = &line.event
        else {
            continue;
        };
        let highest = highest.entry(key).or_insert(i64::MIN);
        if *accepted {
            writes.accepted += 1;
            if token < highest {
                findings.push(Finding::StaleWriteAccepted {
                    key: key.clone(),
                    token: *token,
                    highest: *highest,
                    at: line.at,
                });
            }
            *highest = (*highest).max(*token);
            continue;
        }
        let successor = arrivals.first_above(key, *token);
        let section = calls
            .get(*from, *call)
            .and_then(|call| Some((call, call.section.as_ref()?)));
        match (successor, section) {
            (Some(successor), Some((call, section))) if successor <= *sent => {
                let span = Span {
                    from: successor.max(section.entered),
                    to: *sent,
                };
                let cause = cause_in_transaction(call, span, calls, facts)
                    .unwrap_or_else(|| cause(call, section, span, calls, facts));
                *writes.refused.entry(cause).or_default() += 1;
            }
            _ => writes.refused_on_their_way += 1,
        }
    }
    writes
}

/// When an owner first entered with each token of a key.
struct Arrivals<'a>(HashMap<&'a str, BTreeMap<i64, i64>>);

impl<'a> Arrivals<'a> {
    fn of(calls: &'a Calls) -> Self {
        let mut arrivals: HashMap<&str, BTreeMap<i64, i64>> = HashMap::new();
        for (key, sections) in calls.sections() {
            let tokens = arrivals.entry(key).or_default();
            for (_, section) in sections {
                tokens.entry(section.token).or_insert(section.entered);
            }
        }
        Self(arrivals)
    }

    /// When the next owner after `token` entered.
    fn first_above(&self, key: &str, token: i64) -> Option<i64> {
        let mut above = self.0.get(key)?.range(token + 1..);
        above.next().map(|(_, entered)| *entered)
    }
}
