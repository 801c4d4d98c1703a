//! Fence tokens: never given twice, never falling, and the same for a re-entry.

use std::collections::HashMap;

use super::calls::{Call, Calls, Stay};
use super::cause::{Cause, cause};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    for (key, sections) in calls.sections() {
        let mut owners: HashMap<i64, (&Call, &Stay)> = HashMap::new();
        let mut highest: Option<(&Call, &Stay)> = None;
        for (call, stay) in sections {
            let (first, first_stay) = *owners.entry(stay.token).or_insert((call, stay));
            if first_stay.owner != stay.owner {
                findings.push(Finding::TokenReused {
                    key: key.to_owned(),
                    first: Who::of(first, first_stay),
                    second: Who::of(call, stay),
                });
            }
            match highest {
                Some((before, above)) if above.token > stay.token => {
                    let span = Span {
                        from: above.entered,
                        to: call.stay_end(),
                    };
                    // One that overlaps is an overlap; here is one that came after the other had gone.
                    if before.stay_end() <= stay.entered
                        && cause(call, stay, span, facts) == Cause::Unexplained
                    {
                        findings.push(Finding::TokenFell {
                            key: key.to_owned(),
                            first: Who::of(before, above),
                            second: Who::of(call, stay),
                        });
                    }
                }
                _ => highest = Some((call, stay)),
            }
            reentry(calls, call, stay, findings);
        }
    }
}

/// A re-entry keeps owner and token.
fn reentry(calls: &Calls, call: &Call, stay: &Stay, findings: &mut Vec<Finding>) {
    let outer = call.outer.and_then(|outer| calls.get(call.life, outer));
    let Some((outer, outer_stay)) = outer.and_then(|outer| Some((outer, outer.stay.as_ref()?))) else {
        return;
    };
    if (&outer_stay.owner, outer_stay.token) != (&stay.owner, stay.token) {
        findings.push(Finding::ReentryChanged {
            key: call.key.clone(),
            outer: Who::of(outer, outer_stay),
            inner: Who::of(call, stay),
        });
    }
}
