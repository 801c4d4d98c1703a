//! Judges a run from its history alone.
//!
//! - [`calls`] puts the lines of the processes together; [`facts`] those of the runner.
//! - [`exclusion`] finds two owners inside a key, and [`cause`] says whether an exception of the guarantee
//!   explains it. [`clocks`] says what clocks that are not alike change. The calls themselves show the owners; [`identity`] judges what the library says of them.
//! - [`operations`] puts the history into the words of a linearizability checker of another maker, which judges it too.
//! - [`counts`] judges what was committed; [`fence`], [`holds`], [`tickets`], [`waits`], [`fairness`], [`once`] and [`end`]
//!   judge everything else. [`sometimes`] says of what nothing was shown.

mod calls;
mod cause;
mod clocks;
mod counts;
mod end;
mod exclusion;
mod facts;
mod fairness;
mod fence;
mod finding;
mod holds;
mod identity;
mod once;
mod operations;
mod outages;
mod sometimes;
mod tell;
mod tickets;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use dblock_linearizability::{Judged, Operation};

use crate::history::{End, Event, Form, History};

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
    /// Pairs of owners that were inside a key at once, by the cause.
    pub(crate) overlaps: BTreeMap<Cause, usize>,
    pub(crate) fence: fence::Writes,
    pub(crate) once: once::Runs,
    /// How much the checker of another maker has judged.
    pub(crate) judged: Judged,
    /// States that never came, so that nothing was shown of them.
    pub(crate) missing: Vec<&'static str>,
    pub(crate) counts: Counts,
    /// The longest time without a grant around each fault of the servers.
    pub(crate) outages: BTreeMap<&'static str, Vec<Duration>>,
}

/// Figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Faults by name: how many were injected, and how many could not be.
    pub(crate) faults: BTreeMap<&'static str, (usize, usize)>,
    pub(crate) sections: usize,
    /// Sections whose process was killed inside them.
    pub(crate) cut: usize,
    pub(crate) by_form: BTreeMap<String, usize>,
    pub(crate) by_how: BTreeMap<String, usize>,
    pub(crate) by_end: BTreeMap<End, usize>,
    pub(crate) reentries: usize,
    /// Sections of tasks that were spawned inside another section without `inherit`.
    pub(crate) spawned: usize,
    pub(crate) with_hold_min: usize,
    pub(crate) with_max_hold: usize,
    /// Sections by the settings of their process.
    pub(crate) by_settings: BTreeMap<&'static str, usize>,
    /// Owners that got their lock by a local hand-over.
    pub(crate) handed_over: usize,
    pub(crate) transfers: usize,
    /// What was counted in the database: in transactions with which a lock ended, and by others.
    pub(crate) counted: (usize, usize),
    pub(crate) longest_wait: Duration,
    pub(crate) longest_release: Duration,
    /// The longest time by which a call outlasted its wait.
    pub(crate) latest: Duration,
    pub(crate) processes: usize,
}

impl Counts {
    /// The number of faults that were injected.
    pub(crate) fn injected(&self) -> usize {
        self.faults.values().map(|(injected, _)| injected).sum()
    }
}

/// Judges a history: by its own rules, and by a linearizability checker of another maker.
pub(crate) fn check(history: &History) -> Verdict {
    let (facts, calls) = read(history);
    let mut verdict = by_own_rules(history, &facts, &calls);
    let (judged, violations) = dblock_linearizability::judge(operations::all(history, &calls, &facts));
    verdict.judged = judged;
    let violations = violations.into_iter().map(Finding::NotLinearizable);
    verdict.findings.extend(violations);
    verdict
}

#[cfg(test)]
pub(crate) fn check_by_own_rules(history: &History) -> Verdict {
    let (facts, calls) = read(history);
    by_own_rules(history, &facts, &calls)
}

fn read(history: &History) -> (Facts, Calls) {
    let facts = Facts::read(history);
    let calls = Calls::read(history, &facts);
    (facts, calls)
}

fn by_own_rules(history: &History, facts: &Facts, calls: &Calls) -> Verdict {
    let mut verdict = Verdict {
        counts: count(history, calls, facts),
        outages: outages::check(history, calls),
        ..Verdict::default()
    };
    exclusion::check(calls, facts, &mut verdict);
    identity::check(calls, facts, &mut verdict.findings);
    verdict.fence = fence::check(&history.resource, calls, facts, &mut verdict.findings);
    // What measures time means nothing where all clocks measure it in their own way.
    if !facts.clocks.are_far_apart() {
        holds::check(calls, facts, &mut verdict.findings);
        tickets::check(calls, facts, &mut verdict.findings);
        waits::check(calls, facts, &mut verdict);
        fairness::check(calls, facts, &mut verdict.findings);
    }
    counts::check(history, calls, &mut verdict.findings);
    verdict.once = once::check(history, facts, &mut verdict.findings);
    end::check(history, calls, facts, &mut verdict.findings);
    verdict.missing = sometimes::missing(calls, facts, &verdict);
    verdict
}

/// The history as operations that any linearizability checker can judge.
pub(crate) fn operations(history: &History) -> Vec<Operation> {
    let (facts, calls) = read(history);
    operations::all(history, &calls, &facts)
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
        let (taken, other) = &mut counts.counted;
        *(if call.form.ends_with_transaction() {
            taken
        } else {
            other
        }) += usize::from(call.stands && call.transferred.is_none());
        if call.section.is_none() {
            continue;
        }
        counts.sections += 1;
        counts.reentries += usize::from(!call.is_acquirer() && call.form != Form::Inherit);
        counts.spawned += usize::from(call.spawned);
        counts.with_hold_min += usize::from(call.is_acquirer() && call.parameters.hold_min.is_some());
        counts.with_max_hold += usize::from(call.is_acquirer() && call.parameters.max_hold.is_some());
        if let Some(settings) = facts.settings.get(&call.process) {
            *counts.by_settings.entry(settings.name()).or_default() += 1;
        }
        *counts.by_form.entry(format!("{:?}", call.form)).or_default() += 1;
        match call.left_how() {
            Some(how) => *counts.by_how.entry(format!("{how:?}")).or_default() += 1,
            None => counts.cut += 1,
        }
    }
    counts
}

/// A token that is one larger than the one before is of the same lease: the first token of a lease is the clock
/// in microseconds.
fn handed_over(sections: &[(&calls::Call, &calls::Section)]) -> usize {
    let follows = |pair: &&[(&calls::Call, &calls::Section)]| {
        pair[0].0.process == pair[1].0.process && pair[0].1.token + 1 == pair[1].1.token
    };
    sections.windows(2).filter(follows).count()
}
