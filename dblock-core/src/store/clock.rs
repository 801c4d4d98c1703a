//! The store's clock: moments on it, and lengths of time as a store writes them.

use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

/// A moment on the store's clock, in µs since the Unix epoch.
///
/// Sums and differences stop at the first and the last moment that there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The Unix epoch. In a row it says that something has not been yet.
    pub const EPOCH: Self = Self(0);

    /// The moment so many µs after the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// The µs since the Unix epoch, as a store writes them.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The time from `earlier` to this moment; zero when `earlier` is the later one.
    pub fn since(self, earlier: Self) -> Duration {
        length(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, length: Duration) -> Self {
        Self(self.0.saturating_add(micros(length)))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    fn sub(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(micros(length)))
    }
}

/// A time before the Unix epoch becomes the epoch.
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self::EPOCH + time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
    }
}

/// A moment before the Unix epoch becomes the epoch, as does one that the system cannot express.
impl From<Timestamp> for SystemTime {
    fn from(moment: Timestamp) -> Self {
        Self::UNIX_EPOCH
            .checked_add(moment.since(Timestamp::EPOCH))
            .unwrap_or(Self::UNIX_EPOCH)
    }
}

/// A length in µs, as a store writes it. No option allows more than ten years, so every length fits.
pub fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// A length from µs; zero when they are negative.
pub fn length(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_never_overflow() {
        let (first, last) = (Timestamp(i64::MIN), Timestamp(i64::MAX));
        assert_eq!((last + Duration::MAX, first - Duration::MAX), (last, first));
        assert_eq!(first.since(last), Duration::ZERO);
        assert_eq!(last.since(first), length(i64::MAX));
        assert_eq!(SystemTime::from(first), SystemTime::UNIX_EPOCH);
        let _ = SystemTime::from(last);
    }

    #[test]
    fn a_moment_is_the_systems_time() {
        let moment = Timestamp::EPOCH + Duration::from_micros(1_500_001);
        assert_eq!(moment.as_micros(), 1_500_001);
        let after = SystemTime::from(moment).duration_since(SystemTime::UNIX_EPOCH);
        assert_eq!(after.unwrap(), Duration::from_micros(1_500_001));
        assert_eq!(Timestamp::from(SystemTime::from(moment)), moment);
    }
}
