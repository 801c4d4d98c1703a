//! Writing a history.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use super::{Event, Line, now};

/// A file of lines. A written line is kept however the process ends.
#[derive(Debug)]
pub(crate) struct Journal(File);

impl Journal {
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        file.map(Self)
            .with_context(|| format!("cannot make {}", path.display()))
    }

    /// Writes a line with the present time, in one system call. The time is never later than the write.
    pub(crate) fn write(&self, event: Event) -> i64 {
        let at = now();
        self.write_at(at, event);
        at
    }

    pub(crate) fn write_at(&self, at: i64, event: Event) {
        let mut line = serde_json::to_vec(&Line { at, event }).expect("an event is JSON");
        line.push(b'\n');
        // Without its history a run is worth nothing.
        (&self.0).write_all(&line).expect("the history can be written");
    }
}
