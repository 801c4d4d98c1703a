//! The inputs of a step beside its event.

use std::time::Duration;

use uuid::Uuid;

use super::time::Time;

/// The inputs of a step beside its event.
pub(crate) struct Env<'a> {
    pub(crate) now: Time,
    /// The store has wake-ups.
    pub(crate) wake_ups: bool,
    /// The engine receives wake-ups at this moment.
    pub(crate) listening: bool,
    /// Local hand-over is switched on.
    pub(crate) hand_over: bool,
    pub(crate) random: &'a mut dyn Random,
}

/// Randomness as an input.
pub(crate) trait Random {
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
