//! Re-entry.

use dblock_model::check::property::{EXCLUSION, RELEASE};
use dblock_model::check::{breaks, holds};
use dblock_model::counts::{CountsModel, KEPT};
use dblock_model::guards::{Guard, Guards};

#[test]
fn the_protocol_holds() {
    let guards = Guards::ALL;
    holds("counts", &CountsModel { guards });
}

fn without(guard: Guard, property: &'static str) {
    let guards = Guards::without(guard);
    breaks(
        &format!("counts without {guard:?}"),
        &CountsModel { guards },
        property,
    );
}

#[test]
fn each_guard_is_needed() {
    without(Guard::AbsoluteCounts, EXCLUSION);
    without(Guard::AbsoluteCounts, KEPT);
    without(Guard::AbsoluteCounts, RELEASE);
    without(Guard::ReleaseChecksLease, EXCLUSION);
}
