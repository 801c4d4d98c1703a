//! Times in rows are µs since the Unix epoch in a signed 64-bit integer; these two functions convert.

use std::time::Duration;

/// A length in µs. No option allows more than ten years, so every length fits.
pub fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

/// The time from `now` to `then`; zero when `then` has passed.
pub fn until(then: i64, now: i64) -> Duration {
    Duration::from_micros(u64::try_from(then.saturating_sub(now)).unwrap_or(0))
}
