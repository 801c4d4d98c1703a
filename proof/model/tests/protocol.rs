//! The protocol keeps its promises, and needs each of its rules for that.

use std::collections::BTreeSet;

use dblock_model::check::{breaks, broken, holds};
use dblock_model::guards::{Guard, Guards};
use dblock_model::protocol::bounds::{
    Bounds, CLOCK, COUNTS, CRASH, FORCE, HAND_OVER, PASS_ON_CLOCK, PASS_ON_CRASH, PASS_ON_LATE, PASS_ON_SLOW,
    PASS_ON_THREE, PASS_ON_TOKENS, RETRY,
};
use dblock_model::protocol::{
    CHECKED, DEAD, ENDED, EXCLUSION, IN_VAIN, KEPT, MARGIN, NEXT, PASSES, Protocol, RELEASE, TOKENS,
};

/// Without the guard the property is violated in that run.
type Need = (Guard, Bounds, &'static str);

const RETRY_NEEDS: &[Need] = &[
    (Guard::AbandonedIsReleased, RETRY, RELEASE),
    (Guard::AbandonedReleaseIsResent, RETRY, RELEASE),
    (Guard::LastReleaseAfterTtl, RETRY, RELEASE),
    (Guard::FreeRowRefusesItsLease, RETRY, RELEASE),
    (Guard::PurgeOnlyIdle, RETRY, RELEASE),
];

const LEASE_NEEDS: &[Need] = &[
    (Guard::ReleaseChecksLease, CLOCK, EXCLUSION),
    (Guard::ReleaseChecksExpiry, CRASH, ENDED),
    (Guard::ExtendChecksLease, FORCE, EXCLUSION),
    (Guard::ExtendChecksExpiry, CRASH, ENDED),
    (Guard::LocalDeadline, CRASH, EXCLUSION),
    (Guard::DeadlineFromSend, CRASH, EXCLUSION),
    (Guard::Margin, CLOCK, EXCLUSION),
    (Guard::TokenAboveCeiling, CRASH, TOKENS),
];

const COUNTS_NEEDS: &[Need] = &[
    (Guard::AbsoluteCounts, COUNTS, EXCLUSION),
    (Guard::AbsoluteCounts, COUNTS, KEPT),
    (Guard::AbsoluteCounts, COUNTS, RELEASE),
];

const HAND_OVER_NEEDS: &[Need] = &[
    (Guard::CeilingCoversSpareTokens, HAND_OVER, TOKENS),
    (Guard::TokenAboveCeiling, HAND_OVER, TOKENS),
    (Guard::TokenFromClock, HAND_OVER, TOKENS),
    (Guard::PurgeBelowClock, HAND_OVER, TOKENS),
    (Guard::HandOverWithinSpareTokens, HAND_OVER, TOKENS),
    (Guard::HandOverWithinLease, HAND_OVER, TOKENS),
    (Guard::NoHandOverAfterCheck, HAND_OVER, CHECKED),
    (Guard::CheckLocksRow, HAND_OVER, CHECKED),
    (Guard::FlushBeforeCheck, HAND_OVER, PASSES),
    (Guard::ExtendKeepsLaterToken, HAND_OVER, PASSES),
];

const PASS_ON_NEEDS: &[Need] = &[
    (Guard::TokenAboveCeiling, PASS_ON_TOKENS, TOKENS),
    (Guard::CeilingCoversSpareTokens, PASS_ON_TOKENS, TOKENS),
    (Guard::PassOnToLiveOnly, PASS_ON_CRASH, DEAD),
    (Guard::GrantClearsSuccessor, PASS_ON_CRASH, NEXT),
    (Guard::ReleaseChecksExpiry, PASS_ON_CRASH, ENDED),
    (Guard::WakeUpIsNewer, PASS_ON_CRASH, EXCLUSION),
    (Guard::WakeUpWithNoAskOnItsWay, PASS_ON_LATE, NEXT),
    (Guard::WakeUpWithinLease, PASS_ON_CRASH, EXCLUSION),
    (Guard::DeadlineFromSend, PASS_ON_CRASH, EXCLUSION),
    (Guard::DeadlineOfNextTtl, PASS_ON_CRASH, EXCLUSION),
    (Guard::Margin, PASS_ON_CLOCK, EXCLUSION),
    (Guard::SnapshotIsNotQueued, PASS_ON_SLOW, EXCLUSION),
    (Guard::UnwantedPassOnIsReleased, PASS_ON_LATE, RELEASE),
    (Guard::EntryEndsAsking, PASS_ON_LATE, KEPT),
    (Guard::WithdrawalEndsAsking, PASS_ON_LATE, KEPT),
    (Guard::RepeatedAcquireIsSameGrant, PASS_ON_CRASH, IN_VAIN),
    (Guard::LostEndsAsking, PASS_ON_CRASH, IN_VAIN),
    (Guard::UnknownEndsAsking, PASS_ON_LATE, NEXT),
    (Guard::WithdrawnMayBeAnEarlierAsk, PASS_ON_LATE, NEXT),
    (Guard::ReleasedMayBeAnEarlierAsk, PASS_ON_LATE, NEXT),
];

fn hold(runs: &[Bounds]) {
    for bounds in runs {
        let guards = Guards::ALL;
        let bounds = *bounds;
        holds(bounds.name, &Protocol { guards, bounds });
    }
}

fn need(needs: &[Need]) {
    for (guard, bounds, property) in needs {
        let name = format!("{} without {guard:?}", bounds.name);
        let guards = Guards::without(*guard);
        let bounds = *bounds;
        breaks(&name, &Protocol { guards, bounds }, property);
    }
}

#[test]
fn retry_holds() {
    hold(&[RETRY]);
}

#[test]
fn retry_needs_each_guard() {
    need(RETRY_NEEDS);
}

#[test]
fn lease_holds() {
    hold(&[CLOCK, CRASH, FORCE]);
}

#[test]
fn lease_needs_each_guard() {
    need(LEASE_NEEDS);
}

/// Outside the documented conditions exclusion is lost, and the fence token protects.
#[test]
fn a_clock_that_jumps_too_far_costs_exclusion_only() {
    for bounds in [CLOCK, PASS_ON_CLOCK] {
        let jump = MARGIN + 1;
        let model = Protocol {
            guards: Guards::ALL,
            bounds: Bounds { jump, ..bounds },
        };
        assert_eq!(broken(&model), [EXCLUSION, KEPT]);
    }
}

#[test]
fn counts_hold() {
    hold(&[COUNTS]);
}

#[test]
fn counts_need_each_guard() {
    need(COUNTS_NEEDS);
}

#[test]
fn hand_over_holds() {
    hold(&[HAND_OVER]);
}

#[test]
fn hand_over_needs_each_guard() {
    need(HAND_OVER_NEEDS);
}

#[test]
fn pass_on_holds() {
    hold(&[
        PASS_ON_CLOCK,
        PASS_ON_CRASH,
        PASS_ON_LATE,
        PASS_ON_TOKENS,
        PASS_ON_SLOW,
        PASS_ON_THREE,
    ]);
}

#[test]
fn pass_on_needs_each_guard() {
    need(PASS_ON_NEEDS);
}

#[test]
fn no_guard_is_left_out() {
    let needs = [
        RETRY_NEEDS,
        LEASE_NEEDS,
        COUNTS_NEEDS,
        HAND_OVER_NEEDS,
        PASS_ON_NEEDS,
    ]
    .concat();
    let removed: BTreeSet<Guard> = needs.into_iter().map(|(guard, ..)| guard).collect();
    let every: BTreeSet<Guard> = Guard::every().collect();
    assert_eq!(removed, every);
}
