//! The part of a diagnosis that the SQL stores share.

mod grants;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Finding;
use super::{StoreError, StoreErrorKind};

pub(crate) use grants::{grants, probes};

/// A round trip above this makes locks noticeably slow.
const SLOW: Duration = Duration::from_millis(50);

/// An offset of the clocks above this confuses people who compare times.
const CLOCKS_APART: Duration = Duration::from_secs(2);

/// One question for the store's clock.
#[derive(Debug)]
pub(crate) struct Sample {
    took: Duration,
    /// The store's clock less this host's, in µs, at the middle of the question.
    offset: i64,
}

/// How often the clock is asked.
pub(crate) const SAMPLES: usize = 5;

/// When a question for the clock was sent.
pub(crate) struct Asked(Instant, SystemTime);

impl Asked {
    pub(crate) fn now() -> Self {
        Self(Instant::now(), SystemTime::now())
    }

    /// The answer was that the store's clock is at `now`, in µs.
    pub(crate) fn answered(self, now: i64) -> Sample {
        let took = self.0.elapsed();
        let middle = self.1.duration_since(UNIX_EPOCH).unwrap_or_default() + took / 2;
        let here = i64::try_from(middle.as_micros()).unwrap_or(i64::MAX);
        Sample {
            took,
            offset: now.saturating_sub(here),
        }
    }
}

/// The clock's offset to this host's, and the time of a round trip.
pub(crate) fn clock_and_round_trip(mut samples: Vec<Sample>) -> Vec<Finding> {
    samples.sort_by_key(|sample| sample.took);
    let (Some(quickest), Some(median)) = (samples.first(), samples.get(samples.len() / 2)) else {
        return Vec::new();
    };
    let offset = Duration::from_micros(quickest.offset.unsigned_abs());
    let direction = if quickest.offset < 0 { "behind" } else { "ahead of" };
    let found = format!(
        "the database's clock is {} {direction} this host's, within {}",
        shown(offset),
        shown(quickest.took / 2)
    );
    let meaning = "the database's clock alone decides when a lease ends, so an offset breaks nothing; a jump ahead by more \
                   than a twentieth of the ttl while a lease is held would";
    let clock = if offset > CLOCKS_APART {
        let remedy = "let NTP keep both clocks, and let it slew rather than step";
        Finding::note("clock", found, meaning, remedy)
    } else {
        Finding::fine("clock", found, meaning)
    };
    let (found, meaning) = (
        format!("{}, the median of {}", shown(median.took), samples.len()),
        "a lock takes one round trip and one commit, and its release the same",
    );
    let round_trip = if median.took > SLOW {
        let remedy = "run the service nearer to its database, or choose a ttl of several seconds at least";
        Finding::note("round_trip", found, meaning, remedy)
    } else {
        Finding::fine("round_trip", found, meaning)
    };
    vec![clock, round_trip]
}

/// A time for people: in microseconds below 10 ms, otherwise in milliseconds.
pub(crate) fn shown(time: Duration) -> String {
    let unit = if time < Duration::from_millis(10) {
        1_000
    } else {
        1_000_000
    };
    format!(
        "{:?}",
        Duration::new(time.as_secs(), time.subsec_nanos() / unit * unit)
    )
}

/// The finding about the schema, from its check. Other errors are errors of the diagnosis.
pub(crate) fn schema(checked: Result<(), StoreError>) -> Result<Finding, StoreError> {
    match checked {
        Ok(()) => Ok(Finding::fine(
            "schema",
            "the tables are there, in a version that fits",
            "this version of dblock can work with them",
        )),
        Err(error) if error.kind() == StoreErrorKind::Schema => {
            let message = error.to_string();
            let (found, remedy) = message
                .split_once("; ")
                .unwrap_or((&message, "create the tables anew"));
            Ok(Finding::fault("schema", found, "no lock can be taken", remedy))
        }
        Err(error) => Err(error),
    }
}

/// Whether the server's version is one that is tested.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) fn version(
    name: &str,
    found: (u32, u32),
    oldest: (u32, u32),
    tested: Option<(u32, u32)>,
) -> Finding {
    let shown = format!("{name} {}.{}", found.0, found.1);
    if found < oldest {
        let remedy = format!("upgrade the server to {}.{} or later", oldest.0, oldest.1);
        return Finding::fault(
            "version",
            shown,
            "the statements need what later versions have",
            remedy,
        );
    }
    match tested {
        Some(tested) if found == tested => {
            Finding::fine("version", shown, "the tests of dblock run on this version")
        }
        _ => Finding::note(
            "version",
            shown,
            "supported by what its documentation says; the tests of dblock run on another version",
            "none is needed; report what differs",
        ),
    }
}

/// The finding that a crash may take commits back.
pub(crate) fn not_durable(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding::fault(
        "durability",
        found,
        "after a crash a lease that somebody holds may be gone, so two may hold a lock; only the fence token protects then",
        remedy,
    )
}

/// The finding that commits are durable.
pub(crate) fn durable(found: impl Into<String>) -> Finding {
    let meaning = "what was committed survives a crash of the server";
    Finding::fine("durability", found, meaning)
}

#[cfg(all(test, feature = "sql"))]
mod tests {
    use super::*;
    use crate::store::Severity;

    #[test]
    fn the_quickest_answer_tells_the_offset_and_the_median_the_round_trip() {
        let sample = |millis, offset| Sample {
            took: Duration::from_millis(millis),
            offset,
        };
        let samples = vec![sample(90, 9_000_000), sample(10, -3_000_000), sample(60, 0)];
        let [clock, round_trip] = &clock_and_round_trip(samples)[..] else {
            panic!("two findings");
        };
        assert_eq!(clock.severity, Severity::Note);
        assert!(
            clock.found.contains("3s behind") && clock.found.contains("5ms"),
            "{clock:?}"
        );
        assert_eq!(round_trip.found, "60ms, the median of 3");
        assert_eq!(round_trip.severity, Severity::Note);
    }
}
