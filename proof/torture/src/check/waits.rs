//! Nobody hangs: a call is decided within its wait, and ends soon after its section; a released lock is free.

use std::collections::HashMap;
use std::time::Duration;

use super::Verdict;
use super::calls::{Call, Calls};
use super::facts::{Facts, Span};
use super::finding::Finding;
use crate::history::{End, MS};
use crate::seat::Life;

/// The time that a call may take beyond its wait, on a machine that is busy.
pub(crate) const SLACK: i64 = 1_000 * MS;

/// The time that a call without a wait may take: the store's timeout.
const ANSWER_TIMEOUT: i64 = 5_000 * MS;

/// The time beyond its wait for a call whose lock ends with a transaction: it notes no section, and its end
/// is that of the transaction.
const TRANSACTION_TIMEOUT: i64 = 4_000 * MS;

/// How long a call awaits its release at most.
const RELEASE_TIMEOUT: i64 = 3_000 * MS;

/// For how long after a release a caller may hear that its lease was in the way: a process takes the store's
/// word for a second, and the row may lag behind local hand-overs.
const LAG: i64 = 1_500 * MS;

/// How long after `hold_min` a lease ends at the latest that was extended for it.
const MARGIN_OF_HOLD_MIN: i64 = 1_000 * MS;

pub(super) fn check(calls: &Calls, facts: &Facts, verdict: &mut Verdict) {
    let mut longest = (0, 0);
    let mut latest = 0;
    for call in calls.iter() {
        let waited = awake(call, call.asked, call.decided(), facts);
        longest.0 = longest.0.max(waited);
        let mut limit = if call.wait == 0 { ANSWER_TIMEOUT } else { call.wait };
        if call.way.ends_with_transaction() {
            limit += TRANSACTION_TIMEOUT;
        }
        latest = latest.max(waited - limit);
        judge(call, "to enter or give up", waited, limit, verdict);
        let left = call.stay.as_ref().and_then(|stay| stay.left);
        if let (Some(left), Some(answer)) = (left, &call.answer) {
            let leaving = awake(call, left.at, answer.at, facts);
            longest.1 = longest.1.max(leaving);
            judge(call, "to leave", leaving, RELEASE_TIMEOUT, verdict);
        }
    }
    let span = |ns: i64| Duration::from_nanos(ns.unsigned_abs());
    (verdict.counts.longest_wait, verdict.counts.longest_release) = (span(longest.0), span(longest.1));
    verdict.counts.latest = span(latest);
    busy_after_release(calls, facts, &mut verdict.findings);
}

/// The time from one moment to another in which something of the call's process ran.
fn awake(call: &Call, from: i64, to: i64, facts: &Facts) -> i64 {
    to - from - facts.still_within(call.life, Span { from, to })
}

fn judge(call: &Call, what: &'static str, took: i64, limit: i64, verdict: &mut Verdict) {
    if took > limit + SLACK {
        verdict.findings.push(Finding::Hung {
            key: call.key.clone(),
            life: call.life,
            call: call.number,
            what,
            took,
            limit,
            at: call.asked,
        });
    }
}

/// The end of an owner's stay, as its callers know it.
struct Freed {
    life: Life,
    /// When a guard's release was confirmed.
    at: i64,
    /// When the last call of the owner ended.
    last: i64,
    /// Else the row may stay until its lease ends.
    surely: bool,
}

impl Freed {
    fn of(life: Life) -> Self {
        Self {
            life,
            at: i64::MAX,
            last: 0,
            surely: true,
        }
    }

    /// Whether the lease may have gone on, inside of the process, to a call that takes two keys, waited for
    /// the other one and gave up. Then nobody entered with the next token, and the row may name the former
    /// owner until its lease ends.
    fn may_have_gone_on_to(&self, call: &Call) -> bool {
        let waits = call.way.takes_two() && call.stay.is_none();
        waits && call.life == self.life && call.asked <= self.at && call.decided() >= self.at
    }
}

/// Somebody was refused because of a token whose release had been confirmed well before he asked.
fn busy_after_release(calls: &Calls, facts: &Facts, findings: &mut Vec<Finding>) {
    let mut released: HashMap<(&str, i64), Freed> = HashMap::new();
    for call in calls.iter() {
        let Some(stay) = &call.stay else { continue };
        let freed = released
            .entry((&call.key, stay.token))
            .or_insert(Freed::of(call.life));
        let kept = stay.entered + call.parameters.hold_min.unwrap_or(0);
        // A row that outlives its call is released when `hold_min` is over; nobody hears whether that went
        // well. If it did not, the lease ends.
        let free = |released| {
            if kept > released {
                (kept + MARGIN_OF_HOLD_MIN).max(released + call.parameters.ttl)
            } else {
                released
            }
        };
        freed.at = call
            .released
            .map_or(freed.at, |released| free(released).min(freed.at));
        // Holds of the same lease, such as a child's, may outlive the guard.
        let answered = call.answer.as_ref().map_or(i64::MAX, |answer| answer.at);
        freed.last = freed.last.max(answered);
        let done = call.answer.as_ref().is_some_and(|answer| answer.end == End::Done);
        freed.surely &= done && call.released.is_none_or(|released| kept <= released);
    }
    for call in calls.iter() {
        let Some(answer) = &call.answer else { continue };
        let Some(by) = answer
            .by
            .filter(|_| matches!(answer.end, End::Busy | End::Timeout))
        else {
            continue;
        };
        let Some(freed) = released.get(&(call.key.as_str(), by)) else {
            continue;
        };
        // The lease went on inside of the process, and its row may still name the former owner.
        if released.contains_key(&(call.key.as_str(), by + 1)) {
            continue;
        }
        let at = freed.at;
        let end = at.max(freed.last);
        let since = if freed.surely { end } else { facts.over(end) };
        let span = Span {
            from: since,
            to: call.asked,
        };
        let released = Span { from: at, to: end };
        if since.saturating_add(LAG) < call.asked
            && !facts.hears_late(call.life, span)
            && !facts.may_have_forgotten(released)
            && !calls
                .iter()
                .any(|other| other.key == call.key && freed.may_have_gone_on_to(other))
        {
            findings.push(Finding::BusyAfterRelease {
                key: call.key.clone(),
                token: by,
                released: at,
                asked: call.asked,
            });
        }
    }
}
