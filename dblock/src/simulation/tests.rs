//! A part of what `cargo xtask simulate` runs. Failures that it found are kept as tests of the core, because
//! a tape is no longer valid once the code draws its choices differently.

use super::*;

/// Runs seeds on two threads.
fn run_all(first: u64, count: u64) {
    let half = count / 2;
    let run_some = |seeds: std::ops::Range<u64>| {
        for seed in seeds {
            if let Err(violation) = run(seed) {
                let events = explain(seed).map_or_else(Vec::new, |failure| failure.events);
                panic!("seed {seed}: {violation}\n{}", events.join("\n"));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run_some(first..first + half));
        run_some(first + half..first + count);
    });
}

#[test]
fn what_is_promised_holds_in_each_schedule() {
    run_all(1, 3_000);
}

/// The flaws that few schedules show; `cargo xtask simulate --flaws` looks for all.
#[test]
fn flaws_are_found() {
    use Flaw::*;
    for flaw in [
        HandOverWhileReleasing,
        HandOverKeepsToken,
        HandOverBeyondSpareTokens,
        PlacesAreKept,
        AnswersCountTwice,
        NoMargin,
        WakeUpsAreBelievedWhileAsking,
        AbandonedIsForgotten,
        HoldsAreForgotten,
        EnteredPlaceIsKept,
        NothingIsRenewed,
        HoldMinIsForgotten,
        MaxHoldIsForgotten,
        GoneCallersAreKept,
        UnknownReleaseIsDone,
        RequestsOvertake,
        SlowBeginsStand,
        OutcomesIgnoreOtherHolds,
    ] {
        assert!(find(flaw, 1, 2_000).schedules.is_some(), "{flaw:?}");
    }
}

#[test]
fn a_seed_and_its_tape_tell_the_same() {
    put_in(Some(Flaw::HandOverKeepsToken));
    let seed = (1..1_000).find(|seed| run(*seed).is_err()).unwrap();
    let failure = explain(seed).unwrap();
    assert_eq!(replay(&failure.tape).unwrap().events, failure.events);
    let short = shrink(failure.clone(), std::time::Duration::from_secs(2));
    put_in(None);
    assert!(short.tape.len() < failure.tape.len());
    assert_eq!(kind(&short.violation), kind(&failure.violation));
}
