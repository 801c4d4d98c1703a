//! Callers that take the key in a transaction of their own: their turns and their pool, the transaction from its
//! snapshot to its end, and connections that break.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::{Call, Takes};
use dblock_core::machine::env::Time;
use dblock_core::machine::out::Turn;
use dblock_core::store::rules::{Sees, Take, Took};
use uuid::Uuid;

use crate::batch::Fate;
use crate::caller::{Asked, Open, Seen, State, Taker};
use crate::plan::{MS, US};
use crate::process::{Machine, Waiter};
use crate::sometimes::Sometimes;
use crate::world::{Phase, What, World, tell};

/// How long a caller waits for a connection before it wants a lease.
const CONNECTION_WITHIN: u64 = 50 * MS;

/// How long a caller tries to take the key.
const LONGEST_TRY: Duration = Duration::from_millis(2500);

impl World {
    /// Draws whether a caller takes the key, and how.
    pub(crate) fn draw_taker(&mut self, key: usize, call: &Arc<Call>) -> Taker {
        let own = self.tape.pick(&[true, false]);
        let sees = self.tape.pick(&[Sees::Newest, Sees::FirstSeen]);
        let began = !own && sees == Sees::FirstSeen;
        Taker {
            own,
            sees,
            seen: began.then(|| self.see(key)),
            call: Arc::clone(call),
            generation: 0,
            turn: None,
            turn_until: Time::from_nanos(0),
            open: None,
        }
    }

    fn see(&mut self, key: usize) -> Seen {
        let works = self.checks.keys[key].works;
        let row = self.store.row(key, self.now).clone();
        Seen { row, works }
    }

    /// The machine that the caller has just asked.
    pub(crate) fn remember_machine(&mut self, number: usize) {
        let caller = &mut self.callers[number];
        let generation = self.processes[caller.process].cells[caller.key].generation;
        if let Some(taker) = &mut caller.taker {
            taker.generation = generation;
        }
    }

    fn taker(&mut self, number: usize) -> Option<&mut Taker> {
        self.callers[number].taker.as_mut()
    }

    /// The transaction of a caller.
    pub(crate) fn open_of(&self, number: usize) -> Option<usize> {
        self.callers[number].taker.as_ref().and_then(|taker| taker.open)
    }

    /// The open transactions that have taken a key.
    fn taken(&self) -> impl Iterator<Item = &Open> {
        let opens = self.opened.iter().map(|at| &self.opens[*at]);
        opens.filter(|open| matches!(open.took, Some(Took::Taken(_))))
    }

    /// A transaction that has taken the key with this lease, and is open.
    pub(crate) fn open_with(&self, lease: Uuid) -> Option<&Open> {
        self.taken().find(|open| open.lease_id == lease)
    }

    /// The caller whose open transaction has taken the key with another lease.
    pub(crate) fn other_taker(&self, key: usize, lease: Uuid) -> Option<usize> {
        let other = |open: &&Open| open.key == key && open.lease_id != lease;
        self.taken().find(other).map(|open| open.caller)
    }

    /// The server knows no more of a transaction.
    fn set_over(&mut self, at: usize) {
        self.opens[at].over = true;
        self.opened.retain(|open| *open != at);
    }

    /// The server has ended the transaction of a caller that may not know it yet.
    pub(crate) fn is_cut(&self, number: usize) -> bool {
        self.open_of(number).is_some_and(|open| self.opens[open].over)
    }

    /// The caller has its turn: no other one of its process may enter.
    pub(crate) fn has_turn(&self, number: usize) -> bool {
        let caller = &self.callers[number];
        let now = self.local(caller.process);
        let taker = caller.taker.as_ref();
        taker.is_some_and(|taker| taker.turn.is_some() && now < taker.turn_until)
    }

    // ── The turn and the pool ────────────────────────────────────────────────────────────────────────

    pub(crate) fn turn(&mut self, process: usize, waiter: &Waiter, turn: Turn) {
        let number = waiter.to;
        if !self.leaves_the_queue(process, waiter) {
            return;
        }
        tell!(
            self,
            "P{process} caller {number} may take {}",
            self.keys[self.callers[number].key]
        );
        self.check_turn(number);
        let until = self.local(process) + LONGEST_TRY;
        let Some(taker) = self.taker(number) else { return };
        taker.turn = Some(turn);
        taker.turn_until = until;
        let often = self.plan.callers.no_connection;
        if self.tape.chance(often) {
            self.after(CONNECTION_WITHIN, What::NoConnection(number));
        } else {
            self.begin_take(number);
        }
    }

    /// The caller is told of its turn. Returns whether it is there for that.
    fn leaves_the_queue(&mut self, process: usize, waiter: &Waiter) -> bool {
        let number = waiter.to;
        if self.checks.gives_up == Some(number) {
            // It came at the same moment, and is over with it.
            return false;
        }
        if self.callers[number].state != State::Waiting || self.callers[number].taker.is_none() {
            self.fail(format!("caller {number} gets a turn that it does not wait for"));
            return false;
        }
        self.callers[number].state = State::Taking;
        if let Some(deadline) = waiter.call.deadline {
            let at = self.processes[process].clock.when(deadline, self.now);
            self.at(at, What::TakerLate(number));
        }
        true
    }

    /// The pool is empty.
    pub(crate) fn no_connection(&mut self, number: usize) {
        if self.callers[number].state == State::Taking {
            self.come_back(number, Duration::ZERO);
        }
    }

    /// The caller goes back to its place in the queue, for a lease.
    fn come_back(&mut self, number: usize, no_turns_for: Duration) {
        let known = self.is_known(number);
        let caller = &mut self.callers[number];
        let (process, key, of_machine) = (caller.process, caller.key, caller.number);
        let Some(taker) = caller.taker.take() else { return };
        let call = Arc::new(Call {
            takes: Takes::No,
            ..(*taker.call).clone()
        });
        if self.processes[process].stopping {
            tell!(self, "P{process} caller {number} is refused: shutdown");
            if known {
                self.step(process, key, |machine, env| machine.end_turn(env, of_machine));
            }
            return self.gone(number);
        }
        tell!(self, "P{process} caller {number} comes back for a lease");
        self.callers[number].state = State::Waiting;
        if known {
            self.step(process, key, |machine, env| {
                machine.come_back(env, of_machine, call, number, no_turns_for);
            });
        } else {
            // The key was forgotten meanwhile.
            let of_machine = self.step(process, key, |machine, env| machine.acquire(env, call, number));
            self.callers[number].number = of_machine;
        }
    }

    /// The caller's time is over while it tries.
    pub(crate) fn taker_late(&mut self, number: usize) {
        if self.callers[number].state == State::Taking {
            tell!(self, "caller {number} is too late with its take");
            self.give_up_take(number);
        }
    }

    /// A caller that tries is gone, and its transaction is rolled back.
    pub(crate) fn give_up_take(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key, of_machine) = (caller.process, caller.key, caller.number);
        if let Some(open) = self.open_of(number) {
            self.roll_back_later(open);
        }
        let known = self.is_known(number);
        self.gone(number);
        if known {
            self.step(process, key, |machine, env| machine.give_up(env, of_machine));
        }
    }

    /// The key's machine still is the one that knows the caller's number.
    fn is_known(&self, number: usize) -> bool {
        let caller = &self.callers[number];
        let generation = self.processes[caller.process].cells[caller.key].generation;
        let taker = caller.taker.as_ref();
        taker.is_some_and(|taker| taker.generation == generation)
    }

    // ── The take ─────────────────────────────────────────────────────────────────────────────────────

    fn begin_take(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some((own, turn, seen)) = self
            .taker(number)
            .and_then(|taker| Some((taker.own, taker.turn?, taker.seen.take())))
        else {
            return;
        };
        self.last_id += 1;
        let open = self.opens.len();
        self.opens.push(Open {
            key,
            process,
            incarnation: self.processes[process].incarnation,
            caller: number,
            own,
            lease_id: turn.lease_id,
            number: u32::try_from(self.last_id).unwrap_or(u32::MAX),
            seen,
            took: None,
            answered: false,
            commits: false,
            lost: false,
            over: false,
            parted: false,
        });
        self.opened.push(open);
        if let Some(taker) = self.taker(number) {
            taker.open = Some(open);
        }
        let fate = self.fate(process);
        tell!(
            self,
            "P{process} caller {number} tries to take {} ({fate:?})",
            self.keys[key]
        );
        let until = self.local(process) + LONGEST_TRY;
        let until = self.processes[process].clock.when(until, self.now);
        // It may notice that late.
        let later = self.tape.pick(&[0, 200, 2000]) * MS;
        self.at(until + later, What::TryOver(open));
        let delay = self.delay();
        match fate {
            Fate::Goes => self.after(delay, What::TakeSees(open)),
            Fate::LostAfter => {
                self.opens[open].lost = true;
                self.after(delay, What::TakeSees(open));
            }
            Fate::Late => {
                self.opens[open].lost = true;
                let later = self.tape.pick(&[0, 30, 200, 1000, 3000]) * MS;
                self.after(delay + later, What::TakeSees(open));
                self.after(delay, What::TakeAnswered(open));
            }
            _ => {
                self.set_over(open);
                self.after(delay, What::TakeAnswered(open));
            }
        }
    }

    /// The statement reads the row without a lock.
    pub(crate) fn take_sees(&mut self, at: usize) {
        if self.opens[at].over {
            return;
        }
        if self.opens[at].seen.is_none() {
            let seen = self.see(self.opens[at].key);
            self.opens[at].seen = Some(seen);
        }
        let gap = self.tape.pick(&[0, 50 * US, 2 * MS]);
        self.after(gap, What::TakeLocks(at));
    }

    /// The statement locks the row, and writes it.
    pub(crate) fn take_locks(&mut self, at: usize) {
        let open = &self.opens[at];
        let (key, number, caller) = (open.key, open.number, open.caller);
        let Some(mut seen) = open.seen.clone().filter(|_| !open.over) else {
            return;
        };
        let isolation = self.callers[caller]
            .taker
            .as_ref()
            .map_or(Sees::FirstSeen, |taker| taker.sees);
        let ask = Take {
            lease_id: open.lease_id,
            owner: crate::show::owner_id(caller),
            holder: Arc::clone(&self.checks.holder),
            sees: isolation,
        };
        seen.row.now = self.store.clock(self.now);
        let (took, locked) = self.store.take(key, &ask, &seen.row, (number, self.now));
        tell!(self, "  {}: caller {caller} takes it: {took:?}", self.keys[key]);
        self.opens[at].took = Some(took);
        if locked && !matches!(took, Took::Taken(_) | Took::Locked) {
            self.fail(format!(
                "caller {caller} takes nothing ({took:?}), and has the row locked"
            ));
        }
        if matches!(took, Took::Taken(_)) {
            self.sees_take(key, Sometimes::TakenBesideWaiters);
            let stale = isolation == Sees::FirstSeen && seen.works != self.checks.keys[key].works;
            self.check_take(caller, key, self.opens[at].lease_id, stale);
        }
        if self.opens[at].lost {
            // Its connection is broken, which the server notices.
            self.breaks(at);
        }
        let delay = self.delay();
        self.after(delay, What::TakeAnswered(at));
    }

    pub(crate) fn take_answered(&mut self, at: usize) {
        let open = &self.opens[at];
        let (key, process, number) = (open.key, open.process, open.caller);
        if !self.is_trying(at) || self.opens[at].answered {
            return;
        }
        self.opens[at].answered = true;
        let took = self.opens[at]
            .took
            .filter(|_| !self.opens[at].over && !self.opens[at].lost);
        let own = self.opens[at].own;
        tell!(self, "P{process} caller {number} hears of its take: {took:?}");
        match took {
            Some(Took::Taken(fence_token)) => {
                let Some(taker) = self.callers[number].taker.as_ref() else {
                    return;
                };
                let (call, lease_id) = (Arc::clone(&taker.call), self.opens[at].lease_id);
                let of_machine = self.callers[number].number;
                let entered = self.step(process, key, |machine, env| {
                    machine.taken(env, of_machine, lease_id, fence_token, call)
                });
                if let Some(taker) = self.taker(number) {
                    taker.turn = None;
                }
                match entered {
                    Some(ownership) => {
                        self.processes[process].cells[key].entered_at = Some(self.now);
                        self.callers[number].due[Asked::Acquire as usize] = None;
                        self.check_taken(number);
                        self.granted(process, key, number, ownership);
                        let often = self.plan.faults.lost;
                        if self.tape.chance(often) {
                            let delay = self.section();
                            self.after(delay, What::TakeBreaks(at));
                        }
                    }
                    None => self.roll_back_and_come_back(at),
                }
            }
            None => {
                // Nobody knows how far it came. The connection is given up.
                self.breaks(at);
                self.come_back(number, Duration::ZERO);
            }
            Some(Took::Locked) if !own => {
                // The caller's transaction ends with a conflict.
                self.give_up_take(number);
            }
            Some(_) if own => self.roll_back_and_come_back(at),
            Some(took) => {
                // The transaction goes on. It has nothing to do with the key.
                self.set_over(at);
                self.come_back(number, took.ahead());
            }
        }
    }

    /// It is rolled back before its caller waits for anything.
    fn roll_back_and_come_back(&mut self, at: usize) {
        let delay = self.delay();
        self.after(delay, What::TakeEnds(at));
    }

    /// A caller has tried for too long: it gives up its connection.
    pub(crate) fn try_over(&mut self, at: usize) {
        if self.is_trying(at) {
            let number = self.opens[at].caller;
            tell!(self, "caller {number} gives up its connection");
            self.breaks(at);
            self.come_back(number, Duration::ZERO);
        }
    }

    /// The caller still tries to take the key with this transaction.
    fn is_trying(&self, at: usize) -> bool {
        let open = &self.opens[at];
        let its = &self.processes[open.process];
        let tries = self.callers[open.caller].state == State::Taking && self.open_of(open.caller) == Some(at);
        its.alive && its.incarnation == open.incarnation && tries
    }

    // ── The end of the transaction ───────────────────────────────────────────────────────────────────

    /// The body of a taker has returned, and has one hold left.
    pub(crate) fn end_taken(&mut self, number: usize, at: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        let alone = self.part(number, at);
        let stands = ownership.end_if_over(self.local(process)).0.is_none();
        let commits = alone && stands && !self.tape.chance(200);
        self.opens[at].commits = commits;
        self.check_alone(number, key);
        let own = self.opens[at].own;
        tell!(
            self,
            "P{process} caller {number} leaves {}: commits {commits}, itself {own}",
            self.keys[key]
        );
        if !own {
            // Its caller ends the transaction some time later.
            let delay = self.section();
            self.after(delay, What::TakeEnds(at));
            self.callers[number].holds = 0;
            self.gone(number);
            self.step(process, key, |machine, env| {
                machine.leave(env, &ownership, alone, None)
            });
            return;
        }
        self.callers[number].state = State::Leaving;
        self.callers[number].due = [None; Asked::ALL.len()];
        let fate = self.fate(process);
        let delay = self.delay();
        match fate {
            Fate::Goes => self.after(delay, What::TakeEnds(at)),
            Fate::Conflict | Fate::Refused => {
                self.opens[at].commits = false;
                self.after(delay, What::TakeEnds(at));
            }
            Fate::LostAfter => {
                self.opens[at].lost = true;
                self.after(delay, What::TakeEnds(at));
            }
            Fate::Late => {
                let later = self.tape.pick(&[0, 30, 200, 1000]) * MS;
                self.after(delay + later, What::TakeEnds(at));
                self.opens[at].lost = true;
                self.after(delay, What::TakeEnded(at));
            }
            Fate::Unreachable | Fate::LostBefore | Fate::RolledBack => {
                self.opens[at].lost = true;
                self.breaks(at);
                self.after(delay, What::TakeEnded(at));
            }
        }
    }

    /// Nobody else may be in the lock when its transaction ends: they are told that it is lost. Returns whether
    /// nobody else was.
    fn part(&mut self, number: usize, at: usize) -> bool {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return true;
        };
        let closed = self.step(process, key, |machine, env| machine.close(env, &ownership));
        let alone = closed.is_ok();
        if !alone {
            self.opens[at].parted = true;
            self.step(process, key, |machine, env| machine.handle_gone(env, &ownership));
        }
        alone
    }

    /// The body of a taker was stopped or dropped. Its nested calls have ended.
    pub(crate) fn drop_taken(&mut self, number: usize, at: usize) {
        self.part(number, at);
        self.check_alone(number, self.opens[at].key);
        self.roll_back_later(at);
    }

    /// A connection goes back to its pool with a rollback, which is sent some time later.
    fn roll_back_later(&mut self, at: usize) {
        self.opens[at].commits = false;
        self.opens[at].lost = true;
        let delay = self.tape.pick(&[0, 1, 30, 1000]) * MS;
        let delay = if self.plan.healthy {
            delay.min(30 * MS)
        } else {
            delay
        };
        self.after(delay, What::TakeEnds(at));
    }

    /// The connection is broken. The server notices that, and rolls back.
    fn breaks(&mut self, at: usize) {
        let delay = self.tape.pick(&[0, 1, 300, 3000]) * MS;
        self.after(delay, What::TakeBreaks(at));
    }

    /// A commit or a rollback reaches the server, unless another call of the process enters in the transaction
    /// first.
    pub(crate) fn take_ends(&mut self, at: usize) {
        if self.opens[at].over {
            // Its connection had broken.
            self.opens[at].lost = true;
        } else if self.second_call(at) {
            return;
        } else {
            self.end_open(at, self.opens[at].commits);
        }
        let delay = self.delay();
        self.after(delay, What::TakeEnded(at));
    }

    pub(crate) fn take_breaks(&mut self, at: usize) {
        if !self.opens[at].over {
            self.end_open(at, false);
        }
    }

    fn end_open(&mut self, at: usize, commits: bool) {
        self.set_over(at);
        let open = &self.opens[at];
        let (key, number, caller, lease, took) =
            (open.key, open.number, open.caller, open.lease_id, open.took);
        tell!(
            self,
            "  {}: the transaction of caller {caller} ends, commits {commits}",
            self.keys[key]
        );
        match took {
            Some(Took::Taken(fence_token)) => {
                self.store.end_take(key, number, commits);
                if commits {
                    self.check_take_committed(caller, key, fence_token);
                } else {
                    self.sees_take(key, Sometimes::RolledBackBesideWaiters);
                    self.check_rolled_back(caller, key, lease);
                }
            }
            _ => self.store.end_take(key, number, false),
        }
    }

    /// The answer to the end of a transaction.
    pub(crate) fn take_ended(&mut self, at: usize) {
        let open = &self.opens[at];
        let (key, process, number, lost) = (open.key, open.process, open.caller, open.lost);
        if self.is_trying(at) {
            let took = self.opens[at].took;
            return self.come_back(number, took.map_or(Duration::ZERO, |took| took.ahead()));
        }
        let its = &self.processes[process];
        let waits = self.callers[number].state == State::Leaving && self.open_of(number) == Some(at);
        if !its.alive || its.incarnation != self.opens[at].incarnation || !waits {
            return;
        }
        let Some(ownership) = self.callers[number].ownership.clone() else {
            return;
        };
        self.callers[number].holds = 0;
        self.gone(number);
        self.step(process, key, |machine, env| {
            if lost {
                machine.leave(env, &ownership, false, None)
            } else {
                machine.handle_transaction_over(env, &ownership)
            }
        });
    }

    /// Another call enters in a transaction whose first call has returned.
    fn second_call(&mut self, at: usize) -> bool {
        let open = &self.opens[at];
        let (process, key, lease_id) = (open.process, open.key, open.lease_id);
        let its = &self.processes[process];
        let returned = self.callers[open.caller].state == State::Gone && !open.own && !open.lost;
        let runs =
            its.alive && its.incarnation == open.incarnation && !its.stopping && its.paused_until <= self.now;
        let taken = matches!(open.took, Some(Took::Taken(_)));
        if !returned || !runs || !taken || self.phase != Phase::Busy || !self.tape.chance(300) {
            return false;
        }
        let next = self.come_once(process, key, |machine: &mut Machine, env, call, to| {
            machine.enter_in_transaction(env, lease_id, call, to);
            0
        });
        if self.callers[next].state != State::Inside {
            return false;
        }
        let Some(call) = self.callers[next]
            .ownership
            .as_ref()
            .map(|own| Arc::clone(&own.call))
        else {
            return false;
        };
        self.opens[at].caller = next;
        self.callers[next].taker = Some(Taker {
            own: false,
            sees: Sees::Newest,
            seen: None,
            call,
            generation: 0,
            turn: None,
            turn_until: Time::from_nanos(0),
            open: Some(at),
        });
        true
    }

    /// The connections of a process that has died, or of all when the server has crashed.
    pub(crate) fn opens_break(&mut self, of: Option<usize>) {
        for at in self.opened.clone() {
            let open = &self.opens[at];
            if of.is_some_and(|process| open.process != process) {
                continue;
            }
            if of.is_some() {
                self.breaks(at);
                continue;
            }
            // The store has forgotten it.
            self.set_over(at);
            let caller = self.opens[at].caller;
            if self.open_of(caller) != Some(at) {
                continue;
            }
            match self.callers[caller].state {
                State::Inside => self.drop_body(caller),
                State::Taking => self.after(0, What::TakeAnswered(at)),
                State::Leaving => {
                    self.opens[at].lost = true;
                    self.after(0, What::TakeEnded(at));
                }
                State::Waiting | State::Gone => {}
            }
        }
    }
}
