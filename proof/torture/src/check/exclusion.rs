//! Two owners inside one key. The workers' own record of nested calls tells the owners apart, and not the
//! owners and tokens that the library reports: `identity` judges those.

use std::collections::HashSet;

use super::Verdict;
use super::calls::{Call, Calls, Section};
use super::cause::{Cause, cause_from, cause_in_transaction};
use super::facts::{Facts, LONGEST_LEASE, Span};
use super::finding::{Finding, Who};
use crate::history::{End, MS};

/// How long a lease lives that was passed on and not extended, if its ttl is not shorter.
const PASSED_ON: i64 = 3_000 * MS;

/// Counts every pair of owners that were inside a key at once, by the cause.
pub(super) fn check(calls: &Calls, facts: &Facts, verdict: &mut Verdict) {
    for (key, sections) in calls.sections() {
        let mut inside: Vec<(&Call, &Section)> = Vec::new();
        let mut found = HashSet::new();
        for (n, &(call, section)) in sections.iter().enumerate() {
            inside.retain(|(other, _)| other.section_end() > section.entered);
            for &(other, other_section) in &inside {
                if other.shares_acquirer(call) || other.shares_with(call) {
                    continue;
                }
                let pair = [(call, section), (other, other_section)];
                let cause = judge(pair, calls, facts);
                *verdict.overlaps.entry(cause).or_default() += 1;
                // A long section overlaps many others; it is reported once.
                let (former, _) = former(pair, calls, facts);
                if cause == Cause::Unexplained && found.insert((former.process, former.number)) {
                    verdict.findings.push(Finding::Overlap {
                        key: key.to_owned(),
                        first: Who::of(other, other_section),
                        second: Who::of(call, section),
                        length: call.section_end().min(other.section_end()) - section.entered,
                    });
                }
            }
            if let Some(finding) = above_limit((call, section), &sections[..n], calls, facts) {
                verdict.findings.push(finding);
            }
            inside.push((call, section));
        }
    }
}

/// A call with a limit enters beside too many others that have one: more than the largest of their limits, or, of those that
/// were inside when it asked, as many as its own. In the place of another one of its process its own does not count.
fn above_limit(
    entering: (&Call, &Section),
    before: &[(&Call, &Section)],
    calls: &Calls,
    facts: &Facts,
) -> Option<Finding> {
    let limit_of = |call: &Call| call.parameters.limit.filter(|limit| *limit < u32::MAX);
    let own = limit_of(entering.0)?;
    let counts = |(other, section): &&(&Call, &Section)| {
        other.section_end() > entering.1.entered
            && limit_of(other).is_some()
            && !other.shares_acquirer(entering.0)
            && judge([entering, (other, section)], calls, facts) == Cause::Unexplained
    };
    let others: Vec<_> = before.iter().filter(counts).collect();
    let limits = others.iter().filter_map(|(other, _)| limit_of(other));
    let largest = limits.fold(own, u32::max);
    let found = |limit: u32, others: usize| {
        (others >= limit as usize).then(|| Finding::AboveLimit {
            key: entering.0.key.clone(),
            who: Who::of(entering.0, entering.1),
            limit,
            others,
        })
    };
    // One that left, or was dropped before it entered, is inside for the store until it hears of that, or the lease is over.
    let gives_place = |other: &Call| {
        let ended = other.answer.as_ref().map(|answer| answer.end);
        let was_inside = other.section.is_some() || matches!(ended, Some(End::Dropped | End::Lost));
        let left = other
            .section
            .as_ref()
            .map_or(other.decided(), |_| other.section_end());
        was_inside
            && other.process == entering.0.process
            && other.key == entering.0.key
            && other.number != entering.0.number
            && limit_of(other).is_some()
            && other.asked <= entering.1.entered
            && left.saturating_add(LONGEST_LEASE) > entering.0.asked
    };
    let were_inside = others
        .iter()
        .filter(|(_, section)| section.entered < entering.0.asked);
    found(largest, others.len()).or_else(|| {
        let own = found(own, were_inside.count())?;
        (!calls.iter().any(gives_place)).then_some(own)
    })
}

/// Which of the two should have ended before the other began: the one that entered first. But an earlier grant,
/// with the smaller token, may enter later; so a smaller token counts as the former if it was asked for in time, unless
/// the larger one was rolled back and the clock was set back. A
/// nested call has the grant of its acquirer, and one that shares that of its process.
fn former<'a>(pair: [(&'a Call, &'a Section); 2], calls: &Calls, facts: &Facts) -> (&'a Call, &'a Section) {
    let [late, early] = pair;
    let acquirer = calls.get(late.0.process, late.0.acquirer).unwrap_or(late.0);
    let asked = match acquirer.parameters.limit {
        Some(_) => calls.granted_after(acquirer),
        None => acquirer.asked,
    };
    let overtaken = late.1.token < early.1.token && asked < early.1.entered;
    if overtaken && !calls.may_be_followed_by_a_smaller_token(early.0, facts) {
        late
    } else {
        early
    }
}

fn judge(pair: [(&Call, &Section); 2], calls: &Calls, facts: &Facts) -> Cause {
    let (call, section) = former(pair, calls, facts);
    let span = Span {
        from: pair[0].1.entered.max(pair[1].1.entered),
        to: call.section_end(),
    };
    let lives = lives_until(call, calls, facts);
    cause_in_transaction(call, span, calls, facts)
        .unwrap_or_else(|| cause_from(call, section, span, lives, calls, facts))
}

/// Until when the lease of a section lives in the store at least, whatever becomes of its process: a lease that
/// was granted or passed on, for its ttl; one that came by a local hand-over, for two thirds of it.
pub(super) fn lives_until(call: &Call, calls: &Calls, facts: &Facts) -> i64 {
    let asked = calls
        .get(call.process, call.acquirer)
        .map_or(call.asked, |acquirer| acquirer.asked);
    let ttl = call.parameters.ttl.min(PASSED_ON);
    // Only a lease that is renewed is handed over.
    let length = if call.parameters.renew { ttl * 2 / 3 } else { ttl };
    asked + facts.clocks.lives(call.process, length, asked)
}
