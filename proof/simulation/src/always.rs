//! Checks that run after every event.

use std::time::Duration;

use dblock_core::LockRow;
use uuid::Uuid;

use crate::caller::State;
use crate::plan::{MS, S};
use crate::show;
use crate::store::Lock;
use crate::world::{Phase, World};

/// How late an answer may be, because the engine's thread may run late.
const TICK: u64 = 5 * MS;

impl World {
    pub(crate) fn check(&mut self) {
        let mut wanted = [false; 2];
        let mut occupied = [false; 2];
        let mut violation = None;
        let mut longest = self.checks.longest_wait;
        for number in &self.live {
            let caller = &self.callers[*number];
            let process = &self.processes[caller.process];
            let local = process.clock.at(self.now);
            let running = process.paused_until + TICK <= self.now && process.resumed_at + TICK <= self.now;
            if running
                && caller
                    .due
                    .iter()
                    .flatten()
                    .any(|due| local.as_nanos() > due.as_nanos() + TICK)
            {
                violation = Some(format!("caller {number} hangs past its time"));
            }
            if matches!(caller.state, State::Waiting | State::Taking) {
                longest = longest.max(self.now - caller.came_at);
            }
            match caller.state {
                // A caller without a connection is not in the queue.
                State::Taking => occupied[caller.key] |= self.has_turn(*number),
                State::Waiting => {
                    // One that adopts a ticket waits for an answer, and not for the key.
                    let adopts = self.adopters.iter().any(|(adopter, _)| adopter == number);
                    wanted[caller.key] |= process.is_running(self.now) && !adopts;
                    if self.now > caller.came_at + self.longest_wait() {
                        violation = Some(format!("caller {number} starves"));
                    }
                }
                State::Inside => {
                    occupied[caller.key] = true;
                    let end = caller.ownership.as_ref().and_then(|own| own.deadline());
                    let alive = end.is_some_and(|end| local < end);
                    if alive && caller.ended {
                        violation = Some(format!("the lost lease of caller {number} lives again"));
                    }
                    let longest = caller
                        .ownership
                        .as_ref()
                        .and_then(|own| own.call.options.max_hold);
                    let tick = Duration::from_nanos(TICK);
                    if alive && longest.is_some_and(|longest| local > caller.entered + longest + tick) {
                        violation = Some(format!("caller {number} is inside for longer than max_hold"));
                    }
                }
                State::Leaving | State::Gone => {}
            }
        }
        self.checks.longest_wait = longest;
        for index in 0..self.live.len() {
            let number = self.live[index];
            let inside = self.callers[number].state == State::Inside && !self.is_ending(number);
            if inside && !self.is_inside(number) {
                self.callers[number].ended = true;
            }
        }
        if let Some(violation) = violation {
            return self.fail(violation);
        }
        for key in 0..self.keys.len() {
            occupied[key] |= !self.checks.keys[key].runs.children.is_empty();
            self.check_blocked(key, wanted[key] && !occupied[key]);
            self.check_places(key);
        }
    }

    /// Checks that no caller waits in vain for a key that nobody holds.
    fn check_blocked(&mut self, key: usize, wanted: bool) {
        let Some(limit) = self.answer_timeout() else {
            return;
        };
        let now = self.now;
        let locked = matches!(self.store.rows[key].lock, Lock::Transaction(_));
        let row = self.store.row(key, now);
        let row = row.clone();
        let free = wanted && !locked && !(row.is_held() && self.is_excused(&row));
        let since = &mut self.checks.keys[key].blocked_since;
        if let Some(blocked) = too_long(since, free, now, limit) {
            self.fail(format!(
                "{} is wanted, and nobody has got it for {blocked} ms",
                self.keys[key]
            ));
        }
    }

    /// Checks that no place stays free while others share the lock and somebody waits for one.
    fn check_places(&mut self, key: usize) {
        let Some(limit) = self.answer_timeout() else {
            return;
        };
        let now = self.now;
        let idle = self.has_idle_place(key);
        let since = &mut self.checks.keys[key].idle_since;
        if let Some(idle) = too_long(since, idle, now, limit) {
            self.fail(format!(
                "a place of {} is wanted, and nobody has got it for {idle} ms",
                self.keys[key]
            ));
        }
    }

    /// Whether all who want the key share it, and fewer are inside than the smallest of their limits.
    fn has_idle_place(&mut self, key: usize) -> bool {
        let now = self.now;
        let row = self.store.row(key, now).clone();
        let locked = matches!(self.store.rows[key].lock, Lock::Transaction(_));
        let alone = row.is_held() && !row.is_shared();
        let waits_alone = row.live_successor().is_some_and(|next| next.limit.is_none());
        if locked || alone || waits_alone || !self.checks.keys[key].runs.children.is_empty() {
            return false;
        }
        let live = || self.live.iter().map(|number| &self.callers[*number]);
        // The row of a lost lease is left alone until its body is over, and its process waits for that.
        let has_lost = |process| {
            let mut callers = live();
            callers.any(|caller| caller.process == process && caller.key == key && caller.ended)
        };
        let (mut wanted, mut smallest, mut inside) = (false, u32::MAX, 0);
        for caller in live() {
            let counts = caller.key == key && self.processes[caller.process].is_running(now);
            if !counts || matches!(caller.state, State::Leaving | State::Gone) {
                continue;
            }
            match (caller.state, caller.limit) {
                (State::Inside, Some(_)) => inside += u32::from(!has_lost(caller.process)),
                // The others may come after it.
                (State::Waiting, Some(limit)) => {
                    smallest = smallest.min(limit);
                    wanted |= !has_lost(caller.process);
                }
                _ => return false,
            }
        }
        // Those that the row counts for processes that cannot say otherwise.
        for hold in row.live_shared() {
            let (process, _) = show::whose(hold.lease_id);
            let its = &self.processes[process];
            let silent = !its.is_running(now) || its.cut || has_lost(process);
            if silent || self.is_lease_excused(hold.lease_id) {
                inside += hold.count;
            }
        }
        wanted && inside < smallest
    }

    /// How long callers may wait for a key that nobody holds.
    fn answer_timeout(&self) -> Option<u64> {
        let plan = &self.plan;
        if plan.healthy {
            let all_hear = plan.wake_ups && self.processes.iter().all(|process| process.can_listen);
            return Some(if plan.faults.lost_wake_ups > 0 {
                5 * S
            } else if all_hear {
                // Four requests in a row may find the row locked by others that change nothing.
                150 * MS
            } else {
                400 * MS
            });
        }
        (self.phase != Phase::Busy).then_some(12 * S)
    }

    /// The longest time that a caller waits.
    fn longest_wait(&self) -> u64 {
        if self.plan.healthy && self.plan.longest_section <= 4 {
            // Nobody hears of the end of a take, so many who take need longer.
            let all_take = self.plan.callers.takes > 0 && self.plan.others.is_none();
            if self.plan.busy && !all_take { 3 * S } else { 8 * S }
        } else {
            u64::MAX / 2
        }
    }

    pub(crate) fn is_excused(&self, row: &LockRow) -> bool {
        if row.is_shared() {
            let mut live = row.shared.iter().filter(|hold| hold.expire_at > row.now);
            return live.any(|hold| self.is_lease_excused(hold.lease_id));
        }
        self.is_lease_excused(row.lease_id)
    }

    /// The lease may keep the key busy until it ends by itself.
    fn is_lease_excused(&self, lease: Uuid) -> bool {
        let (process, incarnation) = show::whose(lease);
        let dead = self
            .processes
            .get(process)
            .is_none_or(|its| !its.alive || its.incarnation != incarnation);
        dead || self
            .checks
            .excused
            .iter()
            .any(|(excused, until)| *excused == lease && self.now < *until)
    }
}

/// For how many ms something has been so, if that is longer than `limit`. It has been so since `since`.
fn too_long(since: &mut Option<u64>, is_so: bool, now: u64, limit: u64) -> Option<u64> {
    if !is_so {
        *since = None;
        return None;
    }
    let length = now - *since.get_or_insert(now);
    (length > limit).then_some(length / MS)
}
