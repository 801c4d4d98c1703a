//! The engine's clock: monotonic, and the same for callers and driver.

use std::time::Instant;

use dblock_core::machine::env::Time;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Clock {
    /// Real time, whatever the application does to its runtime's clock.
    Real(Instant),
    /// The clock of the caller's runtime: a test can pause it.
    Runtime(tokio::time::Instant),
}

impl Clock {
    pub(super) fn start(of_callers_runtime: bool) -> Self {
        if of_callers_runtime {
            Self::Runtime(tokio::time::Instant::now())
        } else {
            Self::Real(Instant::now())
        }
    }

    pub(crate) fn now(self) -> Time {
        let elapsed = match self {
            Self::Real(origin) => origin.elapsed(),
            Self::Runtime(origin) => origin.elapsed(),
        };
        Time::from_nanos(0) + elapsed
    }
}
