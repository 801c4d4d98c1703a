//! Metrics of a manager and of its call sites, through the facade of the crate `metrics`. Their names are in
//! docs/operations.md.
//!
//! A [`Meter`] belongs to one manager, a [`Site`] to one function that takes locks there. Both keep the
//! recorder's handles, because asking the recorder by name costs more than recording. The engine's core knows a
//! site by its number alone. Without the feature
//! `metrics` both are empty. No call is made while a mutex is held: a recorder is code of the application.

#[cfg(feature = "metrics")]
mod recorded;
#[cfg(not(feature = "metrics"))]
mod unrecorded;

#[cfg(feature = "metrics")]
pub(crate) use self::recorded::{Meter, Site, Waiting};
#[cfg(not(feature = "metrics"))]
pub(crate) use self::unrecorded::{Meter, Site, Waiting};

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "metrics"),
    allow(dead_code, reason = "only the names are read")
)]
pub(crate) enum AcquireOutcome {
    Acquired,
    ReEntered,
    Busy,
    Timeout,
    RowLocked,
    NoAnswer,
    StoreError,
    Lost,
    Shutdown,
    /// The caller's future was dropped.
    Dropped,
}
