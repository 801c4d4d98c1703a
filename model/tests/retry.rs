//! Acquires of unknown outcome.

use dblock_model::check::property::{EXCLUSION, RELEASE};
use dblock_model::check::{breaks, holds};
use dblock_model::guards::{Guard, Guards};
use dblock_model::retry::RetryModel;

#[test]
fn the_protocol_holds() {
    let guards = Guards::ALL;
    holds("retry", &RetryModel { guards });
}

fn without(guard: Guard, property: &'static str) {
    let guards = Guards::without(guard);
    breaks(
        &format!("retry without {guard:?}"),
        &RetryModel { guards },
        property,
    );
}

#[test]
fn each_guard_is_needed() {
    without(Guard::OrphanIsReleased, RELEASE);
    without(Guard::OrphanReleaseIsResent, RELEASE);
    without(Guard::LastReleaseAfterTtl, RELEASE);
    without(Guard::FreeRowRefusesItsLease, RELEASE);
    without(Guard::PurgeOnlyIdle, RELEASE);
    without(Guard::RepeatedAcquireIsSameGrant, RELEASE);
    without(Guard::ReleaseChecksLease, EXCLUSION);
}
