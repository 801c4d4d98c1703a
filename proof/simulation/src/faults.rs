//! Faults from outside: processes that pause, die or are cut off, listeners that break, clocks that jump; and
//! operators.

use dblock_core::machine::key::Machine;

use crate::caller::State;
use crate::plan::{MS, S};
use crate::show;
use crate::sometimes::Sometimes;
use crate::store::Lock;
use crate::world::{Phase, What, World, tell};

#[derive(Debug, Clone, Copy)]
enum Kind {
    Pause,
    Cut,
    Die,
    ShutDown,
    LoseWakeUps,
    Operate,
    ClockBack,
    ClockAhead,
    Crash,
}

impl World {
    /// Plans the next fault.
    pub(crate) fn plan_fault(&mut self) {
        if self.most_faults > 0 && self.kinds().next().is_some() {
            let delay = self.tape.pick(&[300, 50, 10, 1000, 3000]) * MS;
            self.after(delay, What::Fault);
        }
    }

    /// The kinds of faults in this schedule.
    fn kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let faults = &self.plan.faults;
        let all = [
            (faults.pauses, Kind::Pause),
            (faults.cuts, Kind::Cut),
            (faults.deaths, Kind::Die),
            (faults.deaths / 2, Kind::ShutDown),
            (faults.broken_listeners, Kind::LoseWakeUps),
            (faults.operators, Kind::Operate),
            (faults.clock_back, Kind::ClockBack),
            (faults.clock_ahead, Kind::ClockAhead),
            (faults.crashes, Kind::Crash),
        ];
        all.into_iter()
            .filter(|(often, _)| *often > 0)
            .map(|(_, kind)| kind)
    }

    pub(crate) fn fault(&mut self) {
        if self.phase != Phase::Busy {
            return;
        }
        self.most_faults -= 1;
        let kinds: Vec<Kind> = self.kinds().collect();
        let kind = self.tape.pick(&kinds);
        let process = self.tape.below(u32::try_from(self.processes.len()).unwrap_or(1)) as usize;
        let incarnation = self.processes[process].incarnation;
        let alive = self.processes[process].alive;
        match kind {
            Kind::Operate => self.operate(),
            Kind::ClockBack => {
                // The jumps together make leases last longer.
                let longest = if self.store.jumped < -20_000_000 {
                    1
                } else {
                    10_000
                };
                let micros = self.tape.pick(&[1, 100, 1000, longest]) * 1000;
                tell!(self, "the store's clock jumps back by {micros} µs");
                self.excuse_rows();
                self.store.jump(-micros);
            }
            Kind::ClockAhead => self.jump_ahead(),
            Kind::Crash => self.crash(),
            _ if !alive => {}
            Kind::Pause => {
                let length = self.tape.pick(&[10, 300, 2000, 6000, 35_000]);
                tell!(self, "P{process} stands still for {length} ms");
                let until = self.now + length * MS;
                self.processes[process].paused_until = self.processes[process].paused_until.max(until);
                self.after(length * MS, What::Resume(process));
            }
            Kind::Cut => {
                let length = self.tape.pick(&[100, 1000, 6000, 20_000]);
                tell!(self, "P{process} is cut off for {length} ms");
                self.processes[process].cut = true;
                self.after(length * MS, What::Heal(process));
                self.lose_subscription(process);
            }
            Kind::Die => self.die(process, incarnation),
            Kind::ShutDown => {
                if !self.processes[process].stopping {
                    tell!(self, "P{process} shuts down");
                    self.processes[process].stopping = true;
                    self.each(process, Machine::refuse_outermost);
                    let grace = self.tape.pick(&[0, 100, 2000]) * MS;
                    self.after(grace, What::Stop { process, incarnation });
                }
            }
            Kind::LoseWakeUps => self.lose_subscription(process),
        }
        self.plan_fault();
    }

    fn jump_ahead(&mut self) {
        let micros = if self.plan.faults.big_jumps {
            self.tape.pick(&[100, 3000, 40_000]) * 1000
        } else {
            let most = i64::try_from(self.plan.jump_ahead / 1000).unwrap_or(0);
            let jump = self.tape.pick(&[most, most / 2]);
            self.plan.jump_ahead -= u64::try_from(jump).unwrap_or(0) * 1000;
            jump
        };
        tell!(self, "the store's clock jumps ahead by {micros} µs");
        self.store.jump(micros);
    }

    /// Sessions and listeners end, and with them transactions and statements that are not committed.
    fn crash(&mut self) {
        let forgets = self.tape.below(3) > 0;
        tell!(
            self,
            "the server crashes{}",
            if forgets { " and forgets" } else { "" }
        );
        let kept = self.store.crash(forgets);
        if !kept.is_empty() {
            self.came.note(Sometimes::CommitForgotten);
        }
        self.checks
            .excused
            .extend(kept.into_iter().map(|lease| (lease, u64::MAX)));
        let open = std::mem::take(&mut self.checks.transactions);
        for caller in open.iter().filter_map(|open| open.releases) {
            if self.callers[caller].state == State::Inside {
                // Its work is gone, and nothing protects the rest.
                self.drop_body(caller);
            }
        }
        self.opens_break(None);
        self.crashed = self.batches.len();
        for process in 0..self.processes.len() {
            self.lose_subscription(process);
        }
    }

    /// Excuses rows that will be busy for longer than anybody can know.
    fn excuse_rows(&mut self) {
        for row in &self.store.rows {
            for lease in row.leases() {
                self.checks.excused.push((lease, u64::MAX));
            }
        }
    }

    /// The store sends no more wake-ups to the process, which notices later.
    fn lose_subscription(&mut self, process: usize) {
        let its = &mut self.processes[process];
        let incarnation = its.incarnation;
        if its.subscribed {
            its.subscribed = false;
            tell!(self, "P{process}'s listener breaks");
            let delay = self.tape.pick(&[0, 300, 3000, 10_000]) * MS;
            self.after(delay, What::WakeUpsLost { process, incarnation });
        }
    }

    pub(crate) fn resume(&mut self, process: usize) {
        if self.processes[process].paused_until <= self.now {
            self.processes[process].resumed_at = self.now;
            tell!(self, "P{process} goes on");
            self.make_up(process);
        }
    }

    pub(crate) fn heal(&mut self, process: usize) {
        self.processes[process].cut = false;
        tell!(self, "P{process} can reach the store again");
    }

    /// The grace of a shutdown is over.
    pub(crate) fn stop(&mut self, process: usize, incarnation: u32) {
        let its = &self.processes[process];
        if !its.alive || its.incarnation != incarnation {
            return;
        }
        tell!(self, "P{process} ends what is held");
        self.processes[process].stopped = true;
        self.each(process, Machine::stop);
        self.after(2 * S, What::Die { process, incarnation });
    }

    pub(crate) fn die(&mut self, process: usize, incarnation: u32) {
        let its = &mut self.processes[process];
        if !its.alive || its.incarnation != incarnation {
            return;
        }
        its.alive = false;
        its.paused_until = 0;
        its.subscribed = false;
        its.listening = false;
        tell!(self, "P{process} dies");
        self.make_up(process);
        self.children_die(process);
        let theirs: Vec<usize> = self
            .live
            .iter()
            .copied()
            .filter(|number| self.callers[*number].process == process)
            .collect();
        for number in theirs {
            self.gone(number);
        }
        self.opens_break(Some(process));
        let delay = self.tape.pick(&[100, 0, 5000]) * MS;
        self.after(delay, What::Restart(process));
    }

    pub(crate) fn restart(&mut self, process: usize) {
        if !self.processes[process].alive {
            self.processes[process].start_again(&self.plan, &self.keys);
            self.processes[process].resumed_at = self.now;
            tell!(self, "P{process} starts again");
        }
    }

    // ── The end ──────────────────────────────────────────────────────────────────────────────────────

    /// Moves on: faults and calls end and last callers come, or these are done.
    pub(crate) fn next_phase(&mut self) {
        if self.phase == Phase::Calm {
            if !self.probes_are_done() {
                self.fail("callers wait, and nothing will ever happen".to_owned());
            }
            self.phase = Phase::Over;
            return;
        }
        self.phase = Phase::Calm;
        tell!(self, "── all faults end, and all callers leave");
        for process in 0..self.processes.len() {
            let its = &mut self.processes[process];
            if its.paused_until > self.now {
                its.paused_until = 0;
                its.resumed_at = self.now;
                self.make_up(process);
            }
            let its = &mut self.processes[process];
            its.cut = false;
            let incarnation = its.incarnation;
            if its.stopping {
                self.die(process, incarnation);
            }
            self.restart(process);
        }
        for number in self.live.clone() {
            self.give_up(number);
            self.after(0, What::Body(number));
        }
        self.checks.probes_left = self.keys.len();
        for key in 0..self.keys.len() {
            let delay = self.tape.pick(&[0, 5]) * S;
            self.after(delay, What::Probe(key));
        }
    }

    pub(crate) fn probes_are_done(&self) -> bool {
        self.checks.probes_left == 0 && self.live.is_empty()
    }

    /// Checks that nothing is left to be done.
    pub(crate) fn check_nothing_is_left(&mut self) {
        for process in 0..self.processes.len() {
            for key in 0..self.keys.len() {
                if !self.processes[process].cells[key].machine.is_idle() {
                    self.fail(format!(
                        "P{process} is left with something to do for {}",
                        self.keys[key]
                    ));
                }
            }
        }
        for key in 0..self.keys.len() {
            let row = self.store.row(key, self.now).clone();
            if row.is_held() && !self.is_excused(&row) {
                self.fail(format!("{} is held by nobody", row.key));
            }
            if self.store.rows[key].lock != Lock::Nobody {
                self.fail(format!("{} is locked by nobody", row.key));
            }
        }
    }

    /// An operator's call. It waits for the row's lock.
    pub(crate) fn operate(&mut self) {
        let key = self.tape.below(u32::try_from(self.keys.len()).unwrap_or(1)) as usize;
        let force = self.tape.below(2) == 1;
        if self.store.rows[key].lock != Lock::Nobody {
            return;
        }
        self.last_id += 1;
        let fresh = show::operators_id(self.last_id);
        let row = self.store.row(key, self.now);
        if !row.is_held() {
            return;
        }
        let lease = row.lease_id;
        let leases = row.shared.iter().map(|hold| hold.lease_id).chain([lease]);
        let leases: Vec<_> = leases.collect();
        if force {
            row.reentrant_count = 0;
            row.lease_id = fresh;
            row.next = None;
            self.came.note(Sometimes::FreedUnderItsHolder);
            self.checks.forced.extend(leases);
            self.tell_released(key);
        } else {
            row.revoked = true;
            self.checks.revoked.extend(leases);
        }
        self.store.flush();
        let order = if force { "force_release" } else { "revoke" };
        tell!(
            self,
            "operator {order} {} of {}",
            self.keys[key],
            show::lease(lease)
        );
    }
}
