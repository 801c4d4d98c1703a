//! Makes a failing tape shorter and simpler, as long as it breaks the same rule.

use std::time::{Duration, Instant};

use crate::schedule::{Failure, replay, run_tape};
use crate::tape::Tape;

/// Shrinks for at most `limit`.
pub(crate) fn shrink(failure: Failure, limit: Duration) -> Failure {
    let until = Instant::now() + limit;
    let kind = kind(&failure.violation);
    let tape = shorter(failure.tape.clone(), |tape| {
        let violation = run_tape(Tape::repeat(tape.to_vec()), false).0.err();
        Instant::now() < until && violation.is_some_and(|violation| self::kind(&violation) == kind)
    });
    replay(&tape).unwrap_or(failure)
}

/// The tape as short and simple as it still `fails`.
pub(crate) fn shorter(mut tape: Vec<u32>, fails: impl Fn(&[u32]) -> bool) -> Vec<u32> {
    loop {
        let before = tape.clone();
        cut_end(&mut tape, &fails);
        cut(&mut tape, &fails);
        simplify(&mut tape, &fails);
        if tape == before {
            return tape;
        }
    }
}

/// A violation without its numbers.
pub(crate) fn kind(violation: &str) -> String {
    violation
        .chars()
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}

/// Choices beyond the end of a tape are 0.
fn cut_end(tape: &mut Vec<u32>, fails: &impl Fn(&[u32]) -> bool) {
    let (mut short, mut long) = (0, tape.len());
    while short < long {
        let middle = usize::midpoint(short, long);
        if fails(&tape[..middle]) {
            long = middle;
        } else {
            short = middle + 1;
        }
    }
    if fails(&tape[..long]) {
        tape.truncate(long);
    }
}

/// Leaves parts out, large ones first.
fn cut(tape: &mut Vec<u32>, fails: &impl Fn(&[u32]) -> bool) {
    let mut length = tape.len() / 2;
    while length > 0 {
        let mut at = tape.len();
        while at >= length {
            at -= length;
            let mut shorter = tape.clone();
            shorter.drain(at..at + length);
            if fails(&shorter) {
                *tape = shorter;
            }
            at = at.min(tape.len());
        }
        length /= 2;
    }
}

/// Makes parts 0, large ones first.
fn simplify(tape: &mut Vec<u32>, fails: &impl Fn(&[u32]) -> bool) {
    let mut length = 32;
    while length > 0 {
        for at in (0..tape.len()).step_by(length) {
            let part = at..tape.len().min(at + length);
            if tape[part.clone()].iter().all(|choice| *choice == 0) {
                continue;
            }
            let mut simpler = tape.clone();
            simpler[part].fill(0);
            if fails(&simpler) {
                *tape = simpler;
            }
        }
        length /= 2;
    }
}
