//! The identities of the processes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A process: the seat that it has, and how many had the seat before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) seat: usize,
    pub(crate) life: usize,
}

impl Life {
    /// The name of its history.
    pub(crate) fn file(self) -> String {
        format!("worker-{self}.jsonl")
    }

    /// From the name of its history.
    pub(crate) fn of_file(name: &str) -> Option<Self> {
        let (seat, life) = name
            .strip_prefix("worker-")?
            .strip_suffix(".jsonl")?
            .split_once('-')?;
        Some(Self {
            seat: seat.parse().ok()?,
            life: life.parse().ok()?,
        })
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.seat, self.life)
    }
}

#[cfg(test)]
mod tests {
    use super::Life;

    #[test]
    fn a_file_names_its_process() {
        let life = Life { seat: 3, life: 12 };
        assert_eq!(Life::of_file(&life.file()), Some(life));
        assert_eq!(Life::of_file("runner.jsonl"), None);
    }
}
