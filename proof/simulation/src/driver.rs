//! The engine's thread: it sends requests and receives wake-ups.

use std::mem;
use std::time::Duration;

use dblock_core::machine::dispatch::time_limit;
use dblock_core::machine::env::{Env, Time};
use dblock_core::machine::key::Transmit;
use dblock_core::machine::out::Note;
use dblock_core::store::{Kind, WakeUp};

use crate::plan::{MS, US};
use crate::process::{Cell, Chance, Machine};
use crate::show;
use crate::sometimes::Sometimes;
use crate::world::{Phase, What, World, tell};

impl World {
    pub(crate) fn wake_driver(&mut self, at: usize) {
        let late = self.plan.late_driver && self.phase == Phase::Busy;
        let delay = match (late, self.plan.healthy) {
            (false, _) => 0,
            (true, true) => self.tape.pick(&[0, 50 * US, 2 * MS]),
            (true, false) => self.tape.pick(&[0, 50 * US, 2 * MS, 20 * MS]),
        };
        self.drive_by(at, self.now + delay);
    }

    fn drive_by(&mut self, at: usize, when: u64) {
        let process = &mut self.processes[at];
        if process.drive_at.is_none_or(|before| when < before) {
            process.drive_at = Some(when);
            let incarnation = process.incarnation;
            self.at(
                when,
                What::Drive {
                    process: at,
                    incarnation,
                },
            );
        }
    }

    /// The engine's thread has just done something, and continues.
    pub(crate) fn drive_now(&mut self, at: usize) {
        let process = &mut self.processes[at];
        process.drive_at = Some(self.now);
        let incarnation = process.incarnation;
        self.drive(at, incarnation);
    }

    /// Sends a batch on every free lane that has something to send.
    pub(crate) fn drive(&mut self, at: usize, incarnation: u32) {
        let process = &mut self.processes[at];
        if !process.alive || process.incarnation != incarnation || process.drive_at.take().is_none() {
            return;
        }
        loop {
            let process = &mut self.processes[at];
            let now = process.clock.at(self.now);
            let Some(lane) = process.dispatch.next_lane(now, false) else {
                break;
            };
            let (keys, kinds) = process.dispatch.take(lane, now);
            self.send_batch(at, lane, &keys, kinds);
        }
        let process = &self.processes[at];
        if let Some(until) = process.dispatch.coalesces_until() {
            let when = process.clock.when(until, self.now);
            self.drive_by(at, when + US);
        }
    }

    fn send_batch(&mut self, at: usize, lane: usize, keys: &[(usize, u32)], kinds: &'static [Kind]) {
        let mut requests = Vec::with_capacity(keys.len());
        let mut limit = time_limit(None);
        for (key, generation) in keys {
            if self.processes[at].cells[*key].generation != *generation {
                continue;
            }
            let transmit = self.step(at, *key, |machine, env| machine.poll_transmit(env, kinds));
            if let Some(Transmit {
                request,
                time_limit: of_request,
            }) = transmit
            {
                limit = limit.min(time_limit(of_request));
                self.check_request(at, *key, &request);
                requests.push((*key, request));
            }
        }
        if requests.is_empty() {
            self.processes[at].dispatch.answered(lane);
        } else {
            self.send(at, lane, requests, limit);
        }
    }

    // ── Wake-ups ─────────────────────────────────────────────────────────────────────────────────────

    pub(crate) fn listen(&mut self, at: usize) {
        let process = &mut self.processes[at];
        if !process.can_listen || process.subscribed || process.listening || process.cut {
            return;
        }
        process.subscribed = true;
        let incarnation = process.incarnation;
        let delay = self.delay();
        self.after(
            delay,
            What::Listening {
                process: at,
                incarnation,
            },
        );
    }

    pub(crate) fn listening(&mut self, at: usize, incarnation: u32) {
        let process = &mut self.processes[at];
        if !process.alive || process.incarnation != incarnation || !process.subscribed {
            return;
        }
        process.listening = true;
        tell!(self, "P{at} receives wake-ups");
        self.each(at, Machine::handle_freed);
    }

    /// Its listener broke.
    pub(crate) fn lose_wake_ups(&mut self, at: usize, incarnation: u32) {
        let process = &mut self.processes[at];
        if !process.alive || process.incarnation != incarnation || process.subscribed {
            return;
        }
        if mem::take(&mut process.listening) {
            tell!(self, "P{at} receives no more wake-ups");
            self.each(at, Machine::handle_wake_ups_lost);
        }
    }

    pub(crate) fn each(&mut self, at: usize, does: fn(&mut Machine, &mut Env<'_>)) {
        for key in 0..self.keys.len() {
            self.step(at, key, does);
        }
    }

    pub(crate) fn deliver_wake_up(&mut self, at: usize, wake_up: usize) {
        let process = &self.processes[at];
        if !process.alive || !process.listening {
            return;
        }
        let wake_up = self.checks.wake_ups[wake_up].clone();
        let row = &self.store.rows[wake_up.key].committed;
        if let WakeUp::PassedOn { lease_id, .. } = wake_up.says
            && lease_id != row.lease_id
        {
            self.came.note(Sometimes::LateWakeUp);
        }
        tell!(self, "P{at} receives {}", show::wake_up(&wake_up));
        self.step(at, wake_up.key, |machine, env| match wake_up.says {
            WakeUp::PassedOn {
                lease_id,
                fence_token,
                ..
            } => machine.handle_passed_on(env, lease_id, fence_token),
            WakeUp::MayEnter { inside, next, .. } => machine.handle_may_enter(env, inside, next),
            _ => machine.handle_freed(env),
        });
    }

    pub(crate) fn in_local(&self, at: usize, length: Duration) -> Time {
        self.local(at) + length
    }

    /// Calls a machine, and carries out what it wants done then.
    pub(crate) fn step<R>(
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
        let notes = machine.poll_notes();
        let replies = machine.poll_replies();
        let (ready, look_at) = (machine.poll_ready(), machine.poll_timeout());
        let must_look_by = machine.must_look_by();
        let (wants_wake_ups, idle) = (machine.wants_wake_ups(), machine.is_idle());
        if must_look_by.is_some_and(|by| look_at.is_none_or(|at| at > by)) {
            self.fail("a caller's time or a renewal passes before anybody looks".to_owned());
        }
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
                self.came.note(Sometimes::LostInside);
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
            // What a transaction keeps has no end.
            if let Some(look_at) = look_at.filter(|at| *at < Time::MAX)
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

    /// One who shares a key enters or leaves, if nothing else follows from it. Half of the time the machine is asked whether
    /// something does.
    pub(crate) fn step_quietly<R>(
        &mut self,
        at: usize,
        key: usize,
        does: impl FnOnce(&mut Machine, Time) -> Option<R>,
    ) -> Option<R> {
        let looked_at = self.processes[at].cells[key].machine.poll_timeout();
        let done = self.step(at, key, |machine, env| does(machine, env.now))?;
        self.came.note(Sometimes::Quiet);
        if self.tape.chance(500) {
            return Some(done);
        }
        let follows = self.step(at, key, |machine, env| {
            machine.handle_timeout(env);
            let sooner = |at: &Time| looked_at.is_none_or(|before| *at < before);
            let looks = machine.poll_timeout().filter(sooner);
            let looks = looks.map(|at| format!("a look at {at:?} instead of {looked_at:?}"));
            let sends = machine.poll_ready().map(|kind| format!("a request: {kind:?}"));
            let notes = machine.poll_notes().pop().map(|note| format!("{note:?}"));
            let replies = machine.poll_replies().pop().map(|reply| format!("{reply:?}"));
            looks.or(sends).or(notes).or(replies)
        });
        if let Some(follows) = follows {
            self.fail(format!("a quiet step has a consequence: {follows}"));
        }
        Some(done)
    }

    pub(crate) fn look(&mut self, at: usize, key: usize, look_at: Time) {
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
