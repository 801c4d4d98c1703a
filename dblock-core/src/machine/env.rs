//! The inputs of a step besides the call itself. The core has no clock: the driver reads a real one, a
//! simulation makes one up.

use std::ops::Add;
use std::time::Duration;

use uuid::Uuid;

/// The inputs of a step beside its call.
#[expect(missing_debug_implementations, reason = "randomness has nothing to show")]
pub struct Env<'a> {
    pub now: Time,
    /// The store has wake-ups.
    pub wake_ups: bool,
    /// The engine receives wake-ups at this moment.
    pub listening: bool,
    /// Local hand-over is switched on.
    pub hand_over: bool,
    pub random: &'a mut dyn Random,
}

/// Randomness as an input.
pub trait Random {
    /// A fresh id, never returned before.
    fn lease_id(&mut self) -> Uuid;

    /// From 0 up to, but not including, 1.
    fn fraction(&mut self) -> f64;
}

impl Env<'_> {
    /// Between three quarters and five quarters of `pause`, so that processes do not ask in step.
    pub(super) fn jittered(&mut self, pause: Duration) -> Duration {
        pause.mul_f64(0.75 + self.random.fraction() / 2.0)
    }
}

/// Nanoseconds since an origin that the creator chose. At most [`Time::MAX`]. The upper four bits of the
/// `u64` stay free, for `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// 36 years after the origin.
    pub const MAX: Self = Self((1 << 60) - 1);

    #[inline]
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos.min(Self::MAX.0))
    }

    #[inline]
    pub fn as_nanos(self) -> u64 {
        self.0
    }

    /// Zero when `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[inline]
    #[must_use]
    pub fn before(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(length)))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    #[inline]
    fn add(self, length: Duration) -> Self {
        Self::from_nanos(self.0.saturating_add(nanos(length)))
    }
}

/// Two clocks drift apart by less than one second in this many seconds.
const CLOCKS_AGREE: u32 = 1000;

/// How long to wait by one clock until `length` has surely passed by another.
pub fn on_any_clock(length: Duration) -> Duration {
    length + length / CLOCKS_AGREE
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}
