//! A caller, and what it does with the lock: a run, a transaction, a take.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::machine::call::Call;
use dblock_core::machine::env::Time;
use dblock_core::machine::out::Turn;
use dblock_core::machine::ownership::Ownership;
use dblock_core::runs::Policy;
use dblock_core::store::rules::{Sees, Took};
use dblock_core::store::{Record, RecordEntry, RecordVersion};
use uuid::Uuid;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Waiting,
    /// It tries to take the key in its transaction, or waits for a connection.
    Taking,
    /// The body runs, or was told that the lock is lost and has not ended yet.
    Inside,
    /// The body has ended, and the release is not confirmed yet.
    Leaving,
    Gone,
}

/// The answers that a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    Acquire,
    Enter,
    Pin,
    Extend,
    Leave,
}

impl Asked {
    pub(crate) const ALL: [Self; 5] = [Self::Acquire, Self::Enter, Self::Pin, Self::Extend, Self::Leave];
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Caller {
    pub(crate) process: usize,
    pub(crate) key: usize,
    /// `None` for the last callers of a schedule.
    pub(crate) task: Option<u8>,
    pub(crate) state: State,
    /// Its number in the machine.
    pub(crate) number: u64,
    pub(crate) came_at: u64,
    /// It shares the lock with this limit.
    pub(crate) limit: Option<u32>,
    /// On the clock of its process.
    pub(crate) entered: Time,
    /// When the answer to each of its requests is due.
    pub(crate) due: [Option<Time>; Asked::ALL.len()],
    pub(crate) ownership: Option<Arc<Ownership>>,
    pub(crate) holds: u32,
    /// A check has found the ownership ended. It must not be alive afterwards.
    pub(crate) ended: bool,
    /// It goes on when it is told that the lock is lost.
    pub(crate) signal: bool,
    pub(crate) pinned: bool,
    /// How many steps its body has done.
    pub(crate) steps: u8,
    /// A re-entry waits to be confirmed.
    pub(crate) entering: bool,
    /// Its lease had not ended when its body left.
    pub(crate) stood: bool,
    pub(crate) run: Option<Run>,
    pub(crate) taker: Option<Taker>,
    /// The ticket that its lock goes into.
    pub(crate) ticket: Option<usize>,
}

pub(crate) type Next = (Option<RecordVersion>, u32);

/// A caller's run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) policy: Policy,
    pub(crate) remember: Duration,
    pub(crate) first: Option<Next>,
    pub(crate) former: Option<Record>,
    pub(crate) step: Step,
    /// What it has begun, or tries to.
    pub(crate) begun: Option<RecordEntry>,
    /// A write of that has an unknown outcome.
    pub(crate) sent: bool,
    pub(crate) looks: u8,
    /// The request that it waits for.
    pub(crate) asked: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
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
pub(crate) struct Transaction {
    pub(crate) key: usize,
    pub(crate) number: u32,
    pub(crate) ownership: Arc<Ownership>,
    /// The caller whose lock ends with it.
    pub(crate) releases: Option<usize>,
}

/// How a caller takes the key.
#[derive(Debug)]
pub(crate) struct Taker {
    /// The call begins its transaction, and ends it. Else its caller does.
    pub(crate) own: bool,
    pub(crate) sees: Sees,
    /// What its transaction saw first, if that began before.
    pub(crate) seen: Option<Seen>,
    pub(crate) call: Arc<Call>,
    /// The key's machine that knows its number.
    pub(crate) generation: u32,
    pub(crate) turn: Option<Turn>,
    /// When that is over, on the clock of its process.
    pub(crate) turn_until: Time,
    /// Its transaction.
    pub(crate) open: Option<usize>,
}

/// What a transaction sees of a key.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) row: LockRow,
    /// How many bodies have done their work.
    pub(crate) works: u32,
}

/// A transaction that takes a key, or tries to.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Open {
    pub(crate) key: usize,
    pub(crate) process: usize,
    pub(crate) incarnation: u32,
    /// The caller that is in it now.
    pub(crate) caller: usize,
    pub(crate) own: bool,
    pub(crate) lease_id: Uuid,
    /// By which the row's lock knows it.
    pub(crate) number: u32,
    pub(crate) seen: Option<Seen>,
    pub(crate) took: Option<Took>,
    pub(crate) answered: bool,
    pub(crate) commits: bool,
    /// The answer to its end is lost.
    pub(crate) lost: bool,
    pub(crate) over: bool,
    /// Its lock was ended before its last hold.
    pub(crate) parted: bool,
}
