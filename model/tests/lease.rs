//! Renewal, expiry and takeover.

use dblock_model::check::property::{EXCLUSION, FENCED, TOKENS};
use dblock_model::check::{breaks, holds};
use dblock_model::guards::{Guard, Guards};
use dblock_model::lease::{ENDED, LeaseModel, MARGIN, Trouble};

/// What the documentation allows for.
const TROUBLES: [Trouble; 3] = [Trouble::Jump(MARGIN), Trouble::Crash, Trouble::ForceRelease];

#[test]
fn the_protocol_holds() {
    for trouble in TROUBLES {
        let guards = Guards::ALL;
        holds(&format!("lease, {trouble:?}"), &LeaseModel { guards, trouble });
    }
}

fn without(guard: Guard, trouble: Trouble, property: &'static str) {
    let guards = Guards::without(guard);
    let name = format!("lease without {guard:?}, {trouble:?}");
    breaks(&name, &LeaseModel { guards, trouble }, property);
}

#[test]
fn each_guard_is_needed() {
    let jump = Trouble::Jump(MARGIN);
    without(Guard::ReleaseChecksLease, jump, EXCLUSION);
    without(Guard::ExtendChecksLease, Trouble::ForceRelease, EXCLUSION);
    without(Guard::ExtendChecksExpiry, Trouble::Crash, ENDED);
    without(Guard::LocalDeadline, Trouble::Crash, EXCLUSION);
    without(Guard::DeadlineFromSend, Trouble::Crash, EXCLUSION);
    without(Guard::Margin, jump, EXCLUSION);
    without(Guard::TokenAboveCeiling, Trouble::Crash, TOKENS);
    without(Guard::TokenAboveCeiling, Trouble::ForceRelease, FENCED);
}

/// Outside the documented conditions exclusion is lost, and the fence token protects.
#[test]
fn a_clock_that_jumps_too_far_costs_exclusion_only() {
    let model = LeaseModel {
        guards: Guards::ALL,
        trouble: Trouble::Jump(MARGIN + 1),
    };
    breaks("lease, clock jumps too far", &model, EXCLUSION);
    let others = dblock_model::check::broken(&model);
    assert_eq!(others, [EXCLUSION]);
}
