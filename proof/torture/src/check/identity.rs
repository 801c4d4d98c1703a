//! The library's owners and tokens, judged by the roots of the calls: a token is of one root and never falls,
//! all calls of a root have its owner and its token, and no two chains have the same owner.

use std::collections::HashMap;

use super::calls::{Call, Calls, Stay};
use super::cause::{Cause, cause};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut chains: HashMap<&str, (&Call, &Stay)> = HashMap::new();
    for (key, sections) in calls.sections() {
        let mut tokens: HashMap<i64, (&Call, &Stay)> = HashMap::new();
        let mut highest: Option<(&Call, &Stay)> = None;
        for (call, stay) in sections {
            let (first, first_stay) = *chains.entry(&stay.owner).or_insert((call, stay));
            if (first.life, first.chain) != (call.life, call.chain) {
                findings.push(Finding::OwnerShared {
                    first: Who::of(first, first_stay),
                    second: Who::of(call, stay),
                });
            }
            let (first, first_stay) = *tokens.entry(stay.token).or_insert((call, stay));
            if !first.shares_root(call) {
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
                        && cause(call, stay, span, calls, facts) == Cause::Unexplained
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
    let root = calls.get(call.life, call.root);
    let Some((outer, outer_stay)) = root.and_then(|root| Some((root, root.stay.as_ref()?))) else {
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
