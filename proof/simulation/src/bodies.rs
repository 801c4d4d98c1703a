//! The bodies of callers that hold the lock: they re-enter, check their token in a transaction, and end in
//! all ways.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::LostReason;
use dblock_core::machine::ownership::Ownership;

use crate::batch::Fate;
use crate::caller::{Asked, Caller, State, Transaction};
use crate::plan::MS;
use crate::store::Lock;
use crate::world::{Phase, What, World, tell};

impl World {
    /// How long one step of a body takes.
    pub(crate) fn section(&mut self) -> u64 {
        const LENGTHS: [u64; 8] = [1, 0, 10, 40, 300, 2000, 6000, 20_000];
        if let Some(length) = self.plan.section {
            return length * MS;
        }
        let lengths = &LENGTHS[..self.plan.longest_section];
        self.tape.pick(lengths) * MS
    }

    /// A body goes on.
    pub(crate) fn body(&mut self, number: usize) {
        let caller = &self.callers[number];
        if caller.state != State::Inside || !self.is_in_body(number) {
            return;
        }
        let caller = &mut self.callers[number];
        caller.steps = caller.steps.saturating_add(1);
        let (process, key, steps) = (caller.process, caller.key, caller.steps);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        let now = self.local(process);
        let (reason, first) = ownership.end_if_over(now);
        if first {
            self.check_loss_of_body(number);
        }
        let caller = &self.callers[number];
        if reason == Some(LostReason::Released) {
            return self.fail(format!(
                "the lease of caller {number} is over although it has not left"
            ));
        }
        if reason.is_some() {
            if caller.signal && steps < 4 && self.phase == Phase::Busy {
                let delay = self.section();
                self.after(delay, What::Body(number));
            } else if caller.signal {
                self.leave(number);
            } else {
                self.drop_body(number);
            }
            return;
        }
        if self.phase != Phase::Busy || steps > 6 || ownership.is_revoked() {
            return self.leave(number);
        }
        let (holds, entering) = (caller.holds, caller.due[Asked::Enter as usize].is_some());
        let callers = &self.plan.callers;
        let (nested, extends, dropped) = (callers.nested, callers.extends, callers.dropped);
        // In a transaction that has taken the key the check would say nothing new.
        let shares = ownership.call.options.limit.is_some();
        let pins = if shares || self.open_of(number).is_some() {
            0
        } else {
            callers.pins
        };
        if self.tape.chance(dropped) {
            return self.drop_body(number);
        }
        if entering {
            // The body waits for its nested call.
            self.after(20 * MS, What::Body(number));
            return;
        }
        if self.tape.chance(self.plan.callers.children) {
            self.child_enters(number);
        }
        if self.tape.chance(nested) {
            let confirmed = self.tape.below(2) == 0;
            let confirm = confirmed.then(|| self.ask(number, Asked::Enter, None));
            tell!(self, "P{process} caller {number} enters again");
            let entered = self.step(process, key, |machine, env| {
                machine.enter(env, &ownership, confirm)
            });
            if entered.is_ok() {
                self.callers[number].holds += 1;
                self.callers[number].entering = confirmed;
            }
        } else if self.tape.chance(pins) {
            let left = ownership.deadline().map_or(Duration::ZERO, |end| end.since(now));
            let confirm = self.ask(number, Asked::Pin, Some(left));
            tell!(self, "P{process} caller {number} wants a fence check");
            self.step(process, key, |machine, env| {
                machine.pin(env, &ownership, Some(confirm));
            });
        } else if self.tape.chance(extends) {
            let left = ownership.deadline().map_or(Duration::ZERO, |end| end.since(now));
            let confirm = self.ask(number, Asked::Extend, Some(left));
            let ttl = Duration::from_millis(self.tape.pick(&self.plan.ttls.clone()));
            tell!(self, "P{process} caller {number} wants a ttl of {ttl:?}");
            self.step(process, key, |machine, env| {
                machine.set_ttl(env, &ownership, ttl, confirm);
            });
        } else if holds > 1 {
            self.callers[number].holds -= 1;
            tell!(self, "P{process} caller {number} leaves a nested call");
            if !self.leaves_quietly(process, key, &ownership) {
                self.step(process, key, |machine, env| {
                    machine.leave(env, &ownership, true, None)
                });
            }
        } else {
            return self.leave(number);
        }
        if self.callers[number].state == State::Inside {
            let delay = self.section();
            self.after(delay, What::Body(number));
        }
    }

    /// A hold ends beside others, if nothing else follows from it.
    fn leaves_quietly(&mut self, process: usize, key: usize, ownership: &Arc<Ownership>) -> bool {
        let left = ownership.call.shares_with_all().then(|| {
            self.step_quietly(process, key, |machine, now| {
                machine.leave_quietly(now, ownership).ok()
            })
        });
        left.flatten().is_some()
    }

    fn drop_hold(&mut self, process: usize, key: usize, ownership: &Arc<Ownership>) {
        self.step(process, key, |machine, env| {
            machine.leave(env, ownership, false, None)
        });
    }

    /// The body returned.
    fn leave(&mut self, number: usize) {
        let caller = &mut self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        while self.callers[number].holds > 1 {
            self.callers[number].holds -= 1;
            let ownership = Arc::clone(&ownership);
            self.drop_hold(process, key, &ownership);
        }
        let commits = self.plan.callers.commits;
        let plain = self.callers[number].run.is_none() && self.open_of(number).is_none();
        let plain = plain && ownership.hold_min_until.is_none() && ownership.call.options.limit.is_none();
        if plain
            && self.tape.chance(commits)
            && self.step(process, key, |machine, env| {
                !machine.is_kept_in_transaction(&ownership) && machine.close(env, &ownership).is_ok()
            })
        {
            return self.commit_by_lease(number);
        }
        self.work_is_done(number);
        if self.callers[number].run.is_some() {
            return self.end_run(number);
        }
        if plain && self.tape.chance(self.plan.callers.tickets) && self.put_into_ticket(number, &ownership) {
            return;
        }
        if let Some(open) = self.open_of(number) {
            return self.end_taken(number, open);
        }
        tell!(self, "P{process} caller {number} leaves {}", self.keys[key]);
        self.check_leave(number);
        if self.leaves_quietly(process, key, &ownership) {
            self.check_left(number, true);
            return self.gone(number);
        }
        self.callers[number].state = State::Leaving;
        self.callers[number].due = [None; Asked::ALL.len()];
        let confirm = self.ask(number, Asked::Leave, None);
        self.step(process, key, |machine, env| {
            machine.leave(env, &ownership, true, Some(confirm))
        });
    }

    // ── Transactions that are checked with their commit ──────────────────────────────────────────────

    /// The body has returned, and its transaction commits if the row still names its lease.
    fn commit_by_lease(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        tell!(
            self,
            "P{process} caller {number} commits under its lease of {}",
            self.keys[key]
        );
        self.check_leave(number);
        self.callers[number].state = State::Leaving;
        self.callers[number].due = [None; Asked::ALL.len()];
        let (fate, delay) = (self.fate(process), self.delay());
        let later = self.tape.pick(&[0, 30, 200, 1000, 3000]) * MS;
        match fate {
            Fate::Goes => self.after(delay, What::CommitArrives(number)),
            Fate::LostAfter => {
                self.after(delay, What::CommitArrives(number));
                self.after(delay, What::CommitAnswered(number, false));
            }
            Fate::Late => {
                self.after(delay + later, What::CommitArrives(number));
                self.after(delay, What::CommitAnswered(number, false));
            }
            _ => self.after(delay, What::CommitAnswered(number, false)),
        }
    }

    /// The check and the commit reach the row. They wait for its lock.
    pub(crate) fn commit_arrives(&mut self, number: usize) {
        let caller = &self.callers[number];
        let key = caller.key;
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        if self.store.rows[key].lock != Lock::Nobody {
            return self.after(2 * MS, What::CommitArrives(number));
        }
        let row = self.store.row(key, self.now);
        let commits = row.lease_id == ownership.lease_id && row.reentrant_count > 0;
        tell!(self, "caller {number} commits under its lease: {commits}");
        if !commits {
            let delay = self.delay();
            return self.after(delay, What::CommitAnswered(number, false));
        }
        self.last_id += 1;
        let transaction = u32::try_from(self.last_id).unwrap_or(u32::MAX);
        self.store.rows[key].lock = Lock::Transaction(transaction);
        let until = self.tape.pick(&[0, 1, 30, 1000]) * MS;
        let until = if self.plan.healthy {
            until.min(30 * MS)
        } else {
            until
        };
        self.after(until, What::CommitEnds(number, transaction));
    }

    /// The transaction has kept the row locked since its check, unless the server has crashed.
    pub(crate) fn commit_ends(&mut self, number: usize, transaction: u32) {
        let caller = &self.callers[number];
        let key = caller.key;
        let open = self.store.rows[key].lock == Lock::Transaction(transaction);
        if open && let Some(ownership) = caller.ownership.clone() {
            self.store.rows[key].lock = Lock::Nobody;
            self.check_commit(number, key, &ownership);
            self.store.flush();
        }
        let delay = self.delay();
        self.after(delay, What::CommitAnswered(number, open));
    }

    pub(crate) fn commit_answered(&mut self, number: usize, committed: bool) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        if caller.state != State::Leaving || caller.due[Asked::Leave as usize].is_some() {
            return;
        }
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        if committed {
            let confirm = self.ask(number, Asked::Leave, None);
            self.step(process, key, |machine, env| {
                machine.leave(env, &ownership, true, Some(confirm))
            });
        } else {
            self.callers[number].holds = 0;
            self.gone(number);
            self.drop_hold(process, key, &ownership);
        }
    }

    /// A nested call was not confirmed: its hold is dropped.
    pub(crate) fn drop_nested(&mut self, number: usize) {
        let caller = &mut self.callers[number];
        let (process, key) = (caller.process, caller.key);
        if caller.state == State::Inside && std::mem::take(&mut caller.entering) && caller.holds > 1 {
            caller.holds -= 1;
            if let Some(ownership) = caller.ownership.clone() {
                tell!(self, "P{process} caller {number} drops its nested call");
                self.drop_hold(process, key, &ownership);
            }
        }
    }

    /// The body was stopped, or its future was dropped.
    pub(crate) fn drop_body(&mut self, number: usize) {
        let caller = &mut self.callers[number];
        let (process, key, holds) = (caller.process, caller.key, caller.holds);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        tell!(
            self,
            "P{process} caller {number} is dropped inside {}",
            self.keys[key]
        );
        self.work_is_done(number);
        self.callers[number].holds = 0;
        self.gone(number);
        for _ in 1..holds {
            self.drop_hold(process, key, &ownership);
        }
        if let Some(open) = self.open_of(number) {
            self.drop_taken(number, open);
        }
        if holds > 0 {
            self.drop_hold(process, key, &ownership);
        }
    }

    /// Tells the bodies of this ownership that it has ended or was revoked.
    pub(crate) fn tell_body(&mut self, process: usize, key: usize, ownership: &Arc<Ownership>) {
        let told = self.live.iter().copied().find(|number| {
            let caller = &self.callers[*number];
            let its = caller
                .ownership
                .as_ref()
                .is_some_and(|own| Arc::ptr_eq(own, ownership));
            caller.process == process && caller.key == key && caller.state == State::Inside && its
        });
        if let Some(number) = told {
            let delay = if self.plan.healthy {
                0
            } else {
                self.tape.pick(&[0, 1, 100, 3000])
            };
            self.after(delay * MS, What::Body(number));
        }
    }

    // ── Fence checks ─────────────────────────────────────────────────────────────────────────────────

    /// The check reaches the row. It waits for the row's lock.
    pub(crate) fn verify(&mut self, number: usize) {
        let caller = &self.callers[number];
        if caller.state == State::Gone || !self.processes[caller.process].alive {
            return;
        }
        let (process, key, inside) = (caller.process, caller.key, caller.state == State::Inside);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        if self.store.rows[key].lock != Lock::Nobody {
            self.after(2 * MS, What::Verify(number));
            return;
        }
        let row = self.store.row(key, self.now);
        let stands = row.lease_id == ownership.lease_id && row.is_held();
        let named = row.fence_token == ownership.fence_token;
        if stands && named {
            tell!(
                self,
                "P{process} caller {number} has passed a fence check with token {}",
                ownership.fence_token
            );
            self.check_fence(key, number, &ownership);
            self.last_id += 1;
            let transaction = u32::try_from(self.last_id).unwrap_or(u32::MAX);
            self.store.rows[key].lock = Lock::Transaction(transaction);
            let releases = inside
                && self.callers[number].run.is_none()
                && ownership.hold_min_until.is_none()
                && self.callers[number].holds == 1;
            let releases = releases && self.tape.chance(500) && {
                tell!(self, "and its lock ends with that transaction");
                let kept = self.step(process, key, |machine, env| {
                    machine.keep_in_transaction(env, &ownership)
                });
                kept.is_ok()
            };
            self.checks.transactions.push(Transaction {
                key,
                number: transaction,
                ownership,
                releases: releases.then_some(number),
            });
            let (delay, number) = (self.section(), transaction);
            self.after(delay, What::EndTransaction { key, number });
            return;
        }
        tell!(self, "P{process} caller {number} is refused by a fence check");
        if stands && inside {
            self.check_refused_fence(number);
        }
        if !stands && (inside || !self.plan.faults.big_jumps) {
            self.step(process, key, |machine, env| machine.handle_gone(env, &ownership));
        }
    }

    /// A transaction ends, unless another call of its process enters in it first.
    pub(crate) fn end_transaction(&mut self, key: usize, number: u32) {
        let mut open = self.checks.transactions.iter();
        let Some(at) = open.position(|open| open.number == number) else {
            return;
        };
        if let Some(caller) = self.checks.transactions[at].releases {
            if self.enter_again(at, caller) {
                let delay = self.section();
                return self.after(delay, What::EndTransaction { key, number });
            }
            self.end_releasing(key, at, caller);
        }
        tell!(
            self,
            "a transaction with a fence check of {} ends",
            self.keys[key]
        );
        self.checks.transactions.retain(|open| open.number != number);
        self.store.rows[key].lock = Lock::Nobody;
        self.store.flush();
    }

    /// A lock ends with this transaction, or its connection breaks.
    fn end_releasing(&mut self, key: usize, at: usize, caller: usize) {
        let Caller { process, state, .. } = self.callers[caller];
        if state == State::Inside {
            self.drop_body(caller);
        }
        let commits = self.processes[process].alive && self.tape.chance(700);
        tell!(
            self,
            "the lock of caller {caller} ends with its transaction: {commits}"
        );
        if !commits {
            return;
        }
        let ownership = Arc::clone(&self.checks.transactions[at].ownership);
        let row = self.store.row(key, self.now);
        if row.lease_id == ownership.lease_id {
            row.reentrant_count = 0;
            row.next = None;
        }
        self.tell_released(key);
        let delay = self.delay();
        self.after(delay, What::Committed(caller));
    }

    /// The process hears that the transaction has committed.
    pub(crate) fn committed(&mut self, caller: usize) {
        let Caller { process, key, .. } = self.callers[caller];
        if let Some(ownership) = self.callers[caller].ownership.clone()
            && self.processes[process].alive
        {
            self.step(process, key, |machine, env| {
                machine.handle_transaction_over(env, &ownership)
            });
        }
    }

    /// Another call of the process enters in a transaction whose first call has returned.
    fn enter_again(&mut self, at: usize, caller: usize) -> bool {
        let Caller {
            process, key, state, ..
        } = self.callers[caller];
        let its = &self.processes[process];
        if state == State::Inside || !its.alive || its.stopping || !self.tape.chance(300) {
            return false;
        }
        let lease_id = self.checks.transactions[at].ownership.lease_id;
        let next = self.come_once(process, key, |machine, env, call, to| {
            machine.enter_in_transaction(env, lease_id, call, to);
            0
        });
        let entered = self.callers[next].ownership.clone();
        if let Some(ownership) = entered {
            let open = &mut self.checks.transactions[at];
            (open.ownership, open.releases) = (ownership, Some(next));
            return true;
        }
        false
    }
}
