//! The world of one schedule: its time, its planned events, and the loop that runs them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use dblock_core::Key;
use dblock_core::machine::env::Time;

use crate::batch::{Ask, Batch};
use crate::caller::{Caller, Open};
use crate::ledger::Checks;
use crate::plan::{MS, Plan, S};
use crate::process::Process;
use crate::sometimes::Came;
use crate::store::Database;
use crate::tape::Tape;
use crate::tickets::Ticket;

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A task of a process acquires a lock.
    Call {
        process: usize,
        task: u8,
    },
    /// A caller's body does its next step.
    Body(usize),
    /// A nested call that was not confirmed ends.
    DropNested(usize),
    /// A caller's future is dropped.
    GiveUp(usize),
    /// A look at a key is due.
    Look {
        process: usize,
        key: usize,
        at: Time,
    },
    /// The engine's thread sends what is ready.
    Drive {
        process: usize,
        incarnation: u32,
    },
    /// A batch reaches the store.
    Arrive(usize),
    /// Its statement is committed, or rolled back.
    Commit(usize),
    /// Its answers arrive.
    Deliver(usize),
    /// Its connection broke, or its time limit has passed.
    Break(usize),
    /// A wake-up arrives.
    WakeUp {
        process: usize,
        wake_up: usize,
    },
    Listening {
        process: usize,
        incarnation: u32,
    },
    WakeUpsLost {
        process: usize,
        incarnation: u32,
    },
    /// A fence check in a caller's transaction reaches the store.
    Verify(usize),
    /// A commit that a lease allows reaches the store.
    CommitArrives(usize),
    CommitEnds(usize, u32),
    CommitAnswered(usize, bool),
    /// A transaction with a fence check ends.
    EndTransaction {
        key: usize,
        number: u32,
    },
    /// The answer to a commit with which this caller's lock ended.
    Committed(usize),
    /// A request for a record reaches the store.
    AskArrives(usize),
    /// Its answer arrives, or its time is over.
    AskAnswered(usize),
    /// A caller that takes the key has no connection in time, and then one.
    NoConnection(usize),
    /// The time of such a caller is over.
    TakerLate(usize),
    /// The statement that takes the key reads the row, and then locks it.
    TakeSees(usize),
    TakeLocks(usize),
    TakeAnswered(usize),
    /// Nobody waits any longer for that answer.
    TryOver(usize),
    /// The end of such a transaction reaches the server.
    TakeEnds(usize),
    /// The server notices that its connection is broken.
    TakeBreaks(usize),
    /// The answer to its end, or the news that there will be none.
    TakeEnded(usize),
    /// A child of this caller's body leaves.
    ChildLeaves(usize),
    /// Somebody adopts this ticket.
    Adopt(usize),
    /// A fault, or an operator's call.
    Fault,
    Resume(usize),
    Heal(usize),
    Stop {
        process: usize,
        incarnation: u32,
    },
    Die {
        process: usize,
        incarnation: u32,
    },
    Restart(usize),
    /// At the end: a last caller for each key.
    Probe(usize),
}

#[derive(Debug)]
struct Entry {
    at: u64,
    number: u32,
    what: What,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The earliest entry is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// First calls and faults, then neither, then the last callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Busy,
    Calm,
    Over,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) tape: Tape,
    pub(crate) plan: Plan,
    /// The true time in nanoseconds, which no process can read.
    pub(crate) now: u64,
    pub(crate) phase: Phase,
    pub(crate) keys: Vec<Key>,
    pub(crate) processes: Vec<Process>,
    pub(crate) store: Database,
    pub(crate) callers: Vec<Caller>,
    /// Callers that have not finished.
    pub(crate) live: Vec<usize>,
    pub(crate) batches: Vec<Batch>,
    pub(crate) asks: Vec<Ask>,
    /// The transactions of callers that take the key.
    pub(crate) opens: Vec<Open>,
    /// Those that the server has open.
    pub(crate) opened: Vec<usize>,
    pub(crate) tickets: Vec<Ticket>,
    /// The callers that adopt a ticket, each with its ticket.
    pub(crate) adopters: Vec<(usize, usize)>,
    /// So many of them were sent before the server crashed last.
    pub(crate) crashed: usize,
    pub(crate) last_id: u64,
    /// No caller comes after so many.
    pub(crate) most_callers: usize,
    /// So many faults from outside are still to come.
    pub(crate) most_faults: u32,
    pub(crate) checks: Checks,
    pub(crate) came: Came,
    /// The events in words, if they are recorded.
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) events: u32,
    heap: BinaryHeap<Entry>,
    /// Events that wait for processes that are paused.
    deferred: Vec<(usize, What)>,
    last_number: u32,
    /// How many events there have been since time last advanced.
    in_a_row: u32,
}

/// Writes a line of the trace, if there is one.
macro_rules! tell {
    ($world:expr, $($arg:tt)*) => {
        if $world.trace.is_some() {
            let line = format!($($arg)*);
            $world.tell(&line);
        }
    };
}
pub(crate) use tell;

impl World {
    pub(crate) fn new(plan: Plan, tape: Tape, traced: bool) -> Self {
        let keys: Vec<Key> = (0..plan.keys)
            .filter_map(|key| Key::new(None, ["a", "b"][key]).ok())
            .collect();
        let mut world = Self {
            now: S,
            phase: Phase::Busy,
            processes: Vec::with_capacity(plan.processes),
            store: Database::new(&keys),
            callers: Vec::with_capacity(64),
            live: Vec::with_capacity(16),
            batches: Vec::with_capacity(128),
            asks: Vec::new(),
            opens: Vec::new(),
            opened: Vec::new(),
            tickets: Vec::new(),
            adopters: Vec::new(),
            crashed: 0,
            last_id: 0,
            most_callers: usize::MAX,
            most_faults: u32::MAX,
            checks: Checks::new(keys.len()),
            came: Came::default(),
            trace: traced.then(Vec::new),
            events: 0,
            heap: BinaryHeap::with_capacity(64),
            deferred: Vec::new(),
            last_number: 0,
            in_a_row: 0,
            tape,
            keys,
            plan,
        };
        tell!(world, "{:?}", world.plan);
        for process in 0..world.plan.processes {
            let made = Process::draw(&world.plan, &world.keys, process, &mut world.tape);
            tell!(world, "{}", made.describe(process));
            world.processes.push(made);
            for task in 0..world.plan.tasks {
                let delay = u64::from(world.tape.below_or_few(50, &[0, 1, 2, 20])) * MS;
                world.after(delay, What::Call { process, task });
            }
        }
        world.plan_fault();
        world
    }

    pub(crate) fn after(&mut self, delay: u64, what: What) {
        self.at(self.now + delay, what);
    }

    pub(crate) fn at(&mut self, at: u64, what: What) {
        self.last_number += 1;
        self.heap.push(Entry {
            at,
            number: self.last_number,
            what,
        });
    }

    /// Runs events until a check fails or none is left.
    pub(crate) fn run(&mut self) {
        while self.advance() {}
    }

    /// Lets the next thing happen. Returns `false` at the end.
    pub(crate) fn advance(&mut self) -> bool {
        let Some(Entry { at, what, .. }) = self.heap.pop() else {
            if self.phase == Phase::Over {
                self.check_nothing_is_left();
                return false;
            }
            self.next_phase();
            return true;
        };
        self.in_a_row = if at > self.now { 0 } else { self.in_a_row + 1 };
        self.now = self.now.max(at);
        if let Some(process) = self.stands_still(what) {
            self.deferred.push((process, what));
            return true;
        }
        self.events += 1;
        self.happen(what);
        self.check();
        if self.checks.violation.is_some() {
            return false;
        }
        let over = self.phase == Phase::Busy && self.events >= self.plan.events;
        if over || self.phase == Phase::Calm && self.probes_are_done() {
            self.next_phase();
        }
        // Two rows that stay locked for twenty seconds are asked for some 24,000 times.
        if self.in_a_row > 1000 || self.events > self.plan.events + 100_000 {
            self.fail("it never ends".to_owned());
            return false;
        }
        true
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Call { process, task } => self.call(process, task),
            What::Body(caller) => self.body(caller),
            What::DropNested(caller) => self.drop_nested(caller),
            What::GiveUp(caller) => self.give_up(caller),
            What::Look { process, key, at } => self.look(process, key, at),
            What::Drive { process, incarnation } => self.drive(process, incarnation),
            What::Arrive(batch) => self.arrive(batch),
            What::Commit(batch) => self.commit(batch),
            What::Deliver(batch) => self.deliver(batch),
            What::Break(batch) => self.break_off(batch),
            What::WakeUp { process, wake_up } => self.deliver_wake_up(process, wake_up),
            What::Listening { process, incarnation } => self.listening(process, incarnation),
            What::WakeUpsLost { process, incarnation } => self.lose_wake_ups(process, incarnation),
            What::Verify(caller) => self.verify(caller),
            What::CommitArrives(caller) => self.commit_arrives(caller),
            What::CommitEnds(caller, transaction) => self.commit_ends(caller, transaction),
            What::CommitAnswered(caller, committed) => self.commit_answered(caller, committed),
            What::EndTransaction { key, number } => self.end_transaction(key, number),
            What::Committed(caller) => self.committed(caller),
            What::AskArrives(ask) => self.ask_arrives(ask),
            What::AskAnswered(ask) => self.ask_answered(ask),
            What::NoConnection(caller) => self.no_connection(caller),
            What::TakerLate(caller) => self.taker_late(caller),
            What::TakeSees(open) => self.take_sees(open),
            What::TakeLocks(open) => self.take_locks(open),
            What::TakeAnswered(open) => self.take_answered(open),
            What::TryOver(open) => self.try_over(open),
            What::TakeEnds(open) => self.take_ends(open),
            What::TakeBreaks(open) => self.take_breaks(open),
            What::TakeEnded(open) => self.take_ended(open),
            What::ChildLeaves(caller) => self.child_leaves(caller),
            What::Adopt(ticket) => self.adopt(ticket),
            What::Fault => self.fault(),
            What::Resume(process) => self.resume(process),
            What::Heal(process) => self.heal(process),
            What::Stop { process, incarnation } => self.stop(process, incarnation),
            What::Die { process, incarnation } => self.die(process, incarnation),
            What::Restart(process) => self.restart(process),
            What::Probe(key) => self.probe(key),
        }
    }

    /// The process of this event, if it is paused.
    fn stands_still(&self, what: What) -> Option<usize> {
        let process = match what {
            What::Call { process, .. }
            | What::Look { process, .. }
            | What::Drive { process, .. }
            | What::WakeUp { process, .. }
            | What::Listening { process, .. }
            | What::WakeUpsLost { process, .. }
            | What::Stop { process, .. } => process,
            What::Body(caller)
            | What::DropNested(caller)
            | What::GiveUp(caller)
            | What::NoConnection(caller)
            | What::TakerLate(caller)
            | What::CommitAnswered(caller, _)
            | What::ChildLeaves(caller) => self.callers[caller].process,
            What::AskAnswered(ask) => self.asks[ask].process,
            What::TakeAnswered(open) | What::TryOver(open) | What::TakeEnded(open) => {
                self.opens[open].process
            }
            What::Deliver(batch) | What::Break(batch) => self.batches[batch].process,
            _ => return None,
        };
        (self.processes[process].paused_until > self.now).then_some(process)
    }

    /// Runs the events of a process that waited while it was paused.
    pub(crate) fn make_up(&mut self, process: usize) {
        for (whose, what) in std::mem::take(&mut self.deferred) {
            if whose == process {
                self.at(self.now, what);
            } else {
                self.deferred.push((whose, what));
            }
        }
    }

    /// The time on a process's clock.
    pub(crate) fn local(&self, process: usize) -> Time {
        self.processes[process].clock.at(self.now)
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let at = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.6} {line}", ms(at)));
        }
    }

    pub(crate) fn fail(&mut self, violation: String) {
        tell!(self, "VIOLATION: {violation}");
        self.checks.violation.get_or_insert(violation);
    }
}

/// For people.
#[allow(clippy::cast_precision_loss, reason = "it is only shown")]
fn ms(nanos: u64) -> f64 {
    nanos as f64 / 1e9 - 1.0
}
