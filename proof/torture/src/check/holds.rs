//! How long a lock is kept: at least `hold_min` once its call has returned, and at most `max_hold`.

use super::calls::{Call, Calls, Stay};
use super::cause::is_late_by_itself;
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};
use crate::history::{End, MS};

/// A call that was so slow to leave may have returned before its `hold_min` was in the row.
const LEFT_AT_ONCE: i64 = 1_500 * MS;

/// How much later than its `max_hold` a section may end: a machine that stalls tells its body late. No
/// exclusion depends on it.
const TOLD_LATE: i64 = 500 * MS;

pub(super) fn check(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    for (key, sections) in calls.sections() {
        // The last one who kept the key, and until when.
        let mut kept: Option<(&Call, &Stay, i64)> = None;
        // When the last one had gone before whom somebody may come.
        let mut left = i64::MIN;
        for (call, stay) in sections {
            if let Some((keeper, keeper_stay, until)) = kept
                && stay.entered < until
                && !call.shares_root(keeper)
            {
                findings.push(Finding::HoldMinCut {
                    key: key.to_owned(),
                    first: Who::of(keeper, keeper_stay),
                    second: Who::of(call, stay),
                    early: until - stay.entered,
                });
                kept = None;
            }
            if let Some(until) = keeps_until(calls, call, left, facts) {
                kept = Some((call, stay, until));
            }
            left = left.max(call.stay_end());
            held_too_long(calls, call, stay, facts, findings);
        }
    }
}

/// Until when a call that has returned keeps its key. The grant came no sooner than it was asked for, and no
/// sooner than the one before had left, unless that one had lost its lease and went on beside it.
fn keeps_until(calls: &Calls, call: &Call, left_before: i64, facts: &Facts) -> Option<i64> {
    let hold_min = call.parameters.hold_min.filter(|_| call.is_root())?;
    let stay = call.stay.as_ref()?;
    let (left, answer) = (stay.left?, call.answer.as_ref()?);
    let in_order = answer.end == End::Done && answer.at - left.at < LEFT_AT_ONCE;
    // A lease that ends before `hold_min` is written leaves the key free at its end.
    let lease_end = calls.granted_after(call) + call.parameters.ttl;
    let slow = Span {
        from: left.at,
        to: answer.at,
    };
    let may_have_ended = answer.at >= lease_end && facts.hears_late(call.life, slow);
    let granted = if left_before <= left.at {
        call.asked.max(left_before).min(stay.entered)
    } else {
        call.asked
    };
    let until = granted + hold_min;
    let span = Span {
        from: calls.granted_after(call),
        to: until,
    };
    (in_order && !may_have_ended && !facts.taken_away(&call.key, span)).then_some(until)
}

/// A section ends with the `max_hold` of its root, unless its process or its body could not.
fn held_too_long(calls: &Calls, call: &Call, stay: &Stay, facts: &Facts, findings: &mut Vec<Finding>) {
    let root = calls
        .get(call.life, call.root)
        .and_then(|root| root.stay.as_ref());
    let Some((root, max_hold)) = root.zip(call.parameters.max_hold) else {
        return;
    };
    let span = Span {
        from: (root.entered + max_hold + TOLD_LATE).max(stay.entered),
        to: call.stay_end(),
    };
    let cut = stay.left.is_none();
    if span.from < span.to && !cut && !is_late_by_itself(call, stay, span, facts) {
        findings.push(Finding::HeldTooLong {
            key: call.key.clone(),
            who: Who::of(call, stay),
            late: span.to - span.from,
        });
    }
}
