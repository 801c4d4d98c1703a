//! The identities of the processes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An OS process. After a kill the next generation starts in the same slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ProcessId {
    pub(crate) slot: usize,
    pub(crate) generation: usize,
}

impl ProcessId {
    pub(crate) const fn first(slot: usize) -> Self {
        Self { slot, generation: 0 }
    }

    /// Distinguishes a call from those of all processes.
    pub(crate) fn id_of(self, call: u64) -> i64 {
        let process = (self.generation * 100 + self.slot) as u64;
        i64::try_from(process << 32 | call).expect("few processes make few calls")
    }

    /// The name of its history.
    pub(crate) fn file(self) -> String {
        format!("worker-{self}.jsonl")
    }

    /// From the name of its history.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        let (slot, generation) = name
            .strip_prefix("worker-")?
            .strip_suffix(".jsonl")?
            .split_once('-')?;
        Some(Self {
            slot: slot.parse().ok()?,
            generation: generation.parse().ok()?,
        })
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.slot, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessId;

    #[test]
    fn a_file_names_its_process() {
        let process = ProcessId {
            slot: 3,
            generation: 12,
        };
        assert_eq!(ProcessId::of_file(&process.file()), Some(process));
        assert_eq!(ProcessId::of_file("runner.jsonl"), None);
    }
}
