use std::time::Duration;

use super::*;
use dblock_core::store::{Extend, Released, StoreError, StoreErrorKind};

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "it broke")
}

fn extend() -> Action {
    Action::Extend(Extend::new(1, Duration::from_secs(1)))
}

fn extended(millis: u64, revoked: bool) -> Outcome {
    Outcome::extended(Duration::from_millis(millis)).with_revoked(revoked)
}

/// The answer of `both`, in either order.
fn joined(action: &Action, one: &Answer, other: &Answer) -> Answer {
    let answer = both(action, one.clone(), other.clone());
    let turned = both(action, other.clone(), one.clone());
    assert_eq!(format!("{answer:?}"), format!("{turned:?}"));
    answer
}

#[test]
fn an_extend_counts_when_both_rows_have_it() {
    let both = joined(&extend(), &Ok(extended(500, false)), &Ok(extended(400, true))).unwrap();
    assert_eq!(both, extended(400, true));
    let lost = joined(&extend(), &Ok(extended(500, false)), &Ok(Outcome::Lost));
    assert_eq!(lost.unwrap(), Outcome::Lost);
    let lost = joined(
        &extend(),
        &Err(error(StoreErrorKind::Interrupted)),
        &Ok(Outcome::Lost),
    );
    assert_eq!(lost.unwrap(), Outcome::Lost);
    let skipped = joined(&extend(), &Ok(extended(500, false)), &Ok(Outcome::Skipped));
    assert_eq!(skipped.unwrap(), Outcome::Skipped);
}

#[test]
fn what_one_row_has_carried_out_is_of_unknown_outcome() {
    let half = [
        (extend(), Ok(extended(500, false))),
        (Action::Release, Ok(Outcome::Released(Released::Freed))),
        (Action::Release, Ok(Outcome::Lost)),
    ];
    for (action, done) in half {
        for kind in [StoreErrorKind::Unreachable, StoreErrorKind::Conflict] {
            let answer = joined(&action, &done, &Err(error(kind))).unwrap_err();
            assert!(answer.is_outcome_unknown(), "{action:?} {answer}");
        }
        let refused = joined(&action, &done, &Err(error(StoreErrorKind::Refused))).unwrap_err();
        assert_eq!(
            refused.kind(),
            StoreErrorKind::Refused,
            "sending it again is of no use"
        );
    }
    let (down, broke) = (
        error(StoreErrorKind::Unreachable),
        error(StoreErrorKind::Interrupted),
    );
    assert!(
        joined(&extend(), &Err(down), &Err(broke))
            .unwrap_err()
            .is_outcome_unknown()
    );
}

#[test]
fn a_release_is_confirmed_when_both_rows_knew_the_lease() {
    let joined = |one: Outcome, other: Outcome| joined(&Action::Release, &Ok(one), &Ok(other)).unwrap();
    let (freed, passed_on) = (
        Outcome::Released(Released::Freed),
        Outcome::Released(Released::PassedOn),
    );
    assert_eq!(joined(freed.clone(), passed_on.clone()), passed_on);
    assert_eq!(joined(freed.clone(), Outcome::Released(Released::Before)), freed);
    assert_eq!(joined(freed.clone(), Outcome::Lost), Outcome::Lost);
    assert_eq!(joined(freed, Outcome::Withdrawn), Outcome::Withdrawn);
    assert_eq!(joined(Outcome::Lost, Outcome::Withdrawn), Outcome::Withdrawn);
    assert_eq!(joined(Outcome::Skipped, Outcome::Skipped), Outcome::Skipped);
}

#[test]
fn a_release_that_one_row_skips_is_of_unknown_outcome() {
    for done in [
        Outcome::Released(Released::PassedOn),
        Outcome::Withdrawn,
        Outcome::Lost,
    ] {
        let answer = joined(&Action::Release, &Ok(done), &Ok(Outcome::Skipped));
        assert!(answer.unwrap_err().is_outcome_unknown());
    }
}

#[test]
fn the_common_token_is_above_what_either_row_keeps_free() {
    assert_eq!(common_token((7, 7), 50), Some(7), "both have it already");
    assert_eq!(common_token((7, 9), 0), Some(9));
    assert_eq!(common_token((90, 7), 50), Some(90));
    // Within the tokens that the lower row keeps free.
    assert_eq!(common_token((7, 57), 50), Some(108));
    assert_eq!(common_token((7, i64::MAX), 1), None);
    assert_eq!(common_token((i64::MAX - 1, i64::MAX), 0), Some(i64::MAX));
}
