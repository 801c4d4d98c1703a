//! Two owners inside of one key. The roots of the calls, which the workers made themselves, tell the owners
//! apart; the owners and tokens that the library names are judged by them in `identity`, and never the other
//! way round.

use std::collections::HashSet;

use super::Verdict;
use super::calls::{Call, Calls, Stay};
use super::cause::{Cause, cause_from};
use super::facts::{Facts, Span};
use super::finding::{Finding, Who};
use crate::history::MS;

/// How long a lease lives that was passed on and not extended, if its ttl is not shorter.
const PASSED_ON: i64 = 3_000 * MS;

/// Counts every pair of owners that were inside of a key at once by what explains it.
pub(super) fn check(calls: &Calls, facts: &Facts, verdict: &mut Verdict) {
    for (key, sections) in calls.sections() {
        let mut inside: Vec<(&Call, &Stay)> = Vec::new();
        let mut found = HashSet::new();
        for (call, stay) in sections {
            inside.retain(|(other, _)| other.stay_end() > stay.entered);
            for &(other, other_stay) in &inside {
                if other.shares_root(call) {
                    continue;
                }
                let pair = [(call, stay), (other, other_stay)];
                let cause = judge(pair, calls, facts);
                *verdict.overlaps.entry(cause).or_default() += 1;
                // One that stays for long meets many; it is told of once.
                let (former, _) = former(pair);
                if cause == Cause::Unexplained && found.insert((former.life, former.number)) {
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

/// Which of the two should have gone before the other came: the first that was inside. If that one has the
/// larger token, it may have overtaken the other on the way from the grant to the section, unless the other
/// asked too late.
fn former<'a>(pair: [(&'a Call, &'a Stay); 2]) -> (&'a Call, &'a Stay) {
    let [late, early] = pair;
    let overtaken = late.1.token < early.1.token && late.0.asked < early.1.entered;
    if overtaken { late } else { early }
}

fn judge(pair: [(&Call, &Stay); 2], calls: &Calls, facts: &Facts) -> Cause {
    let (call, stay) = former(pair);
    let span = Span {
        from: pair[0].1.entered.max(pair[1].1.entered),
        to: call.stay_end(),
    };
    cause_from(call, stay, span, lives_until(call, calls), calls, facts)
}

/// Until when the lease of a section lives in the store at least, whatever becomes of its process, as long as
/// one hold is left: one that was granted, or passed on, for its whole ttl; one that came from another task of
/// the process, for two thirds of it.
fn lives_until(call: &Call, calls: &Calls) -> i64 {
    let asked = calls
        .get(call.life, call.root)
        .map_or(call.asked, |root| root.asked);
    let ttl = call.parameters.ttl.min(PASSED_ON);
    // Only a lease that is renewed is handed over.
    asked + if call.parameters.renew { ttl * 2 / 3 } else { ttl }
}
