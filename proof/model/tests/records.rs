//! Runs that are remembered keep their promises, and need each of their rules for that.

use std::collections::BTreeSet;

use dblock_model::check::{breaks, holds};
use dblock_model::records::{BEGUN, CRASHED, EACH, EXACTLY, FINAL, Guard, Kind, ONCE, Records, TOLD};

/// Without the guard the property is violated for that kind of work.
const NEEDS: &[(Guard, Kind, &str)] = &[
    (Guard::BeginChecksRecord, Kind::Retry, BEGUN),
    (Guard::BeginChecksRecord, Kind::Stop, ONCE),
    (Guard::CrashIsOver, Kind::Retry, CRASHED),
    (Guard::AttemptsAreCounted, Kind::Retry, EACH),
    (Guard::AttemptsAreCounted, Kind::CompleteIn, BEGUN),
    (Guard::SuccessIsFinal, Kind::CompleteIn, EXACTLY),
    (Guard::SuccessIsFinal, Kind::Stop, ONCE),
    (Guard::SuccessIsFinal, Kind::Retry, FINAL),
    (Guard::FinishChecksAttempt, Kind::Retry, FINAL),
    (Guard::FinishChecksAttempt, Kind::Retry, TOLD),
    (Guard::StopStops, Kind::Stop, ONCE),
    (Guard::CompleteChecksAttempt, Kind::CompleteIn, EXACTLY),
    (Guard::TransactionLocksRows, Kind::CompleteIn, EXACTLY),
    (Guard::WorkIsInTransaction, Kind::CompleteIn, EXACTLY),
    (Guard::PurgeSparesProcessing, Kind::Retry, BEGUN),
    (Guard::PurgeSparesProcessing, Kind::Stop, ONCE),
];

#[test]
fn runs_hold() {
    for kind in [Kind::CompleteIn, Kind::Retry, Kind::Stop] {
        let without = None;
        holds(&format!("runs, {kind:?}"), &Records { kind, without });
    }
}

#[test]
fn runs_need_each_guard() {
    for (guard, kind, property) in NEEDS {
        let without = Some(*guard);
        let name = format!("runs, {kind:?} without {guard:?}");
        breaks(&name, &Records { kind: *kind, without }, property);
    }
}

#[test]
fn no_guard_is_left_out() {
    let removed: BTreeSet<Guard> = NEEDS.iter().map(|(guard, ..)| *guard).collect();
    let every: BTreeSet<Guard> = Guard::every().collect();
    assert_eq!(removed, every);
}
