//! Work that is to be done once: as often as its kind allows, and as its record says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::finding::Finding;
use crate::history::{Event, History, Line};
use crate::once::{Answer, End, Kind, MOST_ATTEMPTS, Step};

/// A fault of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The work was done more often than its kind allows.
    DoneTooOften,
    /// It succeeded, and the work is not there.
    WorkLost,
    /// It did not succeed, although somebody called it when nothing was wrong any more.
    NeverDone,
    /// The work was committed with its record, and the record does not say so.
    RecordLost,
    /// Two bodies began as the same attempt.
    AttemptTwice,
    /// A body began as an attempt that the record does not know.
    AttemptForgotten,
    /// A body began although the attempts were used up.
    TooManyAttempts,
    /// A caller was given a result that is not that of the record.
    ResultLost,
}

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::DoneTooOften => "work was done too often",
            Self::WorkLost => "a run succeeded, and its work is not there",
            Self::NeverDone => "a run did not succeed in the end",
            Self::RecordLost => "work was committed with a record that is not there",
            Self::AttemptTwice => "two bodies began as the same attempt",
            Self::AttemptForgotten => "a body began as an attempt that its record does not know",
            Self::TooManyAttempts => "a body began although the attempts were used up",
            Self::ResultLost => "a caller was given a result that is not that of the record",
        }
    }
}

/// Figures of the runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    /// Those that were called.
    pub(crate) called: usize,
    pub(crate) attempts: usize,
    pub(crate) answers: BTreeMap<&'static str, usize>,
}

/// The story of a run, by those who called it.
#[derive(Debug, Default)]
struct Called {
    /// The attempts as which bodies began.
    begun: Vec<u32>,
    /// The results that callers were given.
    results: BTreeSet<u32>,
}

pub(super) fn check(history: &History, findings: &mut Vec<Finding>) -> Runs {
    let mut runs = Runs::default();
    let mut called: BTreeMap<u64, Called> = BTreeMap::new();
    let mut ends: HashMap<u64, &End> = HashMap::new();
    let mut has_ended = false;
    for line in &history.runner {
        if let Event::OnceEnds { ends: all } = &line.event {
            has_ended = true;
            ends.extend(all.iter().map(|end| (end.run, end)));
        }
    }
    for log in history.workers.values().chain([&history.runner]) {
        read(log, &mut called, &mut runs, findings);
    }
    runs.called = called.len();
    // Without an end there is nothing to compare with, and that is a finding of its own.
    for (run, called) in called.iter().filter(|_| has_ended) {
        runs.attempts += called.begun.len();
        let nothing = || End {
            run: *run,
            record: None,
            done_by: Vec::new(),
        };
        let end = ends.get(run).map_or_else(nothing, |end| (*end).clone());
        for fault in faults(&end, called) {
            let end = end.clone();
            findings.push(Finding::Once { fault, end });
        }
    }
    runs
}

/// Reads the log of one process.
fn read(log: &[Line], called: &mut BTreeMap<u64, Called>, runs: &mut Runs, findings: &mut Vec<Finding>) {
    for line in log {
        match &line.event {
            Event::OnceStep {
                run,
                attempt,
                step: Step::BeforeTheWork,
            } => called.entry(*run).or_default().begun.push(*attempt),
            Event::OnceAnswer { run, answer } => {
                let name = match answer {
                    Answer::Succeeded(result) => {
                        called.entry(*run).or_default().results.insert(*result);
                        "succeeded"
                    }
                    Answer::Failed => "failed",
                    Answer::Refused => "refused",
                    Answer::Unknown => "unknown",
                    Answer::Cut => "cut",
                    Answer::Other(text) => {
                        let (run, text) = (*run, text.clone());
                        findings.push(Finding::OnceRefused { run, text });
                        "other"
                    }
                };
                *runs.answers.entry(name).or_default() += 1;
            }
            _ => {}
        }
    }
}

fn faults(end: &End, called: &Called) -> Vec<Fault> {
    let kind = Kind::of(end.run);
    let record = end.record.as_ref();
    let succeeded = record.is_some_and(|record| record.state == "succeeded");
    let attempts = record.map_or(0, |record| record.attempts);
    let result = record.and_then(|record| record.result);
    let done = end.done_by.len();
    let different = |attempts: &[u32]| attempts.iter().collect::<BTreeSet<_>>().len();
    let most = match kind {
        Kind::Retry => different(&end.done_by),
        Kind::CompleteIn | Kind::Stop => 1,
    };
    let last_begun = called.begun.iter().max().copied().unwrap_or(0);
    let may_be_open = match kind {
        Kind::CompleteIn => false,
        Kind::Retry => attempts >= MOST_ATTEMPTS,
        Kind::Stop => record.is_some_and(|record| record.state == "processing"),
    };
    if record.is_none() && last_begun == 0 && done == 0 {
        // Nobody came so far as to begin.
        return Vec::new();
    }
    let all = [
        (Fault::DoneTooOften, done > most || done > attempts as usize),
        (Fault::WorkLost, succeeded && done == 0),
        (Fault::NeverDone, !succeeded && !may_be_open),
        (
            Fault::RecordLost,
            kind == Kind::CompleteIn && done > 0 && !succeeded,
        ),
        (Fault::AttemptTwice, different(&called.begun) < called.begun.len()),
        (Fault::AttemptForgotten, last_begun > attempts),
        (
            Fault::TooManyAttempts,
            kind == Kind::Retry && last_begun > MOST_ATTEMPTS,
        ),
        (
            Fault::ResultLost,
            succeeded && result != Some(attempts)
                || called.results.iter().any(|given| result != Some(*given)),
        ),
    ];
    let wrong = all.into_iter().filter(|(_, is_so)| *is_so);
    wrong.map(|(fault, _)| fault).collect()
}
