//! The protocol keeps its promises, and needs each of its rules for that.

use std::collections::BTreeSet;

use dblock_model::check::property::{EXCLUSION, FENCED, RELEASE, TOKENS};
use dblock_model::check::{breaks, broken, holds};
use dblock_model::counts::{CountsModel, KEPT};
use dblock_model::guards::{Guard, Guards};
use dblock_model::hand_over::{CHECKED, HandOverModel, PASSES};
use dblock_model::lease::{ENDED, LeaseModel, MARGIN, Trouble};
use dblock_model::reservations::{
    Bounds, CLOCK, CRASH, FREED, KEPT as KEEPS_IT, LATE, RESERVED, ReservationsModel, SHORT, THREE,
};
use dblock_model::retry::RetryModel;
use dblock_model::turns::{TURN, TurnsModel};

const JUMP: Trouble = Trouble::Jump(MARGIN);

/// Without the guard the property is violated.
const RETRY: &[(Guard, &str)] = &[
    (Guard::OrphanIsReleased, RELEASE),
    (Guard::OrphanReleaseIsResent, RELEASE),
    (Guard::LastReleaseAfterTtl, RELEASE),
    (Guard::FreeRowRefusesItsLease, RELEASE),
    (Guard::PurgeOnlyIdle, RELEASE),
    (Guard::RepeatedAcquireIsSameGrant, RELEASE),
    (Guard::ReleaseChecksLease, EXCLUSION),
];

const LEASE: &[(Guard, Trouble, &str)] = &[
    (Guard::ReleaseChecksLease, JUMP, EXCLUSION),
    (Guard::ExtendChecksLease, Trouble::ForceRelease, EXCLUSION),
    (Guard::ExtendChecksExpiry, Trouble::Crash, ENDED),
    (Guard::LocalDeadline, Trouble::Crash, EXCLUSION),
    (Guard::DeadlineFromSend, Trouble::Crash, EXCLUSION),
    (Guard::Margin, JUMP, EXCLUSION),
    (Guard::TokenAboveCeiling, Trouble::Crash, TOKENS),
    (Guard::TokenAboveCeiling, Trouble::ForceRelease, FENCED),
];

const COUNTS: &[(Guard, &str)] = &[
    (Guard::AbsoluteCounts, EXCLUSION),
    (Guard::AbsoluteCounts, KEPT),
    (Guard::AbsoluteCounts, RELEASE),
    (Guard::ReleaseChecksLease, EXCLUSION),
];

const HAND_OVER: &[(Guard, &str)] = &[
    (Guard::CeilingCoversBlock, TOKENS),
    (Guard::CeilingCoversBlock, FENCED),
    (Guard::TokenAboveCeiling, TOKENS),
    (Guard::TokenFromClock, TOKENS),
    (Guard::PurgeBelowClock, TOKENS),
    (Guard::HandOverWithinBlock, TOKENS),
    (Guard::HandOverWithinLease, TOKENS),
    (Guard::NoHandOverAfterCheck, CHECKED),
    (Guard::CheckLocksRow, CHECKED),
    (Guard::FlushBeforeCheck, PASSES),
    (Guard::ExtendKeepsLaterToken, PASSES),
];

const RESERVATIONS: &[(Guard, Bounds, &str)] = &[
    (Guard::ReservationKeepsOthersOut, CRASH, KEEPS_IT),
    (Guard::OneReservation, THREE, EXCLUSION),
    (Guard::GrantEndsReservation, CRASH, RESERVED),
    (Guard::ReservationRaisesCeiling, CRASH, TOKENS),
    (Guard::TokenAboveCeiling, LATE, TOKENS),
    (Guard::ClaimNeedsReservation, CRASH, KEEPS_IT),
    (Guard::ClaimKeepsThePromise, SHORT, KEEPS_IT),
    (Guard::ClaimKeepsThePromise, SHORT, EXCLUSION),
    (Guard::LeftNamesTheLease, CRASH, EXCLUSION),
    (Guard::LeftWhileReserved, CRASH, KEEPS_IT),
    (Guard::DeadlineFromSend, CLOCK, KEEPS_IT),
    (Guard::Margin, CLOCK, KEEPS_IT),
    (Guard::LeftWithNoAskOnItsWay, LATE, RESERVED),
    (Guard::LeavesForGood, LATE, EXCLUSION),
    (Guard::UnknownAskEndsLease, LATE, RELEASE),
    (Guard::WithdrawnIsNotTheEnd, LATE, RESERVED),
    (Guard::WithdrawalEndsLease, LATE, KEEPS_IT),
    (Guard::EntryEndsAsking, CRASH, TOKENS),
    (Guard::ReleaseAfterClaim, CRASH, FREED),
];

const TURNS: &[(Guard, &str)] = &[(Guard::StreakIsBounded, TURN), (Guard::StandsBackForAPause, TURN)];

fn without(guard: Guard) -> (String, Guards) {
    (format!("without {guard:?}"), Guards::without(guard))
}

#[test]
fn retry_holds() {
    holds("retry", &RetryModel { guards: Guards::ALL });
}

#[test]
fn retry_needs_each_guard() {
    for (guard, property) in RETRY {
        let (name, guards) = without(*guard);
        breaks(&format!("retry {name}"), &RetryModel { guards }, property);
    }
}

#[test]
fn lease_holds() {
    for trouble in [JUMP, Trouble::Crash, Trouble::ForceRelease] {
        let guards = Guards::ALL;
        holds(&format!("lease, {trouble:?}"), &LeaseModel { guards, trouble });
    }
}

#[test]
fn lease_needs_each_guard() {
    for (guard, trouble, property) in LEASE {
        let (name, guards) = without(*guard);
        let trouble = *trouble;
        let name = format!("lease {name}, {trouble:?}");
        breaks(&name, &LeaseModel { guards, trouble }, property);
    }
}

/// Outside the documented conditions exclusion is lost, and the fence token protects.
#[test]
fn a_clock_that_jumps_too_far_costs_exclusion_only() {
    let model = LeaseModel {
        guards: Guards::ALL,
        trouble: Trouble::Jump(MARGIN + 1),
    };
    assert_eq!(broken(&model), [EXCLUSION]);
}

#[test]
fn counts_hold() {
    holds("counts", &CountsModel { guards: Guards::ALL });
}

#[test]
fn counts_need_each_guard() {
    for (guard, property) in COUNTS {
        let (name, guards) = without(*guard);
        breaks(&format!("counts {name}"), &CountsModel { guards }, property);
    }
}

#[test]
fn hand_over_holds() {
    holds("hand-over", &HandOverModel { guards: Guards::ALL });
}

#[test]
fn hand_over_needs_each_guard() {
    for (guard, property) in HAND_OVER {
        let (name, guards) = without(*guard);
        breaks(&format!("hand-over {name}"), &HandOverModel { guards }, property);
    }
}

#[test]
fn reservations_hold() {
    let guards = Guards::ALL;
    for (name, bounds) in [
        ("clock", CLOCK),
        ("crash", CRASH),
        ("late", LATE),
        ("three", THREE),
        ("short", SHORT),
    ] {
        let model = ReservationsModel { guards, bounds };
        holds(&format!("reservations, {name}"), &model);
    }
}

#[test]
fn reservations_need_each_guard() {
    for (guard, bounds, property) in RESERVATIONS {
        let (name, guards) = without(*guard);
        let bounds = *bounds;
        let model = ReservationsModel { guards, bounds };
        breaks(&format!("reservations {name}"), &model, property);
    }
}

#[test]
fn turns_hold() {
    holds("turns", &TurnsModel { guards: Guards::ALL });
}

#[test]
fn turns_need_each_guard() {
    for (guard, property) in TURNS {
        let (name, guards) = without(*guard);
        breaks(&format!("turns {name}"), &TurnsModel { guards }, property);
    }
}

#[test]
fn no_guard_is_left_out() {
    let lease = LEASE.iter().map(|(guard, ..)| *guard);
    let others = [RETRY, COUNTS, HAND_OVER, TURNS].concat();
    let others = others.into_iter().map(|(guard, _)| guard);
    let reservations = RESERVATIONS.iter().map(|(guard, ..)| *guard);
    let removed: BTreeSet<Guard> = lease.chain(others).chain(reservations).collect();
    assert_eq!(removed, Guard::every().collect());
}
