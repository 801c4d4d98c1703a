//! Judges a run from its history alone.
//!
//! - [`calls`] puts the lines of the processes together; [`facts`] those of the runner.
//! - [`exclusion`] finds two owners inside of a key, and [`cause`] says whether an exception of the guarantee
//!   explains it. The calls' own roots say who an owner is; [`identity`] judges what the library says of it.
//! - [`fence`], [`holds`], [`waits`], [`fairness`], [`once`] and [`end`] look for everything else.

mod calls;
mod cause;
mod end;
mod exclusion;
mod facts;
mod fairness;
mod fence;
mod finding;
mod holds;
mod identity;
mod once;
mod outages;
mod tell;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{End, Event, History, Way};

pub(crate) use calls::Calls;
pub(crate) use cause::Cause;
#[cfg(test)]
pub(crate) use end::RECOVERY;
pub(crate) use facts::Facts;
pub(crate) use finding::Finding;
#[cfg(test)]
pub(crate) use once::Fault as OnceFault;
pub(crate) use once::Runs;

/// The judgement about a history.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    /// The violations. None in a good run.
    pub(crate) findings: Vec<Finding>,
    /// Pairs of owners that were inside of a key at once, by what explains it.
    pub(crate) overlaps: BTreeMap<Cause, usize>,
    pub(crate) fence: fence::Writes,
    pub(crate) once: once::Runs,
    pub(crate) counts: Counts,
    /// For how long nobody was granted a lock around each fault of the servers.
    pub(crate) outages: BTreeMap<&'static str, Vec<Duration>>,
}

/// Figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Faults that came to pass, by name, and those that could not.
    pub(crate) faults: BTreeMap<&'static str, (usize, usize)>,
    pub(crate) sections: usize,
    /// Sections whose process was killed inside of them.
    pub(crate) cut: usize,
    pub(crate) by_way: BTreeMap<String, usize>,
    pub(crate) by_how: BTreeMap<String, usize>,
    pub(crate) by_end: BTreeMap<End, usize>,
    pub(crate) reentries: usize,
    /// Sections of tasks that were spawned inside of another without `inherit`.
    pub(crate) spawned: usize,
    /// Sections with `hold_min`, and with `max_hold`.
    pub(crate) kept: (usize, usize),
    /// Sections by the settings of their process.
    pub(crate) by_settings: BTreeMap<&'static str, usize>,
    /// Owners that got their lock inside the process, without the database in between.
    pub(crate) handed_over: usize,
    pub(crate) transfers: usize,
    pub(crate) longest_wait: Duration,
    pub(crate) longest_release: Duration,
    /// By how much a call outlasted its wait at most.
    pub(crate) latest: Duration,
    pub(crate) processes: usize,
}

impl Counts {
    /// All that came to pass.
    pub(crate) fn injected(&self) -> usize {
        self.faults.values().map(|(injected, _)| injected).sum()
    }
}

/// Judges a history.
pub(crate) fn check(history: &History) -> Verdict {
    let facts = Facts::read(history);
    let calls = Calls::read(history, &facts);
    let mut verdict = Verdict {
        counts: count(history, &calls, &facts),
        outages: outages::check(history, &calls),
        ..Verdict::default()
    };
    exclusion::check(&calls, &facts, &mut verdict);
    identity::check(&calls, &facts, &mut verdict.findings);
    verdict.fence = fence::check(&history.resource, &calls, &facts, &mut verdict.findings);
    holds::check(&calls, &facts, &mut verdict.findings);
    waits::check(&calls, &facts, &mut verdict);
    fairness::check(&calls, &facts, &mut verdict.findings);
    verdict.once = once::check(history, &facts, &mut verdict.findings);
    end::check(history, &calls, &facts, &mut verdict.findings);
    verdict
}

fn count(history: &History, calls: &Calls, facts: &Facts) -> Counts {
    let mut counts = Counts {
        processes: history.workers.len(),
        handed_over: calls
            .sections()
            .iter()
            .map(|(_, sections)| handed_over(sections))
            .sum(),
        ..Counts::default()
    };
    for line in &history.runner {
        if let Event::Done { fault, injected } = &line.event {
            let (done, not) = counts.faults.entry(fault.name()).or_default();
            *(if *injected { done } else { not }) += 1;
        }
    }
    for call in calls.iter() {
        if let Some(answer) = &call.answer {
            *counts.by_end.entry(answer.end).or_default() += 1;
        }
        counts.transfers += usize::from(call.transferred.is_some());
        if call.stay.is_none() {
            continue;
        }
        counts.sections += 1;
        counts.reentries += usize::from(!call.is_root() && call.way != Way::Inherit);
        counts.spawned += usize::from(call.spawned);
        counts.kept.0 += usize::from(call.is_root() && call.parameters.hold_min.is_some());
        counts.kept.1 += usize::from(call.is_root() && call.parameters.max_hold.is_some());
        if let Some(settings) = facts.settings.get(&call.life) {
            *counts.by_settings.entry(settings.name()).or_default() += 1;
        }
        *counts.by_way.entry(format!("{:?}", call.way)).or_default() += 1;
        match call.left_how() {
            Some(how) => *counts.by_how.entry(format!("{how:?}")).or_default() += 1,
            None => counts.cut += 1,
        }
    }
    counts
}

/// A token that follows directly on the one before is from the block of the same lease; the clock, from which
/// the first token of a lease comes, counts microseconds.
fn handed_over(sections: &[(&calls::Call, &calls::Stay)]) -> usize {
    let follows = |pair: &&[(&calls::Call, &calls::Stay)]| {
        pair[0].0.life == pair[1].0.life && pair[0].1.token + 1 == pair[1].1.token
    };
    sections.windows(2).filter(follows).count()
}
