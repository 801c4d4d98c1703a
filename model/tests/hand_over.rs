//! Hand-over inside a process.

use dblock_model::check::property::{FENCED, TOKENS};
use dblock_model::check::{breaks, holds};
use dblock_model::guards::{Guard, Guards};
use dblock_model::hand_over::{CHECKED, HandOverModel, PASSES};

#[test]
fn the_protocol_holds() {
    let guards = Guards::ALL;
    holds("hand-over", &HandOverModel { guards });
}

fn without(guard: Guard, property: &'static str) {
    let guards = Guards::without(guard);
    breaks(
        &format!("hand-over without {guard:?}"),
        &HandOverModel { guards },
        property,
    );
}

#[test]
fn each_guard_is_needed() {
    without(Guard::CeilingCoversBlock, TOKENS);
    without(Guard::CeilingCoversBlock, FENCED);
    without(Guard::TokenAboveCeiling, TOKENS);
    without(Guard::TokenFromClock, TOKENS);
    without(Guard::PurgeBelowClock, TOKENS);
    without(Guard::HandOverWithinBlock, TOKENS);
    without(Guard::HandOverWithinLease, TOKENS);
    without(Guard::NoHandOverAfterCheck, CHECKED);
    without(Guard::CheckLocksRow, CHECKED);
    without(Guard::FlushBeforeCheck, PASSES);
    without(Guard::ExtendKeepsLaterToken, PASSES);
}
