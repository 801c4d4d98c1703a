//! Reading a history.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use super::{Line, RESOURCE, RUNNER};
use crate::seat::Life;

/// All that was written down in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) runner: Vec<Line>,
    pub(crate) resource: Vec<Line>,
    pub(crate) workers: BTreeMap<Life, WorkerLog>,
}

/// The events that one process wrote, in its order.
pub(crate) type WorkerLog = Vec<Line>;

impl History {
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut history = Self {
            runner: lines(&folder.join(RUNNER))?,
            resource: lines(&folder.join(RESOURCE))?,
            workers: BTreeMap::new(),
        };
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if let Some(life) = entry.file_name().to_str().and_then(Life::of_file) {
                history.workers.insert(life, lines(&entry.path())?);
            }
        }
        Ok(history)
    }
}

/// A last line without its end is from a process that was killed while it wrote, and did no more.
fn lines(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            serde_json::from_str(line).with_context(|| format!("{} has the line {line}", path.display()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Event, Journal};

    #[test]
    fn what_was_written_is_read_up_to_the_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RUNNER);
        let journal = Journal::create(&path).unwrap();
        journal.write_at(5, Event::Calm);
        journal.write_at(
            6,
            Event::Killed {
                life: Life { seat: 1, life: 2 },
            },
        );
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"at\":7,\"e\":\"ca")).unwrap();
        let read = lines(&path).unwrap();
        assert_eq!(read.iter().map(|line| line.at).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(read[0].event, Event::Calm);
    }
}
