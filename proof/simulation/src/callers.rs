//! Callers: they acquire with some options, wait, give up, and get answers.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::{Call, Takes};
use dblock_core::machine::env::{Env, Time};
use dblock_core::machine::out::Refusal;
use dblock_core::{LockOptions, Wait};

use crate::caller::{Asked, Caller, Run, State};
use crate::plan::{MS, Others};
use crate::process::Machine;
use crate::show;
use crate::world::{Phase, What, World, tell};

/// Time limit of the store for an operation of the handle.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a machine remembers that a key was busy, and a little more.
const ANSWER_LASTS: u64 = 1100 * MS;

impl World {
    /// A task of a process acquires a lock.
    pub(crate) fn call(&mut self, process: usize, task: u8) {
        if self.phase != Phase::Busy || self.callers.len() >= self.most_callers {
            return;
        }
        if !self.processes[process].alive || self.processes[process].stopping {
            self.after(200 * MS, What::Call { process, task });
            return;
        }
        let callers = self.plan.callers.clone();
        let key = self.tape.below(u32::try_from(self.keys.len()).unwrap_or(1)) as usize;
        let ttl = self.tape.pick(&self.plan.ttls.clone());
        let wait = if self.plan.busy {
            None
        } else {
            self.tape
                .pick(&[None, Some(20), Some(300), Some(1000), Some(5000), Some(0)])
        };
        let (run, begin) = self.draw_run(key).unzip();
        let now = self.local(process);
        let some = |chance: bool, length: u32| chance.then(|| Duration::from_millis(length.into()));
        let (wait, timeout) = match wait {
            None => (Wait::Forever, None),
            Some(0) => (Wait::No, Some(STORE_TIMEOUT)),
            Some(wait) => {
                let wait = Duration::from_millis(wait);
                (Wait::For(wait), Some(wait))
            }
        };
        let mut options = LockOptions::new().ttl(Duration::from_millis(ttl));
        options.wait = wait;
        options.renew = !self.tape.chance(callers.without_renewal);
        let has = self.tape.chance(callers.max_hold);
        options.max_hold = some(has, self.tape.pick_if(has, &[1000, 100, 5000]));
        let has = run.is_none() && self.tape.chance(callers.hold_min);
        options.hold_min = some(has, self.tape.pick_if(has, &[100, 1500, 8000]));
        let takes = run.is_none() && !has && self.tape.chance(callers.takes);
        let takes = takes && (process == 0 || self.plan.others != Some(Others::Wait));
        let takes = if takes {
            self.tape.pick(&[Takes::Alone, Takes::First])
        } else {
            Takes::No
        };
        let shares = run.is_none() && options.hold_min.is_none() && takes == Takes::No;
        if shares && self.tape.chance(callers.shares) {
            options.limit = Some(self.tape.pick(&[u32::MAX, u32::MAX, 1, 2, 3]));
        }
        let call = Call {
            since: now,
            deadline: timeout.map(|timeout| now + timeout),
            begin: begin.flatten(),
            takes,
            ..self.wants(options)
        };
        let signal = self.tape.chance(callers.signal);
        let caller = self.come(process, key, Some(task), (signal, run), call, Machine::acquire);
        if self.tape.chance(callers.give_up)
            && (matches!(self.callers[caller].state, State::Waiting | State::Taking)
                || self.is_beginning(caller))
        {
            let delay = self.tape.pick(&[0, 1, 10, 100, 1000, 3000]) * MS;
            self.after(delay, What::GiveUp(caller));
        }
    }

    /// A caller acquires a lock, or enters in a transaction.
    pub(crate) fn come(
        &mut self,
        process: usize,
        key: usize,
        task: Option<u8>,
        (signal, run): (bool, Option<Run>),
        call: Call,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, usize) -> u64,
    ) -> usize {
        let (number, now) = (self.callers.len(), self.local(process));
        let call = Arc::new(call);
        let taker = (call.takes != Takes::No).then(|| self.draw_taker(key, &call));
        tell!(
            self,
            "P{process} caller {number} wants {} {}",
            self.keys[key],
            show::call(&call, now)
        );
        self.callers.push(Caller {
            process,
            key,
            task,
            state: State::Waiting,
            number: 0,
            came_at: self.now,
            limit: call.options.limit,
            entered: now,
            due: [call.deadline, None, None, None, None],
            ownership: None,
            holds: 0,
            ended: false,
            signal,
            pinned: false,
            steps: 0,
            entering: false,
            stood: false,
            run,
            taker,
            ticket: None,
        });
        self.live.push(number);
        let joins = call.shares_with_all();
        let name = self.keys[key].clone();
        let joined = joins.then(|| {
            self.step_quietly(process, key, |machine, now| {
                machine.join_quietly(now, &name, &call)
            })
        });
        if let Some(ownership) = joined.flatten() {
            self.processes[process].cells[key].entered_at = Some(self.now);
            if self.answered(number, Asked::Acquire) {
                self.granted(process, key, number, ownership);
            }
            self.remember_machine(number);
            return number;
        }
        self.callers[number].number =
            self.step(process, key, |machine, env| asks(machine, env, call, number));
        self.remember_machine(number);
        number
    }

    /// The future of a caller is dropped.
    pub(crate) fn give_up(&mut self, number: usize) {
        if self.callers[number].state == State::Inside && self.is_beginning(number) {
            if self.phase == Phase::Busy && self.tape.chance(300) {
                return self.begin_again(number);
            }
            return self.drop_body(number);
        }
        let caller = &self.callers[number];
        if caller.state == State::Taking {
            tell!(self, "caller {number} gives up its take");
            return self.give_up_take(number);
        }
        if caller.state != State::Waiting {
            return;
        }
        let (process, key, waiter) = (caller.process, caller.key, caller.number);
        tell!(self, "P{process} caller {number} gives up");
        self.checks.gives_up = Some(number);
        self.step(process, key, |machine, env| machine.give_up(env, waiter));
        self.checks.gives_up = None;
        match self.callers[number].state {
            // Its answer came at the same moment, and no caller takes it.
            State::Inside => self.drop_body(number),
            State::Waiting => self.gone(number),
            State::Taking | State::Leaving | State::Gone => {}
        }
    }

    /// The caller has finished. Its task comes back later.
    pub(crate) fn gone(&mut self, number: usize) {
        self.forget(number);
        let caller = &self.callers[number];
        let (Some(task), process) = (caller.task, caller.process) else {
            return;
        };
        if self.callers.len() >= self.most_callers {
            return;
        }
        let delay = if process > 0 && self.plan.others.is_some() {
            2000 + u64::from(self.tape.below(1000))
        } else if self.plan.near {
            0
        } else if self.plan.busy {
            self.tape.pick(&[0, 0, 1])
        } else {
            self.tape.pick(&[0, 1, 10, 100, 1000])
        };
        self.after(delay * MS, What::Call { process, task });
    }

    /// The caller has finished, and its task does not come back.
    pub(crate) fn forget(&mut self, number: usize) {
        self.callers[number].state = State::Gone;
        self.callers[number].due = [None; Asked::ALL.len()];
        self.live.retain(|live| *live != number);
    }

    /// A last caller at the end of the schedule: it must acquire the lock.
    pub(crate) fn probe(&mut self, key: usize) {
        let alive: Vec<usize> = (0..self.processes.len())
            .filter(|at| self.processes[*at].alive)
            .collect();
        let process = self.tape.pick(&alive);
        self.come_once(process, key, Machine::acquire);
        self.checks.probes_left -= 1;
    }

    /// A caller that waits for as long as it takes, and does not come back.
    pub(crate) fn come_once(
        &mut self,
        process: usize,
        key: usize,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, usize) -> u64,
    ) -> usize {
        let options = LockOptions::new().ttl(Duration::from_secs(2)).wait_forever();
        let call = self.wants(options);
        self.come(process, key, None, (false, None), call, asks)
    }

    /// A call by the next owner.
    pub(crate) fn wants(&self, options: LockOptions) -> Call {
        Call {
            owner: show::owner_id(self.callers.len()),
            holder: Arc::clone(&self.checks.holder),
            options,
            since: Time::from_nanos(0),
            deadline: None,
            nested: false,
            takes: Takes::No,
            begin: None,
            tells_wait: None,
        }
    }

    pub(crate) fn check_refusal(&mut self, number: usize, refusal: &Refusal) {
        if self.plan.healthy && matches!(refusal, Refusal::Store(_) | Refusal::Shutdown) {
            self.fail(format!(
                "caller {number} is refused by a healthy store: {refusal:?}"
            ));
        }
        // A holder that is named was read in the row.
        let caller = &self.callers[number];
        let entered_at = self.processes[caller.process].cells[caller.key].entered_at;
        let recently = caller.came_at.saturating_sub(ANSWER_LASTS);
        if matches!(refusal, Refusal::Busy(None)) && entered_at.is_none_or(|at| at < recently) {
            self.fail(format!(
                "caller {number} hears that a key is busy that nobody has had"
            ));
        }
    }
}
