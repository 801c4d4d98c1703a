//! A process: the engine's shell around its machines, without threads.

use dblock_core::Key;
use dblock_core::machine::dispatch::{Dispatch, MAX_BATCH};
use dblock_core::machine::env::{Random, Time};
use dblock_core::machine::key;
use dblock_core::machine::out;
use uuid::Uuid;

use crate::caller::Asked;
use crate::plan::{Plan, S};
use crate::show;
use crate::tape::Tape;

/// A monotonic clock: when it started, and how many millionths it is fast.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    offset: u64,
    fast: i64,
}

impl Clock {
    pub(crate) fn at(self, now: u64) -> Time {
        let drift = i64::try_from(now).unwrap_or(i64::MAX) / 1000 * self.fast / 1000;
        Time::from_nanos((now + self.offset).saturating_add_signed(drift))
    }

    /// The simulation's time when this clock shows `time`, or a moment later.
    pub(crate) fn when(self, time: Time, now: u64) -> u64 {
        let ahead = u128::from(time.as_nanos().saturating_sub(self.at(now).as_nanos()));
        let length = ahead * 1_000_000 / u128::from(1_000_000_u64.saturating_add_signed(self.fast));
        let a_moment = 2000 * u64::from(self.fast != 0);
        now.saturating_add(u64::try_from(length).unwrap_or(u64::MAX).saturating_add(a_moment))
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(crate) struct Process {
    pub(crate) incarnation: u32,
    pub(crate) alive: bool,
    /// It refuses callers.
    pub(crate) stopping: bool,
    /// It has ended what was held.
    pub(crate) stopped: bool,
    pub(crate) paused_until: u64,
    /// When it last resumed after a pause.
    pub(crate) resumed_at: u64,
    /// The store cannot be reached.
    pub(crate) cut: bool,
    pub(crate) clock: Clock,
    pub(crate) hand_over: bool,
    pub(crate) can_listen: bool,
    /// The store sends wake-ups to it.
    pub(crate) subscribed: bool,
    /// It knows that it is subscribed.
    pub(crate) listening: bool,
    pub(crate) dispatch: Dispatch<(usize, u32)>,
    pub(crate) drive_at: Option<u64>,
    pub(crate) cells: Vec<Cell>,
}

/// A caller is the number of a caller, and a confirmation also what was asked for.
pub(crate) type Machine = key::Machine<usize, (usize, Asked)>;
pub(crate) type Waiter = out::Waiter<usize>;
pub(crate) type Reply = out::Reply<usize, (usize, Asked)>;

/// The shell's state of one key.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) machine: Machine,
    /// Grows when the key is forgotten.
    pub(crate) generation: u32,
    pub(crate) look_at: Option<Time>,
    pub(crate) most_together: usize,
    pub(crate) on_its_way: bool,
    /// When a caller last entered.
    pub(crate) entered_at: Option<u64>,
}

impl Cell {
    pub(crate) fn new(key: &Key, generation: u32) -> Self {
        Self {
            machine: Machine::new(key.clone()),
            generation,
            look_at: None,
            most_together: MAX_BATCH,
            on_its_way: false,
            entered_at: None,
        }
    }
}

pub(crate) struct Chance<'a> {
    pub(crate) tape: &'a mut Tape,
    pub(crate) last_id: &'a mut u64,
    pub(crate) process: usize,
    pub(crate) incarnation: u32,
}

impl Random for Chance<'_> {
    fn lease_id(&mut self) -> Uuid {
        *self.last_id += 1;
        show::lease_id(self.process, self.incarnation, *self.last_id)
    }

    fn fraction(&mut self) -> f64 {
        f64::from(self.tape.below_or_few(16, &[0])) / 16.0
    }
}

impl Process {
    pub(crate) fn draw(plan: &Plan, keys: &[Key], number: usize, tape: &mut Tape) -> Self {
        Self {
            incarnation: 0,
            alive: true,
            stopping: false,
            stopped: false,
            paused_until: 0,
            resumed_at: 0,
            cut: false,
            clock: Clock {
                offset: number as u64 * 100 * S,
                fast: tape.pick(&[0, 900, -900]),
            },
            hand_over: !tape.last_of(4),
            can_listen: plan.wake_ups && !tape.last_of(5),
            subscribed: false,
            listening: false,
            dispatch: Dispatch::new(1, plan.concurrency),
            drive_at: None,
            cells: keys.iter().map(|key| Cell::new(key, 0)).collect(),
        }
    }

    /// A new process in the same place.
    pub(crate) fn start_again(&mut self, plan: &Plan, keys: &[Key]) {
        self.incarnation += 1;
        self.alive = true;
        self.stopping = false;
        self.stopped = false;
        self.dispatch = Dispatch::new(1, plan.concurrency);
        self.drive_at = None;
        for (cell, key) in self.cells.iter_mut().zip(keys) {
            *cell = Cell::new(key, cell.generation + 1);
        }
    }

    pub(crate) fn describe(&self, number: usize) -> String {
        format!(
            "P{number}: clock {} millionths fast, hand_over {}, can listen {}",
            self.clock.fast, self.hand_over, self.can_listen
        )
    }

    pub(crate) fn is_running(&self, now: u64) -> bool {
        self.alive && self.paused_until <= now
    }
}
