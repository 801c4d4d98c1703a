//! What is drawn from the seed. dblock draws from the same generator, that of this thread.

use std::ops::RangeInclusive;
use std::time::Duration;

pub(crate) fn pick<T: Copy>(some: &[T]) -> T {
    some[fastrand::usize(..some.len())]
}

/// Whether something comes that comes so many times in a thousand.
pub(crate) fn chance(permille: u32) -> bool {
    permille > 0 && fastrand::u32(..1000) < permille
}

pub(crate) fn ms(range: RangeInclusive<u64>) -> Duration {
    Duration::from_millis(fastrand::u64(range))
}
