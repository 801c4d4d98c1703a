//! Runs of `run_once` in histories written by hand.

use super::sketch::{A, Ask, B, Sketch, TTL, begin, overlap, paused};
use crate::check::{Cause, Finding, OnceFault};
use crate::fault::Fault;
use crate::history::{End as Ended, Event, Form};
use crate::once::{Answer, End, Record, Step};
use crate::process_id::ProcessId;

/// A run whose work is written with its record.
const IN_ONE: u64 = 0;
/// A run that may begin again after a crash.
const AGAIN: u64 = 1;
/// A run that may not.
const STOPS: u64 = 2;

fn begins(sketch: &mut Sketch, process: ProcessId, run: u64, attempt: u32) {
    let step = Step::BeforeTheWork;
    sketch.worker(
        process,
        1,
        Event::OnceStep {
            call: 1,
            run,
            attempt,
            step,
        },
    );
}

fn answers(sketch: &mut Sketch, run: u64, answer: Answer) {
    sketch.worker(A, 2, Event::OnceAnswer { call: 1, run, answer });
}

/// The faults of a run that ends like this.
fn faults(
    sketch: Sketch,
    run: u64,
    record: Option<(&str, u32, Option<u32>)>,
    done_by: &[u32],
) -> Vec<OnceFault> {
    let record = record.map(|(state, attempts, result)| Record {
        state: state.to_owned(),
        attempts,
        result,
    });
    let done_by = done_by.to_vec();
    let ends = vec![End { run, record, done_by }];
    let findings = sketch.runner(3, Event::OnceEnds { ends }).findings();
    let faults = findings.iter().map(|found| match found {
        Finding::Once { fault, .. } => *fault,
        other => panic!("{other}"),
    });
    faults.collect()
}

/// Attempts that began one after the other, each in another process.
fn begun(run: u64, attempts: &[u32]) -> Sketch {
    let mut sketch = Sketch::default();
    for (n, attempt) in attempts.iter().enumerate() {
        begins(&mut sketch, if n == 0 { A } else { B }, run, *attempt);
    }
    sketch
}

#[test]
fn what_each_kind_allows_is_well() {
    for run in [IN_ONE, AGAIN, STOPS] {
        let mut sketch = begun(run, &[1]);
        answers(&mut sketch, run, Answer::Succeeded(1));
        assert_eq!(faults(sketch, run, Some(("succeeded", 1, Some(1))), &[1]), []);
    }
    // A crash before the commit, and one after it.
    let after = |run, done: &[u32]| faults(begun(run, &[1, 2]), run, Some(("succeeded", 2, Some(2))), done);
    assert_eq!(after(IN_ONE, &[2]), []);
    assert_eq!(after(AGAIN, &[1, 2]), []);
    let in_doubt = |done: &[u32]| {
        let mut sketch = Sketch::default();
        calls(&mut sketch, A, STOPS, (100, 200), Some(1), Answer::Cut);
        faults(sketch, STOPS, Some(("processing", 1, None)), done)
    };
    assert_eq!(in_doubt(&[]), []);
    assert_eq!(in_doubt(&[1]), []);
    // No attempt began.
    let mut sketch = Sketch::default();
    answers(&mut sketch, IN_ONE, Answer::Unknown);
    assert_eq!(faults(sketch, AGAIN, None, &[]), []);
}

#[test]
fn work_that_was_done_too_often_is_found() {
    let done = |run, done: &[u32]| faults(begun(run, &[1, 2]), run, Some(("succeeded", 2, Some(2))), done);
    assert_eq!(done(IN_ONE, &[1, 2]), [OnceFault::DoneTooOften]);
    assert_eq!(done(STOPS, &[1, 2]), [OnceFault::DoneTooOften]);
    // One attempt did the work twice.
    assert_eq!(done(AGAIN, &[2, 2]), [OnceFault::DoneTooOften]);
    assert_eq!(done(AGAIN, &[1, 2, 2]), [OnceFault::DoneTooOften]);
}

#[test]
fn work_and_records_that_are_lost_are_found() {
    let found = |run, record, done: &[u32]| faults(begun(run, &[1]), run, record, done);
    let done = Some(("succeeded", 1, Some(1)));
    assert_eq!(found(IN_ONE, done, &[]), [OnceFault::WorkLost]);
    assert_eq!(
        found(IN_ONE, Some(("processing", 1, None)), &[1]),
        [OnceFault::NeverDone, OnceFault::RecordLost]
    );
    assert_eq!(
        found(AGAIN, Some(("failed", 1, None)), &[]),
        [OnceFault::NeverDone]
    );
    assert_eq!(
        found(STOPS, None, &[]),
        [OnceFault::NeverDone, OnceFault::AttemptForgotten]
    );
}

#[test]
fn attempts_that_are_repeated_forgotten_or_too_many_are_found() {
    let found = |run, attempts: &[u32], last| {
        let record = Some(("succeeded", last, Some(last)));
        faults(begun(run, attempts), run, record, &[last])
    };
    assert_eq!(found(STOPS, &[1, 1], 1), [OnceFault::AttemptTwice]);
    assert_eq!(found(AGAIN, &[1, 2], 1), [OnceFault::AttemptForgotten]);
    let seven = [1, 2, 3, 4, 5, 6, 7];
    assert_eq!(found(AGAIN, &seven, 7), [OnceFault::TooManyAttempts]);
    assert_eq!(found(IN_ONE, &seven, 7), []);
}

#[test]
fn results_that_change_are_found() {
    let given = |result, record| {
        let mut sketch = begun(AGAIN, &[1, 2]);
        answers(&mut sketch, AGAIN, Answer::Succeeded(result));
        faults(sketch, AGAIN, record, &[1, 2])
    };
    let done = Some(("succeeded", 2, Some(2)));
    assert_eq!(given(2, done), []);
    assert_eq!(given(1, done), [OnceFault::ResultLost]);
    // A later attempt overwrote the result.
    assert_eq!(
        given(2, Some(("failed", 2, None))),
        [OnceFault::NeverDone, OnceFault::ResultLost]
    );
    // The result is of an earlier attempt.
    assert_eq!(given(1, Some(("succeeded", 2, Some(1)))), [OnceFault::ResultLost]);
}

#[test]
fn a_call_that_fails_without_a_reason_is_found() {
    let mut sketch = Sketch::default();
    answers(
        &mut sketch,
        AGAIN,
        Answer::Other("the result is of another type".into()),
    );
    let findings = sketch.findings();
    assert!(
        matches!(findings[..], [Finding::OnceRefused { run: AGAIN, .. }]),
        "{findings:?}"
    );
}

/// A call from `from` to `to`, with or without a body.
fn calls(
    sketch: &mut Sketch,
    process: ProcessId,
    run: u64,
    (from, to): (i64, i64),
    body: Option<u32>,
    answer: Answer,
) {
    let call = 1;
    let ask = Event::OnceAsk {
        wait_ms: None,
        call,
        run,
        ttl_ms: u32::try_from(TTL).unwrap(),
        renews: true,
    };
    sketch.worker(process, from, ask);
    for (step, at) in [(Step::BeforeTheWork, from + 1), (Step::AfterTheCommit, to - 1)] {
        let step = |attempt| Event::OnceStep {
            call,
            run,
            attempt,
            step,
        };
        if let Some(attempt) = body {
            sketch.worker(process, at, step(attempt));
        }
    }
    sketch.worker(process, to, Event::OnceAnswer { call, run, answer });
}

fn during(sketch: Sketch, fault: Fault, (from, to): (i64, i64)) -> Sketch {
    let done = Event::Done {
        fault: fault.clone(),
        injected: true,
    };
    sketch.runner(from, Event::Fault { fault }).runner(to, done)
}

/// A body that returned has an outcome, unless its write went wrong.
#[test]
fn a_run_that_stays_in_doubt_without_a_crash_is_found() {
    let failed = |answer| {
        let mut sketch = Sketch::default();
        calls(&mut sketch, A, STOPS, (100, 200), Some(1), answer);
        calls(&mut sketch, B, STOPS, (300, 400), None, Answer::Refused);
        sketch
    };
    let in_doubt = |sketch| faults(sketch, STOPS, Some(("processing", 1, None)), &[]);
    assert_eq!(in_doubt(failed(Answer::Failed)), [OnceFault::NeverDone]);
    for answer in [Answer::Cut, Answer::Unknown] {
        assert_eq!(in_doubt(failed(answer)), []);
    }
    assert_eq!(
        in_doubt(failed(Answer::Failed).runner(250, Event::Killed { process: A })),
        []
    );
    let cut = |slot| during(failed(Answer::Failed), Fault::Cut { slot, ms: 10 }, (190, 200));
    assert_eq!(in_doubt(cut(0)), []);
    // The caller on the other process has nothing to write.
    assert_eq!(in_doubt(cut(1)), [OnceFault::NeverDone]);
    let mut troubled = failed(Answer::Failed);
    let (key, begins) = (String::new(), false);
    troubled.worker(A, 199, Event::Troubled { key, begins });
    assert_eq!(in_doubt(troubled), []);
}

#[test]
fn an_attempt_whose_body_never_began_is_found() {
    let given_up = |answer| {
        let mut sketch = Sketch::default();
        calls(&mut sketch, A, STOPS, (100, 102), None, answer);
        sketch
    };
    let in_doubt = |sketch| faults(sketch, STOPS, Some(("processing", 1, None)), &[]);
    assert_eq!(in_doubt(given_up(Answer::Cut)), [OnceFault::NeverBegun]);
    assert_eq!(in_doubt(given_up(Answer::Unknown)), [OnceFault::NeverBegun]);
    // Attempts that count and never were, whatever came of the run.
    let mut sketch = given_up(Answer::Cut);
    calls(&mut sketch, B, AGAIN, (200, 300), Some(2), Answer::Succeeded(2));
    assert_eq!(
        faults(sketch, AGAIN, Some(("succeeded", 2, Some(2))), &[2]),
        [OnceFault::NeverBegun]
    );

    // A fault of the servers, or of its own process, kept the attempt from being taken back.
    let during = |fault: Fault| during(given_up(Answer::Cut), fault, (90, 101));
    assert_eq!(in_doubt(during(Fault::LockFile { ms: 50 })), []);
    assert_eq!(in_doubt(during(Fault::Deaf { slot: 0, ms: 50 })), []);
    for fault in [Fault::Deaf { slot: 1, ms: 50 }, Fault::Revoke { key: 0 }] {
        assert_eq!(in_doubt(during(fault)), [OnceFault::NeverBegun]);
    }
    assert_eq!(
        in_doubt(given_up(Answer::Cut).runner(1_000, Event::Killed { process: A })),
        []
    );
    assert_eq!(in_doubt(paused(given_up(Answer::Cut), A, 102, 4_000)), []);
    let mut troubled = given_up(Answer::Cut);
    let event = |begins| Event::Troubled {
        key: String::new(),
        begins,
    };
    troubled.worker(A, 103, event(false));
    assert_eq!(in_doubt(troubled), []);
    let mut troubled = given_up(Answer::Cut);
    troubled.worker(A, 103, event(true));
    assert_eq!(in_doubt(troubled), [OnceFault::NeverBegun]);
    // The other process was stopped, or the kill came much later.
    assert_eq!(
        in_doubt(paused(given_up(Answer::Cut), B, 102, 4_000)),
        [OnceFault::NeverBegun]
    );
    let killed = given_up(Answer::Cut).runner(20_000, Event::Killed { process: A });
    assert_eq!(in_doubt(killed), [OnceFault::NeverBegun]);
}

#[test]
fn a_run_that_is_taken_for_a_crash_while_it_runs_is_found() {
    let beside = |refused| {
        let mut sketch = Sketch::default();
        calls(&mut sketch, A, STOPS, (100, 1_000), Some(1), Answer::Succeeded(1));
        calls(&mut sketch, B, STOPS, refused, None, Answer::Refused);
        sketch
    };
    let done = |sketch| faults(sketch, STOPS, Some(("succeeded", 1, Some(1))), &[1]);
    assert_eq!(done(beside((300, 310))), [OnceFault::RefusedBesideABody]);
    // Asked before the body began, or told after it had ended.
    assert_eq!(done(beside((90, 310))), []);
    assert_eq!(done(beside((900, 1_010))), []);
    assert_eq!(done(paused(beside((800, 810)), A, 110, 790)), []);
}

#[test]
fn done_work_that_begins_again_is_found() {
    let mut sketch = Sketch::default();
    calls(&mut sketch, A, AGAIN, (100, 200), Some(1), Answer::Succeeded(1));
    calls(&mut sketch, B, AGAIN, (190, 300), Some(2), Answer::Failed);
    let found = faults(sketch, AGAIN, Some(("failed", 2, None)), &[1]);
    assert!(!found.contains(&OnceFault::Repeated), "{found:?}");

    let mut sketch = Sketch::default();
    calls(&mut sketch, A, AGAIN, (100, 200), Some(1), Answer::Succeeded(1));
    calls(&mut sketch, B, AGAIN, (200, 300), Some(2), Answer::Failed);
    let found = faults(sketch, AGAIN, Some(("failed", 2, None)), &[1]);
    assert!(found.contains(&OnceFault::Repeated), "{found:?}");
}

/// A lock that is not renewed, and a child that blocks its thread until `until`; another process enters at
/// `comes`.
fn beside_a_child(until: i64, comes: i64) -> Cause {
    let key = "once1";
    let mut sketch = Sketch::default();
    let ask = |form, within| Ask {
        key,
        form,
        within,
        renew: false,
        ..Ask::default()
    };
    sketch.ask_as(A, 1, 0, ask(Form::Run, None));
    sketch.enter(A, 1, 0, ("a", 1));
    sketch.ask_as(A, 2, 100, ask(Form::Inherit, Some(1)));
    sketch.enter(A, 2, 100, ("a", 1));
    sketch.worker(A, 100, Event::Block { call: 2, ms: 1_000 });
    // The outcome, just too late.
    sketch.leave(A, 1, 1_901, 1_901);
    sketch.answer(A, 1, 1_910, Ended::Lost, None);
    sketch.ask_as(B, 1, comes - 10, ask(Form::Run, None));
    sketch.enter(B, 1, comes, ("b", 2));
    sketch.end(B, 1, comes + 100, Ended::Done);
    sketch.leave(A, 2, until, 100);
    sketch.answer(A, 2, until, Ended::Done, None);
    overlap(sketch)
}

#[test]
fn an_outcome_that_lets_another_process_in_beside_a_child_is_found() {
    assert_eq!(beside_a_child(1_980, 1_920), Cause::Unexplained);
    // Its lease ended in the store, too.
    assert_eq!(beside_a_child(2_400, 2_010), Cause::Blocked);
}

/// Seed 642 on MariaDB: a replay read a success whose commit waited for the disk, and the disk failed.
#[test]
fn a_commit_that_a_crash_takes_back_may_have_been_read() {
    let found = |store, crash_at| {
        let mut sketch = begun(IN_ONE, &[1]);
        answers(&mut sketch, IN_ONE, Answer::Succeeded(1));
        let step = Step::BeforeTheWork;
        let again = Event::OnceStep {
            call: 2,
            run: IN_ONE,
            attempt: 2,
            step,
        };
        sketch.worker(B, 50, again);
        let fault = || Fault::FailDisk { ms: 10 };
        let sketch = sketch
            .runner(0, begin(store))
            .runner(crash_at, Event::Fault { fault: fault() })
            .runner(
                crash_at + 10,
                Event::Done {
                    fault: fault(),
                    injected: true,
                },
            );
        faults(sketch, IN_ONE, Some(("succeeded", 2, Some(2))), &[2])
    };
    assert_eq!(found("mysql", 1), []);
    assert!(found("mysql", 20).contains(&OnceFault::ResultLost));
    assert!(found("postgres", 1).contains(&OnceFault::ResultLost));
}
