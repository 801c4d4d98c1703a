//! Reading a history.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use super::{Line, RESOURCE, RUNNER};
use crate::process_id::ProcessId;

/// All that was written in a run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) runner: Vec<Line>,
    pub(crate) resource: Vec<Line>,
    pub(crate) workers: BTreeMap<ProcessId, WorkerLog>,
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
            if let Some(process) = entry.file_name().to_str().and_then(ProcessId::of_file) {
                history.workers.insert(process, lines(&entry.path())?);
            }
        }
        Ok(history)
    }
}

/// Leaves out a last line without its end: its process was killed while it wrote.
fn lines(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| {
            serde_json::from_str(&with_new_names(line))
                .with_context(|| format!("{} has the line {line}", path.display()))
        })
        .collect()
}

/// Translates the names of fields in histories that older versions kept.
fn with_new_names(line: &str) -> String {
    line.replace(r#""life":{"#, r#""process":{"#)
        .replace(r#""life":"#, r#""generation":"#)
        .replace(r#""seat":"#, r#""slot":"#)
        .replace(r#""way":"#, r#""form":"#)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;
    use crate::history::{Event, Form, Journal};

    #[test]
    fn what_was_written_is_read_up_to_the_last_whole_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RUNNER);
        let journal = Journal::create(&path).unwrap();
        journal.write_at(5, Event::Calm);
        journal.write_at(
            6,
            Event::Killed {
                process: ProcessId {
                    slot: 1,
                    generation: 2,
                },
            },
        );
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}{{\"at\":7,\"e\":\"ca")).unwrap();
        let read = lines(&path).unwrap();
        assert_eq!(read.iter().map(|line| line.at).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(read[0].event, Event::Calm);
    }

    #[test]
    fn histories_of_older_versions_are_read() {
        let read = |line| serde_json::from_str::<Line>(&with_new_names(line)).unwrap().event;
        let (slot, generation) = (2, 1);
        let process = ProcessId { slot, generation };
        let killed = read(r#"{"at":5,"e":"killed","life":{"seat":2,"life":1}}"#);
        assert_eq!(killed, Event::Killed { process });
        let fault = read(r#"{"at":5,"e":"fault","fault":{"fault":"kill","seat":2}}"#);
        let kill = Fault::Kill { slot };
        assert_eq!(fault, Event::Fault { fault: kill });
        let ask = read(
            r#"{"at":5,"e":"ask","call":1,"key":"k","way":"with_all","ttl_ms":1,"wait_ms":1,"renew":true}"#,
        );
        assert!(matches!(
            ask,
            Event::Ask {
                form: Form::RunAll,
                ..
            }
        ));
    }
}
