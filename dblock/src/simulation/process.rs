//! A process: the engine's shell around its machines, without threads.

use std::iter;

use uuid::Uuid;

use super::callers::Asked;
use super::plan::Plan;
use super::show;
use super::tape::Tape;
use super::world::{S, US, What, World, tell};
use crate::engine::core::dispatch::{Dispatch, MAX_BATCH};
use crate::engine::core::env::{Env, Random, Time};
use crate::engine::core::key;
use crate::engine::core::out::{self, Note};
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
    fn new(key: &Key, generation: u32) -> Self {
        Self {
            machine: Machine::new(key.clone()),
            generation,
            look_at: None,
            most_together: MAX_BATCH,
            on_its_way: false,
        }
    }
}

struct Chance<'a> {
    tape: &'a mut Tape,
    last_id: &'a mut u64,
    process: usize,
    incarnation: u32,
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

impl World {
    /// Calls a machine, and carries out what it wants done then.
    pub(super) fn step<R>(
        &mut self,
        at: usize,
        key: usize,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R,
    ) -> R {
        let process = &mut self.processes[at];
        let mut env = Env {
            now: process.clock.at(self.now),
            wake_ups: self.plan.wake_ups,
            listening: process.listening,
            hand_over: process.hand_over,
            random: &mut Chance {
                tape: &mut self.tape,
                last_id: &mut self.last_id,
                process: at,
                incarnation: process.incarnation,
            },
        };
        let machine = &mut process.cells[key].machine;
        let answer = does(machine, &mut env);
        let notes: Vec<Note> = iter::from_fn(|| machine.poll_note()).collect();
        let replies: Vec<Reply> = iter::from_fn(|| machine.poll_reply()).collect();
        let (ready, look_at) = (machine.poll_ready(), machine.poll_timeout());
        let (wants_wake_ups, idle) = (machine.wants_wake_ups(), machine.is_idle());
        for reply in replies {
            self.reply(at, key, reply);
        }
        for note in &notes {
            if let Note::Lost(ownership, _) | Note::Revoked(ownership, _) = note {
                self.tell_body(at, key, ownership);
            }
        }
        for note in &notes {
            if let Note::Lost(ownership, reason) = note {
                tell!(
                    self,
                    "P{at} {} lost token {}: {reason}",
                    self.keys[key],
                    ownership.fence_token
                );
                self.check_loss(ownership, *reason);
            }
        }
        if wants_wake_ups {
            self.listen(at);
        }
        let process = &mut self.processes[at];
        let cell = &mut process.cells[key];
        if idle {
            *cell = Cell::new(&self.keys[key], cell.generation + 1);
        } else {
            if let Some(kind) = ready {
                process
                    .dispatch
                    .ready((key, cell.generation), 0, kind, cell.most_together);
                self.wake_driver(at);
            }
            let cell = &mut self.processes[at].cells[key];
            if let Some(look_at) = look_at
                && cell.look_at.is_none_or(|before| look_at < before)
            {
                cell.look_at = Some(look_at);
                let when = self.processes[at].clock.when(look_at, self.now);
                self.at(
                    when,
                    What::Look {
                        process: at,
                        key,
                        at: look_at,
                    },
                );
            }
        }
        answer
    }

    pub(super) fn look(&mut self, at: usize, key: usize, look_at: Time) {
        let process = &mut self.processes[at];
        if !process.alive || process.cells[key].look_at != Some(look_at) {
            return;
        }
        let early = process.clock.at(self.now) < look_at;
        if early {
            // A moment more, because clocks differ.
            self.after(
                US,
                What::Look {
                    process: at,
                    key,
                    at: look_at,
                },
            );
            return;
        }
        process.cells[key].look_at = None;
        self.step(at, key, Machine::handle_timeout);
    }
}
