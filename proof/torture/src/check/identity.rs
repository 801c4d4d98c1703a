//! The library's owners and tokens: a token belongs to one acquirer and never falls, re-entries have the owner
//! and the token of their acquirer and are not refused, and no two chains have the same owner.

use std::collections::HashMap;

use super::calls::{Call, Calls, Section};
use super::cause::{Cause, cause};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};
use crate::history::End;

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut chains: HashMap<&str, (&Call, &Section)> = HashMap::new();
    for (key, sections) in calls.sections() {
        let mut tokens: HashMap<i64, (&Call, &Section)> = HashMap::new();
        let mut highest: Option<(&Call, &Section)> = None;
        for (call, section) in sections {
            let (first, first_section) = *chains.entry(&section.owner).or_insert((call, section));
            if (first.process, first.chain) != (call.process, call.chain) {
                findings.push(Finding::OwnerShared {
                    first: Who::of(first, first_section),
                    second: Who::of(call, section),
                });
            }
            let (first, first_section) = *tokens.entry(section.token).or_insert((call, section));
            if !first.shares_acquirer(call) && !first.shares_with(call) {
                findings.push(Finding::TokenReused {
                    key: key.to_owned(),
                    first: Who::of(first, first_section),
                    second: Who::of(call, section),
                });
            }
            match highest {
                Some((before, above)) if above.token > section.token => {
                    let span = Span {
                        from: above.entered,
                        to: call.section_end(),
                    };
                    // Sections that overlap are found by `exclusion`. A re-entry has the token of its acquirer, whose
                    // transaction may have been rolled back beneath both; or before the caller heard that it had the
                    // key, which others had meanwhile.
                    let never_ended = call.committed != Some(true) && !call.stands;
                    let is_undone = facts.ends_with_transaction(call) && never_ended;
                    if call.is_acquirer()
                        && !is_undone
                        && before.section_end() <= section.entered
                        && cause(call, section, span, calls, facts) == Cause::Unexplained
                    {
                        findings.push(Finding::TokenFell {
                            key: key.to_owned(),
                            first: Who::of(before, above),
                            second: Who::of(call, section),
                        });
                    }
                }
                _ if calls.may_be_followed_by_a_smaller_token(call, facts) => {}
                _ => highest = Some((call, section)),
            }
            reentry(calls, call, section, findings);
        }
    }
    for call in calls.iter() {
        refused(calls, call, facts, findings);
    }
}

/// An owner is not refused its own key. (A call for two keys may be refused because of the other one. When the
/// session of a transaction has ended, the key is free, whatever the body does.)
fn refused(calls: &Calls, call: &Call, facts: &Facts, findings: &mut Vec<Finding>) {
    let (Some(answer), Some(outer)) = (&call.answer, calls.get(call.process, call.acquirer)) else {
        return;
    };
    let Some(section) = &outer.section else { return };
    let span = Span {
        from: section.entered,
        to: answer.at,
    };
    let is_cut = outer.form.ends_with_transaction() && facts.ends_sessions(call.process, span);
    let is_inside = answer.at < outer.section_end() && !is_cut;
    let is_refused = matches!(answer.end, End::Busy | End::Timeout);
    if is_refused && is_inside && !call.is_acquirer() && !call.form.takes_two() {
        findings.push(Finding::ReentryRefused {
            key: call.key.clone(),
            process: call.process,
            call: call.number,
            at: answer.at,
        });
    }
}

/// A re-entry keeps owner and token. A second call in a transaction may be of another chain, and keeps the token.
fn reentry(calls: &Calls, call: &Call, section: &Section, findings: &mut Vec<Finding>) {
    let Some(outer) = calls.get(call.process, call.acquirer) else {
        return;
    };
    let Some(outer_section) = &outer.section else {
        return;
    };
    let same_owner = call.chain != outer.chain || outer_section.owner == section.owner;
    if !same_owner || outer_section.token != section.token {
        findings.push(Finding::ReentryChanged {
            key: call.key.clone(),
            outer: Who::of(outer, outer_section),
            inner: Who::of(call, section),
        });
    }
}
