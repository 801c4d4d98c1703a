//! The texts of [`LockError`](super::LockError).

use std::time::Duration;

use super::TimeoutCause;
use crate::key::Key;
use crate::store::Holder;

pub(super) fn held_by(holder: Option<&Holder>) -> String {
    let Some(Holder { name, remaining, .. }) = holder else {
        return String::new();
    };
    match remaining.map_or(Duration::ZERO, rounded) {
        Duration::ZERO => format!(", held by {name}"),
        remaining => format!(", held by {name}: its lease runs {remaining:?} more and may be renewed"),
    }
}

pub(super) fn timed_out(key: &Key, waited: Duration, cause: TimeoutCause, holder: Option<&Holder>) -> String {
    let waited = rounded(waited);
    match cause {
        TimeoutCause::Held => format!("lock {key:?} was still busy after {waited:?}{}", held_by(holder)),
        TimeoutCause::RowLocked => format!(
            "lock {key:?} was not acquired within {waited:?}: an open transaction keeps its row locked; commit or roll \
             back the transaction that called `verify_in`"
        ),
        TimeoutCause::NoAnswer => format!(
            "lock {key:?} was not acquired within {waited:?}: the database did not answer in time; give a longer \
             `wait`, or see `LockManager::health`"
        ),
    }
}

pub(super) fn lock(key: Option<&Key>) -> String {
    key.map(|key| format!("lock {key:?} is refused: "))
        .unwrap_or_default()
}

pub(super) fn about(key: Option<&Key>, waited: Duration) -> String {
    key.map(|key| format!(" for {key:?}")).unwrap_or_default() + &after(waited)
}

pub(super) fn after(waited: Duration) -> String {
    if waited.is_zero() {
        return String::new();
    }
    format!(" after {:?}", rounded(waited))
}

/// To the millisecond, for people; a shorter time to the microsecond.
pub fn rounded(time: Duration) -> Duration {
    let unit = if time < Duration::from_millis(1) {
        1_000
    } else {
        1_000_000
    };
    let nanos = (time.subsec_nanos() + unit / 2) / unit * unit;
    Duration::from_secs(time.as_secs()).saturating_add(Duration::from_nanos(nanos.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_for_people() {
        for (nanos, shown) in [
            (0, "0ns"),
            (1_499, "1µs"),
            (999_999, "1ms"),
            (1_500_000, "2ms"),
            (1_999_600_000, "2s"),
            (61_000_000_001, "61s"),
        ] {
            assert_eq!(format!("{:?}", rounded(Duration::from_nanos(nanos))), shown);
        }
        assert_eq!(rounded(Duration::MAX), Duration::MAX);
    }
}
