//! Runs of `run_once`: the work was done as often as its kind allows, and as its record says.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::facts::{Facts, Span};
use super::finding::Finding;
use super::waits::{ANSWER_TIMEOUT, RELEASE_TIMEOUT, SLACK};
use crate::history::{Event, History, Line, MS};
use crate::once::{Answer, End, Kind, MOST_ATTEMPTS, Step, Work};
use crate::process_id::ProcessId;

/// How long after a call and its ttl its attempt may still be taken back, and how long after its end a fault
/// still has effects.
const AFTERWARDS: i64 = 2_000 * MS;

/// A fault of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The work was done more often than its kind allows.
    DoneTooOften,
    /// The run succeeded, and the work is not there.
    WorkLost,
    /// The run did not succeed, although it was called when nothing was wrong any more.
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
    /// An attempt counts, or is in doubt, whose body never began, and no fault kept it from being taken back.
    NeverBegun,
    /// A caller was told that a run had crashed while its body ran without a fault.
    RefusedBesideABody,
    /// A body began after a caller was given the result.
    Repeated,
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
            Self::NeverBegun => "an attempt counts whose body never began",
            Self::RefusedBesideABody => "a run that ran was taken for a crash",
            Self::Repeated => "a body began after the run had succeeded",
        }
    }
}

/// Figures of the runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    pub(crate) called: usize,
    pub(crate) attempts: usize,
    pub(crate) answers: BTreeMap<&'static str, usize>,
}

/// The calls of a run, and what they did.
#[derive(Debug, Default)]
struct Called {
    /// The attempts as which bodies began.
    begun: Vec<u32>,
    /// The results that callers were given.
    results: BTreeSet<u32>,
    calls: Vec<OnceCall>,
}

/// A call of a run.
#[derive(Debug)]
struct OnceCall {
    /// `None` for the runner.
    process: Option<ProcessId>,
    call: u64,
    asked: i64,
    /// For all locks before its body. Unknown in older histories.
    wait: Option<i64>,
    ttl: i64,
    renews: bool,
    /// When its body began, and the last moment at which it surely ran.
    body: Option<Span>,
    answered: Option<(i64, Answer)>,
}

impl OnceCall {
    /// The time in which a fault may have kept the attempt from being taken back.
    fn span(&self) -> Span {
        let end = self.answered.as_ref().map_or(i64::MAX, |(at, _)| *at);
        Span {
            from: self.asked,
            to: end.saturating_add(self.ttl + AFTERWARDS),
        }
    }

    /// The call ended without a body and without an answer: its attempt may have begun and must be taken back.
    fn gave_up(&self) -> bool {
        let ended = self.answered.as_ref().map(|(_, answer)| answer);
        self.body.is_none() && matches!(ended, None | Some(Answer::Unknown | Answer::Cut))
    }

    /// The call may have left its attempt without an outcome: it has no certain answer, or the write of the
    /// outcome went wrong.
    fn may_stay_open(&self, wrong: &Wrong, facts: &Facts) -> bool {
        let ended = self.answered.as_ref().map(|(_, answer)| answer);
        matches!(ended, None | Some(Answer::Unknown | Answer::Cut))
            || self.body.is_some() && wrong.excuses(self.process, self.span(), facts)
    }
}

/// When something was wrong.
#[derive(Debug, Default)]
struct Wrong {
    /// Faults of the servers (`None`), or of the processes of a slot.
    faults: Vec<(Option<usize>, Span)>,
}

impl Wrong {
    fn read(history: &History) -> Self {
        let mut wrong = Self::default();
        let mut open = Vec::new();
        for line in &history.runner {
            match &line.event {
                // Operators know no keys of runs.
                Event::Fault { fault } if !fault.is_an_order() => {
                    open.push((fault, wrong.faults.len()));
                    let span = Span::since(line.at);
                    wrong.faults.push((fault.slot(), span));
                }
                Event::Done { fault, .. } => {
                    if let Some(at) = open.iter().position(|(other, _)| *other == fault) {
                        let (_, index) = open.remove(at);
                        wrong.faults[index].1.to = line.at + AFTERWARDS;
                    }
                }
                _ => {}
            }
        }
        wrong
    }

    /// Whether something was wrong in `span` that can excuse what became of a call.
    fn excuses(&self, process: Option<ProcessId>, span: Span, facts: &Facts) -> bool {
        // Leases end at any time then.
        if facts.clocks.are_far_apart() {
            return true;
        }
        // A beginning must be taken back, whether or not its write went wrong.
        let troubled =
            process.is_some_and(|process| facts.troubles(process, span).any(|trouble| !trouble.begins));
        let still = process.is_some_and(|process| {
            facts.still_within(process, span) > 0
                || facts.end_of(process) < span.to && facts.was_killed(process)
        });
        let concerns = |slot: Option<usize>| slot.is_none() || slot == process.map(|process| process.slot);
        let mut faults = self.faults.iter();
        troubled || still || faults.any(|(slot, fault)| concerns(*slot) && fault.within(span) > 0)
    }
}

pub(super) fn check(history: &History, facts: &Facts, findings: &mut Vec<Finding>) -> Runs {
    let wrong = Wrong::read(history);
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
    let workers = history.workers.iter().map(|(process, log)| (Some(*process), log));
    for (process, log) in workers.chain([(None, &history.runner)]) {
        read(process, log, facts, &mut called, &mut runs, findings);
    }
    for (run, called) in &called {
        findings.extend(called.calls.iter().filter_map(|call| hung(*run, call, facts)));
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
        for fault in faults(&end, called, &wrong, facts)
            .into_iter()
            .chain(in_time(&end, called, &wrong, facts))
        {
            let end = end.clone();
            findings.push(Finding::Once { fault, end });
        }
    }
    runs
}

/// The body of a call begins within its wait. A call that ends without it releases its locks, of which there are two at most.
fn hung(run: u64, call: &OnceCall, facts: &Facts) -> Option<Finding> {
    let (process, wait, (answered, _)) = (call.process?, call.wait?, call.answered.as_ref()?);
    let (to, releases) = match call.body {
        Some(body) => (body.from, 0),
        None => (*answered, 2 * RELEASE_TIMEOUT),
    };
    let span = Span { from: call.asked, to };
    let took = span.to - span.from - facts.still_within(process, span);
    let wait = if wait == 0 { ANSWER_TIMEOUT } else { wait };
    let limit = facts.clocks.most(process, wait + releases);
    (took > limit + SLACK).then(|| Finding::Hung {
        key: Work::plain(run).key(),
        process,
        call: call.call,
        what: "to begin a run or give up",
        took,
        limit,
        at: call.asked,
    })
}

/// Reads the log of one process.
fn read(
    process: Option<ProcessId>,
    log: &[Line],
    facts: &Facts,
    called: &mut BTreeMap<u64, Called>,
    runs: &mut Runs,
    findings: &mut Vec<Finding>,
) {
    // Of each call of this process, where it stands among the calls of its run.
    let mut index: HashMap<u64, usize> = HashMap::new();
    for line in log {
        match &line.event {
            Event::OnceAsk {
                call,
                run,
                ttl_ms,
                wait_ms,
                renews,
            } => {
                let calls = &mut called.entry(*run).or_default().calls;
                index.insert(*call, calls.len());
                calls.push(OnceCall {
                    process,
                    call: *call,
                    asked: line.at,
                    wait: wait_ms.map(|ms| i64::from(ms) * MS),
                    ttl: i64::from(*ttl_ms) * MS,
                    renews: *renews,
                    body: None,
                    answered: None,
                });
            }
            Event::OnceStep {
                call,
                run,
                attempt,
                step,
            } => {
                let called = called.entry(*run).or_default();
                if *step == Step::BeforeTheWork {
                    called.begun.push(*attempt);
                }
                if let Some(index) = index.get(call) {
                    let began = called.calls[*index].body.map_or(line.at, |body| body.from);
                    called.calls[*index].body = Some(Span {
                        from: began,
                        to: line.at,
                    });
                }
            }
            Event::OnceAnswer { call, run, answer } => {
                if let Some(index) = index.get(call) {
                    let call = &mut called.entry(*run).or_default().calls[*index];
                    call.answered = Some((line.at, answer.clone()));
                }
                let name = match answer {
                    Answer::Succeeded(result) => {
                        if !facts.shows_what_may_be_lost(line.at) {
                            called.entry(*run).or_default().results.insert(*result);
                        }
                        "succeeded"
                    }
                    Answer::Failed => "failed",
                    Answer::Refused => "refused",
                    Answer::NotYet => "not yet",
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

/// The faults that the order of events shows.
fn in_time(end: &End, called: &Called, wrong: &Wrong, facts: &Facts) -> Vec<Fault> {
    let attempts = end.record.as_ref().map_or(0, |record| record.attempts);
    let missing = (1..=attempts).filter(|attempt| !called.begun.contains(attempt));
    let excused = called
        .calls
        .iter()
        .filter(|call| call.gave_up() && wrong.excuses(call.process, call.span(), facts));
    let refused = called.calls.iter().filter_map(|call| match &call.answered {
        Some((at, Answer::Refused)) => Some(Span {
            from: call.asked,
            to: *at,
        }),
        _ => None,
    });
    let bodies = || called.calls.iter().filter_map(|call| Some((call, call.body?)));
    let beside = |refused: Span| {
        bodies().any(|(call, body)| {
            let lived = Span {
                from: call.asked,
                to: refused.to,
            };
            call.renews
                && body.from < refused.from
                && refused.to < body.to
                && !wrong.excuses(call.process, lived, facts)
        })
    };
    let succeeded = called.calls.iter().filter_map(|call| match &call.answered {
        Some((at, Answer::Succeeded(_))) if !facts.shows_what_may_be_lost(*at) => Some(*at),
        _ => None,
    });
    let succeeded = succeeded.min().unwrap_or(i64::MAX);
    let all = [
        (Fault::NeverBegun, missing.count() > excused.count()),
        (Fault::RefusedBesideABody, refused.into_iter().any(beside)),
        (Fault::Repeated, bodies().any(|(_, body)| body.from > succeeded)),
    ];
    let wrong = all.into_iter().filter(|(_, is_so)| *is_so);
    wrong.map(|(fault, _)| fault).collect()
}

fn faults(end: &End, called: &Called, wrong: &Wrong, facts: &Facts) -> Vec<Fault> {
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
        Kind::Stop => {
            record.is_some_and(|record| record.state == "processing")
                && called.calls.iter().any(|call| call.may_stay_open(wrong, facts))
        }
    };
    if record.is_none() && last_begun == 0 && done == 0 {
        // No attempt began.
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
