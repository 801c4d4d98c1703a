//! A process: the engine's shell around its machines, without threads.

use dblock_core::machine::dispatch::{Dispatch, MAX_BATCH};
use dblock_core::machine::env::{Random, Time};
use dblock_core::machine::key;
use dblock_core::machine::out;
use uuid::Uuid;

use super::caller::Asked;
use super::plan::{Plan, S};
use super::show;
use super::tape::Tape;
use crate::key::Key;

/// A monotonic clock: when it started, and how many millionths it is fast.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    offset: u64,
    fast: i64,
}

impl Clock {
    pub(super) fn at(self, now: u64) -> Time {
        let drift = i64::try_from(now).unwrap_or(i64::MAX) / 1000 * self.fast / 1000;
        Time::from_nanos((now + self.offset).saturating_add_signed(drift))
    }

    /// The simulation's time when this clock shows `time`, or a moment later.
    pub(super) fn when(self, time: Time, now: u64) -> u64 {
        let ahead = i64::try_from(time.since(self.at(now)).as_nanos()).unwrap_or(i64::MAX / 2000);
        let slower = if self.fast < 0 {
            ahead / 1000 * -self.fast / 999
        } else {
            0
        };
        now.saturating_add_signed(ahead + slower + 2 * i64::from(self.fast != 0) * 1000)
    }
}

#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Process {
    pub(super) incarnation: u32,
    pub(super) alive: bool,
    /// It refuses callers.
    pub(super) stopping: bool,
    pub(super) paused_until: u64,
    /// When it last resumed after a pause.
    pub(super) resumed_at: u64,
    /// The store cannot be reached.
    pub(super) cut: bool,
    pub(super) clock: Clock,
    pub(super) hand_over: bool,
    pub(super) can_listen: bool,
    /// The store sends wake-ups to it.
    pub(super) subscribed: bool,
    /// It knows that it is subscribed.
    pub(super) listening: bool,
    pub(super) dispatch: Dispatch<(usize, u32)>,
    pub(super) drive_at: Option<u64>,
    pub(super) cells: Vec<Cell>,
}

/// A caller is the number of a caller, and a confirmation also what was asked for.
pub(super) type Machine = key::Machine<usize, (usize, Asked)>;
pub(super) type Reply = out::Reply<usize, (usize, Asked)>;

/// The shell's state of one key.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) machine: Machine,
    /// Grows when the key is forgotten.
    pub(super) generation: u32,
    pub(super) look_at: Option<Time>,
    pub(super) most_together: usize,
    pub(super) on_its_way: bool,
}

impl Cell {
    pub(super) fn new(key: &Key, generation: u32) -> Self {
        Self {
            machine: Machine::new(key.clone()),
            generation,
            look_at: None,
            most_together: MAX_BATCH,
            on_its_way: false,
        }
    }
}

pub(super) struct Chance<'a> {
    pub(super) tape: &'a mut Tape,
    pub(super) last_id: &'a mut u64,
    pub(super) process: usize,
    pub(super) incarnation: u32,
}

impl Random for Chance<'_> {
    fn lease_id(&mut self) -> Uuid {
        *self.last_id += 1;
        show::lease_id(self.process, self.incarnation, *self.last_id)
    }

    fn fraction(&mut self) -> f64 {
        f64::from(self.tape.below(16)) / 16.0
    }
}

impl Process {
    pub(super) fn draw(plan: &Plan, keys: &[Key], number: usize, tape: &mut Tape) -> Self {
        Self {
            incarnation: 0,
            alive: true,
            stopping: false,
            paused_until: 0,
            resumed_at: 0,
            cut: false,
            clock: Clock {
                offset: number as u64 * 100 * S,
                fast: tape.pick(&[0, 900, -900]),
            },
            hand_over: tape.below(4) != 3,
            can_listen: plan.wake_ups && tape.below(5) != 4,
            subscribed: false,
            listening: false,
            dispatch: Dispatch::new(1, plan.concurrency),
            drive_at: None,
            cells: keys.iter().map(|key| Cell::new(key, 0)).collect(),
        }
    }

    /// A new process in the same place.
    pub(super) fn start_again(&mut self, plan: &Plan, keys: &[Key]) {
        self.incarnation += 1;
        self.alive = true;
        self.stopping = false;
        self.dispatch = Dispatch::new(1, plan.concurrency);
        self.drive_at = None;
        for (cell, key) in self.cells.iter_mut().zip(keys) {
            *cell = Cell::new(key, cell.generation + 1);
        }
    }

    pub(super) fn describe(&self, number: usize) -> String {
        format!(
            "P{number}: clock {} millionths fast, hand_over {}, can listen {}",
            self.clock.fast, self.hand_over, self.can_listen
        )
    }

    pub(super) fn is_running(&self, now: u64) -> bool {
        self.alive && self.paused_until <= now
    }
}
