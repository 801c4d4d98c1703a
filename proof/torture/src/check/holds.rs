//! How long a lock is kept: at least `hold_min` once its call has returned, and at most `max_hold`.

use super::calls::{Call, Calls, Section};
use super::cause::is_late_by_itself;
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};
use super::waits::RELEASE_TIMEOUT;
use crate::history::{End, MS};

/// A call that takes so long to return, and as long as its lease, may have done so without an answer.
const LEFT_SLOWLY: i64 = 1_500 * MS;

/// How much later than its `max_hold` a section may end: on a machine that stalls its body learns of the end
/// late. No exclusion depends on it.
const TOLD_LATE: i64 = 500 * MS;

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    for (key, sections) in calls.sections() {
        // The last section with `hold_min`, and until when it keeps the key.
        let mut kept: Option<(&Call, &Section, i64)> = None;
        // When the last of the sections before had ended.
        let mut left = i64::MIN;
        for (call, section) in sections {
            if let Some((keeper, keeper_section, until)) = kept
                && section.entered < until
                && !call.shares_acquirer(keeper)
            {
                findings.push(Finding::HoldMinCut {
                    key: key.to_owned(),
                    first: Who::of(keeper, keeper_section),
                    second: Who::of(call, section),
                    early: until - section.entered,
                });
                kept = None;
            }
            if let Some(until) = keeps_until(calls, call, left, facts) {
                kept = Some((call, section, until));
            }
            left = left.max(call.section_end());
            held_too_long(calls, call, section, facts, findings);
        }
    }
}

/// Until when a call that has returned keeps its key. The grant came after the call asked, and after the section
/// before had ended, unless that one had lost its lease and went on.
fn keeps_until(calls: &Calls, call: &Call, left_before: i64, facts: &Facts) -> Option<i64> {
    let hold_min = call.parameters.hold_min.filter(|_| call.is_acquirer())?;
    let section = call.section.as_ref()?;
    let (left, answer) = (section.left?, call.answer.as_ref()?);
    let in_order = answer.end == End::Done && answer.at - left.at < RELEASE_TIMEOUT;
    // If the lease ends before `hold_min` is written, the key is free.
    let from = calls.granted_after(call);
    let span = Span {
        from,
        to: from + call.parameters.ttl,
    };
    let lease_end = from + facts.clocks.least(call.process, span);
    let slow = Span {
        from: left.at,
        to: answer.at,
    };
    let is_late = facts.hears_late(call.process, slow) || facts.is_unanswered(call.process, slow);
    let is_slow = answer.at - left.at >= LEFT_SLOWLY;
    let may_have_ended = answer.at >= lease_end && (is_late || is_slow || !call.parameters.renew);
    let granted = if left_before <= left.at {
        call.asked.max(left_before).min(section.entered)
    } else {
        call.asked
    };
    let span = Span {
        from: granted,
        to: granted + hold_min,
    };
    let until = granted + facts.clocks.least(call.process, span);
    let span = Span {
        from: calls.granted_after(call),
        to: until,
    };
    (in_order && !may_have_ended && !facts.taken_away(&call.key, span)).then_some(until)
}

/// A section ends with the `max_hold` of its acquirer, unless its process or its body could not.
fn held_too_long(calls: &Calls, call: &Call, section: &Section, facts: &Facts, findings: &mut Vec<Finding>) {
    let acquirer = calls
        .get(call.process, call.acquirer)
        .and_then(|acquirer| acquirer.section.as_ref());
    let Some((acquirer, max_hold)) = acquirer.zip(call.parameters.max_hold) else {
        return;
    };
    let span = Span {
        from: (acquirer.entered + facts.clocks.most(call.process, max_hold) + TOLD_LATE).max(section.entered),
        to: call.section_end(),
    };
    let cut = section.left.is_none();
    if span.from < span.to && !cut && !is_late_by_itself(call, section, span, facts) {
        findings.push(Finding::HeldTooLong {
            key: call.key.clone(),
            who: Who::of(call, section),
            late: span.to - span.from,
        });
    }
}
