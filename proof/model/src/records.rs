//! Runs that are remembered: processes that take a lock, begin a run under it, do its work, and write the
//! outcome.
//!
//! The lock is as simple as can be: a lease that one process has until it expires.
//! [`Protocol`](crate::protocol::Protocol) is about how it is kept. The record is changed by dblock's own
//! rules. A process may stop between any two steps for as long as it likes, and does not learn by itself that
//! its lease is over: so its requests are late, too. It may die between any two steps, and what it had sent
//! is carried out later or never. Bodies fail before their work.
//!
//! The read of the record, the acquire and the write that begins the run are three steps here. A store that
//! carries out the last two at once has fewer states.

mod bounds;
mod record;
mod steps;

use stateright::{Model, Property};

pub use bounds::{Guard, Kind};
use record::{Record, State as Stands};

/// The lease of the lock lasts for so many ticks.
const TTL: u8 = 2;
/// Time ends here.
const LAST_TICK: u8 = 4;
/// How many processes there are, and how often each calls.
const PROCESSES: usize = 2;
const CALLS: u8 = 2;
/// How often a process dies.
const CRASHES: u8 = 2;

/// No write of anybody changes it.
pub const FINAL: &str = "what has succeeded stays as it is";
/// Nobody hears of a success that is not remembered.
pub const TOLD: &str = "who was told of a success finds it in the record";
/// For [`Kind::CompleteIn`].
pub const EXACTLY: &str = "the work is done exactly once when the run has succeeded, and else not at all";
/// For [`Kind::Stop`].
pub const ONCE: &str = "the work is done at most once";
/// For [`Kind::Retry`].
pub const EACH: &str = "the work is done at most once for each attempt";
/// An attempt has one number, and one body.
pub const BEGUN: &str = "no two bodies begin as the same attempt";
/// It would be run again, or be called in doubt, while it runs.
pub const CRASHED: &str = "nobody who has the lock is taken for crashed";

/// The model.
#[derive(Debug, Clone, Copy)]
pub struct Records {
    /// The kind of work.
    pub kind: Kind,
    /// The rule that is taken away.
    pub without: Option<Guard>,
}

/// A state of everything.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: u8,
    /// The token of the lease, and when it ends.
    lease: Option<(u8, u8)>,
    last_token: u8,
    record: Option<Record>,
    /// Transactions that complete a run, and have not ended.
    transactions: Vec<Attempt>,
    /// How often the work was done.
    done: u8,
    processes: [Site; PROCESSES],
    /// Writes of processes that have died.
    late: Vec<Write>,
    crashes: u8,
    /// The attempts as which bodies have begun, and the success that is remembered first.
    begun: Vec<u8>,
    succeeded: Option<Attempt>,
    /// The properties that events have violated.
    violated: Vec<&'static str>,
}

/// An attempt of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    token: u8,
    number: u8,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Site {
    phase: Phase,
    calls: u8,
}

/// The point that a process has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    /// It has taken the lock, until this time.
    Holds {
        token: u8,
        until: u8,
    },
    /// It has sent a write.
    Writing(Write),
    /// Its body runs, and has done nothing yet.
    Inside(Attempt),
    /// The work and the record are written in a transaction that is open.
    Completing(Attempt),
}

/// A write of the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Write {
    /// In the place of what was read.
    Begin {
        found: Option<Record>,
        attempt: Attempt,
    },
    Finish {
        attempt: Attempt,
        stands: Stands,
    },
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A process takes the lock.
    Acquire(usize),
    /// It reads the record, and decides.
    Read(usize),
    /// The store carries out what a process has sent.
    Execute(usize),
    /// Or what one had sent that is dead.
    ExecuteLate(usize),
    /// The write of a dead process never arrives.
    Lose(usize),
    /// The body does its work.
    Work(usize),
    /// The body fails before it has done anything.
    Fail(usize),
    /// A transaction is committed. Its process may be dead.
    Commit(usize),
    /// Or it ends without a commit.
    RollBack(usize),
    /// A process dies.
    Crash(usize),
    /// Old records are deleted.
    Purge,
}

impl Records {
    fn has(self, guard: Guard) -> bool {
        self.without != Some(guard)
    }
}

impl State {
    fn violates(&mut self, property: &'static str) {
        if !self.violated.contains(&property) {
            self.violated.push(property);
        }
    }

    fn keeps(&self, property: &str) -> bool {
        !self.violated.contains(&property)
    }

    fn has_succeeded(&self) -> bool {
        self.record
            .is_some_and(|record| record.stands == Stands::Succeeded)
    }

    /// Whether the lease with that token lives.
    fn lives(&self, token: u8) -> bool {
        self.lease
            .is_some_and(|(held, until)| held == token && self.now < until)
    }
}

impl Model for Records {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let site = Site {
            phase: Phase::Idle,
            calls: 0,
        };
        vec![State {
            now: 0,
            lease: None,
            last_token: 0,
            record: None,
            transactions: Vec::new(),
            done: 0,
            processes: std::array::from_fn(|_| site.clone()),
            late: Vec::new(),
            crashes: 0,
            begun: Vec::new(),
            succeeded: None,
            violated: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        steps.extend([Step::Tick, Step::Purge]);
        for process in 0..PROCESSES {
            steps.extend([
                Step::Acquire(process),
                Step::Read(process),
                Step::Execute(process),
                Step::Work(process),
                Step::Fail(process),
                Step::Crash(process),
            ]);
        }
        for transaction in 0..state.transactions.len() {
            steps.extend([Step::Commit(transaction), Step::RollBack(transaction)]);
        }
        for late in 0..state.late.len() {
            steps.extend([Step::ExecuteLate(late), Step::Lose(late)]);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step)?;
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(FINAL, |_, state: &State| state.keeps(FINAL)),
            Property::always(TOLD, |_, state: &State| state.keeps(TOLD)),
            Property::always(BEGUN, |_, state: &State| state.keeps(BEGUN)),
            Property::always(CRASHED, |_, state: &State| state.keeps(CRASHED)),
            Property::sometimes("it succeeds after a crash", |model: &Self, state: &State| {
                let first = model.kind == Kind::Stop || state.begun.len() > 1;
                state.has_succeeded() && state.crashes > 0 && first
            }),
            Property::sometimes("it succeeds after a failure", |_, state: &State| {
                state.has_succeeded() && state.crashes == 0 && state.begun.len() > 1
            }),
        ];
        properties.push(match self.kind {
            Kind::CompleteIn => Property::always(EXACTLY, |_, state: &State| {
                state.done == u8::from(state.has_succeeded())
            }),
            Kind::Stop => Property::always(ONCE, |_, state: &State| state.done <= 1),
            Kind::Retry => Property::always(EACH, |_, state: &State| {
                state.done <= state.record.map_or(0, |record| record.attempt.number)
            }),
        });
        if self.kind != Kind::CompleteIn {
            properties.push(Property::sometimes(
                "an outcome is recorded after its lease",
                |_, state: &State| {
                    state.succeeded.is_some_and(|attempt| {
                        state.lease.is_some_and(|(token, _)| token > attempt.token) && state.begun.len() == 1
                    })
                },
            ));
        }
        properties
    }
}
