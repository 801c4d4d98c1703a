//! Two owners inside of one key.

use super::Verdict;
use super::calls::{Call, Calls, Stay};
use super::cause::{Cause, cause};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};

/// Counts every pair of owners that were inside of a key at once by what explains it.
pub(super) fn check(calls: &Calls, facts: &Facts, verdict: &mut Verdict) {
    for (key, sections) in calls.sections() {
        let mut inside: Vec<(&Call, &Stay)> = Vec::new();
        for (call, stay) in sections {
            inside.retain(|(other, _)| other.stay_end() > stay.entered);
            for &(other, other_stay) in &inside {
                if other_stay.owner == stay.owner && other_stay.token == stay.token {
                    continue;
                }
                let pair = [(call, stay), (other, other_stay)];
                let cause = judge(pair, facts);
                *verdict.overlaps.entry(cause).or_default() += 1;
                if cause == Cause::Unexplained {
                    verdict.findings.push(Finding::Overlap {
                        key: key.to_owned(),
                        first: Who::of(other, other_stay),
                        second: Who::of(call, stay),
                        length: call.stay_end().min(other.stay_end()) - stay.entered,
                    });
                }
            }
            inside.push((call, stay));
        }
    }
}

/// The one with the smaller token is the one that should have gone before the other came.
fn judge(pair: [(&Call, &Stay); 2], facts: &Facts) -> Cause {
    let [(former, stay), (_, later)] = if pair[0].1.token < pair[1].1.token {
        pair
    } else {
        [pair[1], pair[0]]
    };
    let from = stay.entered.max(later.entered);
    let to = former.stay_end();
    cause(former, stay, Span { from, to }, facts)
}
