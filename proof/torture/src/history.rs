//! The history: one file of JSON lines for each process, one for the runner, one for the fenced
//! resource. Times are nanoseconds on the monotonic clock that all processes of the host share and nobody can
//! set.
//!
//! A line is handed to the system before the step that it tells of, so a process that is killed has written
//! all that it did. No process writes an answer to what another one wrote.

mod event;
mod journal;
mod read;

pub(crate) use event::{AccountEnd, End, Event, How, Line, Row, Way};
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
