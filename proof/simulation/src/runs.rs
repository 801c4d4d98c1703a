//! Runs that are remembered: what `once/call` does around a body, in steps. The record is begun with the
//! lock, or by a write of its own; its writes are late, lost, or hang; and what was begun for no body is
//! taken back.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::Begin;
use dblock_core::runs::{
    Decision, OnCrash, Policy, before, beginning, decide, decide_inside, is_later, taken_back_to, undo,
};
use dblock_core::store::rules::{RecordEffect, change_record};
use dblock_core::store::{Record, RecordEntry, RecordState, RecordVersion, RecordWrite, WriteLease};
use uuid::Uuid;

use crate::batch::{Answer, Ask, Fate};
use crate::caller::{Next, Run, State, Step};
use crate::plan::{MS, S};
use crate::show;
use crate::store::Lock;
use crate::world::{What, World, tell};

/// How long a request for a record may take.
const TIMEOUT: u64 = 5 * S;

/// How often a call looks anew.
const LOOKS: u8 = 5;

impl World {
    /// Draws whether a caller is a run, and how it begins with the lock.
    pub(crate) fn draw_run(&mut self, key: usize) -> Option<(Run, Option<Begin>)> {
        if !self.tape.chance(self.plan.callers.runs) {
            return None;
        }
        let on_crash = self.tape.pick(&[OnCrash::Retry, OnCrash::Retry, OnCrash::Stop]);
        let remember = Duration::from_millis(self.tape.pick(&[500, 20_000]));
        let policy = Policy::new(on_crash);
        let guesses = self.tape.chance(200);
        let found = if guesses { None } else { self.record(key) };
        let former = taken_back_to(found.as_ref());
        let first = match decide(found, &policy, None) {
            Decision::Run { expected, attempt } => Some((expected, attempt)),
            _ => None,
        };
        let with_the_lock = first.filter(|_| self.tape.chance(500));
        let begin = with_the_lock.map(|(expected, attempt)| {
            let begun = entry(attempt, RecordEntry::OF_THE_LEASE, remember);
            Begin {
                undo: Arc::new(undo(begun.version(), former.clone())),
                change: Arc::new(beginning(expected, begun)),
            }
        });
        let run = Run {
            policy,
            remember,
            first: first.filter(|_| !guesses),
            former,
            step: Step::Waits,
            begun: None,
            sent: false,
            looks: 0,
            asked: usize::MAX,
        };
        Some((run, begin))
    }

    fn record(&mut self, key: usize) -> Option<Record> {
        let now = self.store.clock(self.now);
        let mut record = self.store.rows[key].record.clone()?;
        record.now = now;
        Some(record)
    }

    /// A run has the lock. Returns whether its body does not begin yet.
    pub(crate) fn begin_run(&mut self, number: usize) -> bool {
        let caller = &mut self.callers[number];
        let (Some(run), Some(ownership)) = (&mut caller.run, &caller.ownership) else {
            return false;
        };
        run.step = Step::Begins;
        let first = run.first.take();
        if ownership.begun {
            // A wrong guess is found out by the store.
            let attempt = ownership
                .call
                .begin
                .as_ref()
                .and_then(|begin| begin.change.entry());
            let attempt = attempt.map_or(1, |entry| entry.attempts);
            let keep = run.remember;
            run.begun = Some(entry(attempt, ownership.fence_token, keep));
            self.enter_run(number);
        } else if let Some(first) = first {
            let former = run.former.take();
            self.write_begin(number, first, former);
        } else {
            self.read_record(number);
        }
        true
    }

    pub(crate) fn is_beginning(&self, number: usize) -> bool {
        let run = self.callers[number].run.as_ref();
        run.is_some_and(|run| run.step == Step::Begins)
    }

    /// The outcome of a run is on its way, and the lock ends with it.
    pub(crate) fn is_ending(&self, number: usize) -> bool {
        let run = self.callers[number].run.as_ref();
        run.is_some_and(|run| matches!(run.step, Step::Ends { alone: true, .. }))
    }

    /// A child that is inside under a live lease other than this one.
    pub(crate) fn other_child(&self, key: usize, lease: Uuid) -> Option<usize> {
        let children = self.checks.keys[key].runs.children.iter().copied();
        let mut others = children.filter(|number| {
            let caller = &self.callers[*number];
            let own = caller.ownership.as_ref().filter(|own| own.lease_id != lease);
            let alive = own
                .and_then(|own| own.deadline())
                .is_some_and(|end| self.local(caller.process) < end);
            alive
                && !self.is_cut(*number)
                && own.is_some_and(|own| !self.checks.forced.contains(&own.lease_id))
        });
        others.next()
    }

    pub(crate) fn is_in_body(&self, number: usize) -> bool {
        let run = self.callers[number].run.as_ref();
        run.is_none_or(|run| run.step == Step::Inside)
    }

    /// A call that was cut under an outer lock is repeated there.
    pub(crate) fn begin_again(&mut self, number: usize) {
        if let Some(run) = &mut self.callers[number].run {
            (run.sent, run.looks, run.begun) = (false, 0, None);
            tell!(self, "caller {number} is cut, and called again in its lock");
            self.read_record(number);
        }
    }

    // ── The beginning ────────────────────────────────────────────────────────────────────────────────

    fn read_record(&mut self, number: usize) {
        let Some(run) = &mut self.callers[number].run else {
            return;
        };
        run.looks += 1;
        if run.looks > LOOKS {
            return self.leave_run(number);
        }
        self.send_ask(number, None);
    }

    fn write_begin(&mut self, number: usize, (expected, attempt): Next, former: Option<Record>) {
        let caller = &mut self.callers[number];
        let (Some(run), Some(ownership)) = (&mut caller.run, caller.ownership.clone()) else {
            return;
        };
        let begun = entry(attempt, ownership.fence_token, run.remember);
        run.begun = Some(begun.clone());
        let (process, key) = (caller.process, caller.key);
        let undo = Arc::new(undo(begun.version(), former));
        let begins = self.step(process, key, |machine, env| machine.begin(env, &ownership, undo));
        if begins.is_err() {
            return self.leave_run(number);
        }
        let write = RecordWrite::under(
            self.keys[key].clone(),
            beginning(expected, begun),
            ownership.lease_id,
        );
        self.send_ask(number, Some(write));
    }

    fn begin_answered(&mut self, number: usize, answer: Option<Answer>) {
        let caller = &mut self.callers[number];
        let (Some(run), Some(ownership)) = (&mut caller.run, caller.ownership.clone()) else {
            return;
        };
        let found = match answer {
            Some(Answer::Written(true)) => return self.enter_run(number),
            Some(Answer::Written(false)) => return self.read_record(number),
            None => {
                run.sent = true;
                return self.read_record(number);
            }
            Some(Answer::Found(found)) => found,
        };
        let (process, key) = (caller.process, caller.key);
        let now = self.local(process);
        if ownership.end_if_over(now).0.is_some() {
            return self.leave_run(number);
        }
        let run = self.callers[number].run.as_mut().expect("it was one");
        let version = found.as_ref().map(Record::version);
        let ours = run.begun.as_ref().map(RecordEntry::version);
        if run.sent && version.is_some() && version == ours {
            return self.enter_run(number);
        }
        let policy = run.policy;
        let pending = self.processes[process].cells[key].machine.undo(&ownership);
        let pending = pending.map(|undo| undo.of_lease(ownership.fence_token));
        let pending = pending.filter(|undo| undo.expected() == version);
        let (found, instead) = match (found, pending) {
            (Some(found), Some(undo)) => (before(&found, undo), version),
            (found, _) => (found, None),
        };
        if found
            .as_ref()
            .is_some_and(|found| is_later(found, ownership.fence_token))
        {
            self.step(process, key, |machine, env| machine.handle_gone(env, &ownership));
            return self.leave_run(number);
        }
        if let Some(found) = found
            .as_ref()
            .filter(|found| found.state == RecordState::Processing)
        {
            self.check_crashed(number, key, found.version(), instead.is_some());
        }
        let former = taken_back_to(found.as_ref());
        match decide_inside(found, &policy, None) {
            Decision::Run { expected, attempt } => {
                self.write_begin(number, (instead.or(expected), attempt), former);
            }
            _ => self.leave_run(number),
        }
    }

    fn enter_run(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        let forced = self.checks.forced.contains(&ownership.lease_id) || self.plan.faults.big_jumps;
        let begins = self.step(process, key, |machine, env| machine.begun(env, &ownership));
        if begins.is_err() {
            return self.leave_run(number);
        }
        let Some(run) = &mut self.callers[number].run else {
            return;
        };
        run.step = Step::Inside;
        let Some(version) = run.begun.as_ref().map(RecordEntry::version) else {
            return;
        };
        tell!(
            self,
            "P{process} caller {number} runs attempt {}",
            version.attempts
        );
        let now = self.store.clock(self.now);
        let checks = &mut self.checks.keys[key].runs;
        let is_of_this_run = version.fence_token > checks.success;
        let twice = checks.entered.iter().any(|(entered, _)| *entered == version)
            || is_of_this_run && checks.attempts.contains(&version.attempts);
        let again = checks.succeeded.is_some_and(|until| now < until) && self.plan.faults.clock_back == 0;
        // Somebody else may have run it meanwhile.
        let again = again && !forced;
        checks.entered.push((version, number));
        if is_of_this_run {
            checks.attempts.push(version.attempts);
        }
        if again {
            self.fail(format!("caller {number} runs what has succeeded"));
        } else if twice {
            self.fail(format!("caller {number} begins an attempt that has begun"));
        }
        let delay = self.section();
        self.after(delay, What::Body(number));
    }

    /// It did nothing, so the lock may be handed over.
    fn leave_run(&mut self, number: usize) {
        self.leave_hold(number, true);
    }

    fn leave_hold(&mut self, number: usize, in_order: bool) {
        let caller = &mut self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        caller.holds = 0;
        self.gone(number);
        self.step(process, key, |machine, env| {
            machine.leave(env, &ownership, in_order, None)
        });
    }

    // ── The end ──────────────────────────────────────────────────────────────────────────────────────

    /// The body of a run returned. Its caller has one hold left.
    pub(crate) fn end_run(&mut self, number: usize) {
        let fails = self.tape.chance(700);
        let caller = &mut self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        let closed = self.step(process, key, |machine, env| machine.close(env, &ownership));
        let alone = closed.is_ok();
        let Some(run) = &mut self.callers[number].run else {
            return;
        };
        let Some(begun) = run.begun.clone() else { return };
        let state = if fails {
            RecordState::Failed
        } else {
            RecordState::Succeeded
        };
        let outcome = RecordEntry {
            state,
            // Attempts count on for the whole schedule, unless one succeeds.
            keep: if fails {
                Duration::from_hours(1)
            } else {
                run.remember
            },
            ..begun.clone()
        };
        let wanted = outcome.version();
        run.step = Step::Ends { alone, wanted };
        run.looks = 0;
        let change = dblock_core::store::RecordChange::Replace(begun.version(), outcome);
        let mut write = RecordWrite::new(self.keys[key].clone(), change);
        if alone {
            write.lease = WriteLease::Ends(ownership.lease_id);
        }
        self.send_ask(number, Some(write));
    }

    fn end_answered(&mut self, number: usize, answer: Option<Answer>, alone: bool, wanted: RecordVersion) {
        let caller = &mut self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let (Some(run), Some(ownership)) = (&mut caller.run, caller.ownership.clone()) else {
            return;
        };
        let written = match answer {
            Some(Answer::Written(written)) => written,
            Some(Answer::Found(found)) => found.is_some_and(|found| found.version() == wanted),
            None if run.looks < 3 => {
                run.looks += 1;
                return self.send_ask(number, None);
            }
            None => false,
        };
        let lost = ownership.end_if_over(self.local(process)).0.is_some();
        if written && alone && !lost {
            self.callers[number].holds = 0;
            self.gone(number);
            self.step(process, key, |machine, env| {
                machine.handle_transaction_over(env, &ownership)
            });
        } else {
            // The outcome may have freed the row although nobody knows it.
            self.leave_hold(number, false);
        }
    }

    // ── Requests for records ─────────────────────────────────────────────────────────────────────────

    fn send_ask(&mut self, number: usize, write: Option<RecordWrite>) {
        let process = self.callers[number].process;
        let fate = self.fate(process);
        tell!(
            self,
            "P{process} caller {number} sends {:?} ({fate:?})",
            write.as_ref().map(|write| &write.change)
        );
        let ask = self.asks.len();
        self.asks.push(Ask {
            caller: number,
            process,
            incarnation: self.processes[process].incarnation,
            write,
            fate,
            answer: None,
        });
        if let Some(run) = &mut self.callers[number].run {
            run.asked = ask;
        }
        let delay = self.delay();
        match fate {
            Fate::Goes | Fate::LostAfter => self.after(delay, What::AskArrives(ask)),
            Fate::Late => {
                let later = self.tape.pick(&[0, 30, 200, 1000, 3000, 5000, 10_000, 30_000]) * MS;
                self.after(delay + later, What::AskArrives(ask));
            }
            _ => return self.after(delay, What::AskAnswered(ask)),
        }
        self.after(TIMEOUT, What::AskAnswered(ask));
        if matches!(fate, Fate::Late | Fate::LostAfter) && self.tape.below(2) == 0 {
            self.after(delay, What::AskAnswered(ask));
        }
    }

    /// The store carries the request out, when the rows that it needs are not locked.
    pub(crate) fn ask_arrives(&mut self, ask: usize) {
        let Ask {
            caller, write, fate, ..
        } = &self.asks[ask];
        let (number, write, fate) = (*caller, write.clone(), *fate);
        let key = self.callers[number].key;
        let lock = self.store.rows[key].lock;
        let row_too = write
            .as_ref()
            .is_some_and(|it| it.needs().is_some() || it.ends().is_some());
        if write.is_some() && (matches!(lock, Lock::Batch(_)) || row_too && lock != Lock::Nobody) {
            return self.after(2 * MS, What::AskArrives(ask));
        }
        let found = self.record(key);
        let answer = match write {
            None => Answer::Found(found),
            Some(write) => Answer::Written(self.write_record(number, key, &write, found.as_ref())),
        };
        tell!(
            self,
            "  the record of {} for caller {number}: {answer:?}",
            self.keys[key]
        );
        self.asks[ask].answer = Some(answer);
        if fate == Fate::Goes {
            let delay = self.delay();
            self.after(delay, What::AskAnswered(ask));
        }
    }

    fn write_record(
        &mut self,
        number: usize,
        key: usize,
        write: &RecordWrite,
        found: Option<&Record>,
    ) -> bool {
        let now = self.store.clock(self.now);
        let row = self.store.row(key, self.now);
        let (live, lease) = (row.is_held(), row.lease_id);
        let needs = write.needs().is_none_or(|needed| live && needed == lease);
        let effect = change_record(&write.key, &write.change, found, now);
        if effect == RecordEffect::Nothing || !needs {
            return false;
        }
        let record = effect.left(None);
        let success = record
            .as_ref()
            .filter(|record| record.state == RecordState::Succeeded);
        if let Some(success) = success {
            let runs = &mut self.checks.keys[key].runs;
            runs.succeeded = Some(success.keep_until);
            runs.success = success.fence_token;
            runs.attempts.clear();
        }
        self.store.rows[key].record = record;
        if write.ends() == Some(lease) && live {
            let row = self.store.row(key, self.now);
            row.reentrant_count = 0;
            row.next = None;
            self.checks.keys[key].runs.released.push(lease);
            if self.checks.keys[key].runs.children.contains(&number) {
                self.fail(format!(
                    "the outcome of caller {number} frees the row beside its child"
                ));
            }
            self.tell_released(key);
        }
        self.store.flush();
        true
    }

    pub(crate) fn ask_answered(&mut self, ask: usize) {
        let Ask {
            caller,
            process,
            incarnation,
            fate,
            ..
        } = self.asks[ask];
        let its = &self.processes[process];
        if !its.alive || its.incarnation != incarnation || self.callers[caller].state != State::Inside {
            return;
        }
        let Some(run) = self.callers[caller].run.as_mut().filter(|run| run.asked == ask) else {
            return;
        };
        run.asked = usize::MAX;
        let step = run.step;
        let answer = self.asks[ask].answer.clone().filter(|_| fate == Fate::Goes);
        match step {
            Step::Begins => self.begin_answered(caller, answer),
            Step::Ends { alone, wanted } => self.end_answered(caller, answer, alone, wanted),
            Step::Waits | Step::Inside => {}
        }
    }

    // ── Children ─────────────────────────────────────────────────────────────────────────────────────

    /// A child of the body enters, and may stay longer than the body.
    pub(crate) fn child_enters(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        let kept = self
            .checks
            .transactions
            .iter()
            .any(|open| open.releases.is_some() && open.ownership.lease_id == ownership.lease_id);
        let children = &self.checks.keys[key].runs.children;
        if kept || children.contains(&number) {
            return;
        }
        let entered = self.step(process, key, |machine, env| machine.enter(env, &ownership, None));
        if entered.is_ok() {
            tell!(self, "P{process} a child of caller {number} enters");
            self.checks.keys[key].runs.children.push(number);
            let delay = self.section();
            self.after(delay, What::ChildLeaves(number));
        }
    }

    pub(crate) fn child_leaves(&mut self, number: usize) {
        let caller = &self.callers[number];
        let (process, key) = (caller.process, caller.key);
        let children = &mut self.checks.keys[key].runs.children;
        let before = children.len();
        children.retain(|child| *child != number);
        if before == children.len() {
            return;
        }
        let Some(ownership) = caller.ownership.clone() else {
            return;
        };
        tell!(self, "P{process} the child of caller {number} leaves");
        self.step(process, key, |machine, env| {
            machine.leave(env, &ownership, false, None)
        });
    }

    /// The children of a process that dies.
    pub(crate) fn children_die(&mut self, process: usize) {
        let callers = &self.callers;
        for key in &mut self.checks.keys {
            key.runs
                .children
                .retain(|number| callers[*number].process != process);
        }
    }

    // ── Checks ───────────────────────────────────────────────────────────────────────────────────────

    /// A caller takes the attempt of this version for crashed.
    fn check_crashed(&mut self, number: usize, key: usize, version: RecordVersion, restored: bool) {
        let checks = &self.checks.keys[key].runs;
        let entered = checks.entered.iter().find(|(entered, _)| *entered == version);
        if let Some((_, running)) = entered {
            let running = *running;
            let forced = |at: usize| {
                let own = self.callers[at].ownership.as_ref();
                own.is_some_and(|own| self.checks.forced.contains(&own.lease_id))
            };
            let excused = self.plan.faults.big_jumps || forced(running) || forced(number);
            if running != number && self.is_inside(running) && !excused {
                self.fail(format!(
                    "caller {number} takes the run of caller {running} for crashed"
                ));
            }
            return;
        }
        // One that was taken back to has another token than its body had.
        let of = checks
            .leases
            .iter()
            .rev()
            .find(|(token, _)| *token == version.fence_token);
        let Some((_, lease)) = of else { return };
        let attempted = checks.attempts.contains(&version.attempts);
        let excused = attempted || restored || checks.ghosts.contains(&version.attempts);
        if !checks.released.contains(lease) {
            self.checks.keys[key].runs.ghosts.push(version.attempts);
        } else if !excused {
            let lease = *lease;
            self.fail(format!(
                "caller {number} finds an attempt in doubt whose body never began, of {}",
                show::lease(lease)
            ));
        }
    }
}

fn entry(attempts: u32, fence_token: i64, keep: Duration) -> RecordEntry {
    RecordEntry {
        state: RecordState::Processing,
        attempts,
        fence_token,
        fingerprint: None,
        result: None,
        error: None,
        holder: String::new(),
        keep,
    }
}
