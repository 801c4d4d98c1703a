//! A caller, and what it does with the lock: a run, a transaction.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::env::Time;
use dblock_core::machine::ownership::Ownership;

use crate::runs::Policy;
use crate::store::record::{Record, RecordEntry, RecordVersion};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    /// The body runs, or was told that the lock is lost and has not ended yet.
    Inside,
    /// The body has ended, and the release is not confirmed yet.
    Leaving,
    Gone,
}

/// The answers that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Acquire,
    Enter,
    Pin,
    Extend,
    Leave,
}

impl Asked {
    pub(super) const ALL: [Self; 5] = [Self::Acquire, Self::Enter, Self::Pin, Self::Extend, Self::Leave];
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Caller {
    pub(super) process: usize,
    pub(super) key: usize,
    /// `None` for the last callers of a schedule.
    pub(super) task: Option<u8>,
    pub(super) state: State,
    /// Its number in the machine.
    pub(super) number: u64,
    pub(super) came_at: u64,
    /// On the clock of its process.
    pub(super) entered: Time,
    /// When the answer to each of its requests is due.
    pub(super) due: [Option<Time>; Asked::ALL.len()],
    pub(super) ownership: Option<Arc<Ownership>>,
    pub(super) holds: u32,
    /// A check has found the ownership ended. It must not be alive afterwards.
    pub(super) ended: bool,
    /// It goes on when it is told that the lock is lost.
    pub(super) signal: bool,
    pub(super) pinned: bool,
    /// How many steps its body has done.
    pub(super) steps: u8,
    /// A re-entry waits to be confirmed.
    pub(super) entering: bool,
    /// Its lease had not ended when its body left.
    pub(super) stood: bool,
    pub(super) run: Option<Run>,
}

pub(super) type Next = (Option<RecordVersion>, u32);

/// A caller's run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) policy: Policy,
    pub(super) remember: Duration,
    pub(super) first: Option<Next>,
    pub(super) former: Option<Record>,
    pub(super) step: Step,
    /// What it has begun, or tries to.
    pub(super) begun: Option<RecordEntry>,
    /// A write of that has an unknown outcome.
    pub(super) sent: bool,
    pub(super) looks: u8,
    /// The request that it waits for.
    pub(super) asked: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Waits,
    Begins,
    Inside,
    /// `alone`: the lock ends with the outcome.
    Ends {
        alone: bool,
        wanted: RecordVersion,
    },
}

/// A caller's transaction that has passed a fence check.
#[derive(Debug)]
pub(super) struct Transaction {
    pub(super) key: usize,
    pub(super) number: u32,
    pub(super) ownership: Arc<Ownership>,
    /// The caller whose lock ends with it.
    pub(super) releases: Option<usize>,
}
