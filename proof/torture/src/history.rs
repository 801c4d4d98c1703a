//! The history: one file of JSON lines for each process, one for the runner, one for the fenced resource.
//! Times are nanoseconds on the host's monotonic clock, which all processes share and nobody can set.
//!
//! A process writes a line before it takes the step, so that a killed process has written all that it did.

mod event;
mod journal;
mod read;

pub(crate) use event::{AccountEnd, Count, End, Event, Form, How, Line, Row};
pub(crate) use journal::Journal;
pub(crate) use read::History;

use rustix::time::{ClockId, clock_gettime};

/// A millisecond on this clock.
pub(crate) const MS: i64 = 1_000_000;

/// The runner's file.
pub(crate) const RUNNER: &str = "runner.jsonl";

/// The fenced resource's file.
pub(crate) const RESOURCE: &str = "resource.jsonl";

/// Now, on the clock that all processes of the host share.
pub(crate) fn now() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
