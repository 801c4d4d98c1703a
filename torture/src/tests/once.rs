//! Work that is to be done once, in histories that were written by hand.

use super::sketch::{A, B, Sketch};
use crate::check::{Finding, OnceFault};
use crate::history::Event;
use crate::once::{Answer, End, Record, Step};
use crate::seat::Life;

/// Its work is written with its record.
const IN_ONE: u64 = 0;
/// It may begin again after a crash.
const AGAIN: u64 = 1;
/// It may not.
const STOPS: u64 = 2;

fn begins(sketch: &mut Sketch, life: Life, run: u64, attempt: u32) {
    let step = Step::BeforeTheWork;
    sketch.worker(life, 1, Event::OnceStep { run, attempt, step });
}

fn answers(sketch: &mut Sketch, run: u64, answer: Answer) {
    sketch.worker(A, 2, Event::OnceAnswer { run, answer });
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
    let in_doubt = |done: &[u32]| faults(begun(STOPS, &[1]), STOPS, Some(("processing", 1, None)), done);
    assert_eq!(in_doubt(&[]), []);
    assert_eq!(in_doubt(&[1]), []);
    // Nobody came so far as to begin.
    let mut sketch = Sketch::default();
    answers(&mut sketch, IN_ONE, Answer::Unknown);
    assert_eq!(faults(sketch, AGAIN, None, &[]), []);
}

#[test]
fn work_that_was_done_too_often_is_found() {
    let done = |run, done: &[u32]| faults(begun(run, &[1, 2]), run, Some(("succeeded", 2, Some(2))), done);
    assert_eq!(done(IN_ONE, &[1, 2]), [OnceFault::DoneTooOften]);
    assert_eq!(done(STOPS, &[1, 2]), [OnceFault::DoneTooOften]);
    // An attempt does it once.
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
    assert_eq!(found(AGAIN, &[7], 7), [OnceFault::TooManyAttempts]);
    assert_eq!(found(IN_ONE, &[7], 7), []);
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
    // It was overwritten by an attempt that knew nothing of it.
    assert_eq!(
        given(2, Some(("failed", 2, None))),
        [OnceFault::NeverDone, OnceFault::ResultLost]
    );
    // It is that of an attempt whose place another one had taken.
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
