//! The network between a process and its store: delays, broken connections, and statements that are carried
//! out after their sender has given up.

use std::time::Duration;

use dblock_core::machine::dispatch::MAX_BATCH;
use dblock_core::store::{self, Action, Kind, Outcome, Released, Request, StoreError, StoreErrorKind};

use crate::batch::{Batch, Fate};
use crate::ledger::names;
use crate::plan::{MS, S, US, nanos};
use crate::show;
use crate::sometimes::Sometimes;
use crate::store::{Lock, WakeUp};
use crate::world::{Phase, What, World, tell};

/// The order of the statements of a mixed batch.
const KINDS: [Kind; 3] = [Kind::Extend, Kind::Release, Kind::Acquire];

impl World {
    /// How long something takes on its way.
    pub(crate) fn delay(&mut self) -> u64 {
        if self.plan.near {
            return 30 * US;
        }
        let exact = u64::from(self.tape.below_or_few(64, &[0])) * 7 * US;
        let slow = self.plan.faults.slow_network;
        let base = if self.phase == Phase::Busy && self.tape.chance(slow) {
            self.tape.pick(&[20, 100, 400, 1000, 2500, 4000]) * MS
        } else {
            self.tape.pick(&[100, 300, 1000]) * US
        };
        base + exact
    }

    pub(crate) fn fate(&mut self, process: usize) -> Fate {
        let faults = self.plan.faults.clone();
        let calm = self.phase != Phase::Busy;
        if self.processes[process].cut {
            return self.tape.pick(&[Fate::Unreachable, Fate::LostBefore, Fate::Late]);
        }
        if calm {
            return Fate::Goes;
        }
        if self.tape.chance(faults.errors) {
            return self
                .tape
                .pick(&[Fate::Conflict, Fate::Unreachable, Fate::RolledBack, Fate::Refused]);
        }
        if self.tape.chance(faults.lost) {
            return self.tape.pick(&[Fate::LostAfter, Fate::LostBefore]);
        }
        if self.tape.chance(faults.late) {
            return Fate::Late;
        }
        Fate::Goes
    }

    pub(crate) fn send(
        &mut self,
        process: usize,
        lane: usize,
        requests: Vec<(usize, Request)>,
        limit: Duration,
    ) {
        let fate = self.fate(process);
        if self.trace.is_some() {
            for (key, request) in &requests {
                let text = format!(
                    "P{process} sends {}: {} ({fate:?})",
                    self.keys[*key],
                    show::request(request)
                );
                self.tell(&text);
            }
        }
        let batch = Batch {
            process,
            incarnation: self.processes[process].incarnation,
            lane,
            answers: vec![None; requests.len()],
            requests,
            next: 0,
            fate,
            times_out_at: self.now + nanos(limit),
            breaks: false,
            answered_at: None,
        };
        for (key, _) in &batch.requests {
            self.processes[process].cells[*key].on_its_way = true;
        }
        self.batches.push(batch);
        let number = self.batches.len() - 1;
        let delay = self.delay();
        match fate {
            Fate::Unreachable => {
                self.answer_all(number, &error(StoreErrorKind::Unreachable));
                self.deliver_at(number, self.now + delay);
            }
            Fate::LostBefore => {
                let hangs = self.tape.last_of(4);
                let at = if hangs { u64::MAX } else { self.now + delay };
                self.break_at(number, at);
            }
            Fate::Late => {
                let hangs = self.tape.below(2) == 1;
                let at = if hangs { u64::MAX } else { self.now + delay };
                self.break_at(number, at);
                let later = self
                    .tape
                    .pick(&[0, 1, 30, 200, 1000, 1500, 3000, 5000, 10_000, 30_000])
                    * MS;
                self.after(delay + later, What::Arrive(number));
            }
            _ => self.after(delay, What::Arrive(number)),
        }
    }

    fn answer_all(&mut self, number: usize, answer: &StoreError) {
        for place in &mut self.batches[number].answers {
            *place = Some(Err(answer.clone()));
        }
    }

    /// The answers reach the process, if it still waits for them then.
    fn deliver_at(&mut self, number: usize, at: u64) {
        if at > self.batches[number].times_out_at {
            self.break_at(number, at);
        } else {
            self.at(at, What::Deliver(number));
        }
    }

    /// The process gets no answer to the batch from here on.
    fn break_at(&mut self, number: usize, at: u64) {
        let batch = &mut self.batches[number];
        if !batch.breaks {
            batch.breaks = true;
            let at = at.min(batch.times_out_at).max(self.now);
            self.at(at, What::Break(number));
        }
    }

    // ── In the store ─────────────────────────────────────────────────────────────────────────────────

    /// The next statement of the batch is executed.
    pub(crate) fn arrive(&mut self, number: usize) {
        if number < self.crashed {
            return self.break_at(number, self.now);
        }
        let batch = &mut self.batches[number];
        let kind = loop {
            let Some(kind) = KINDS.get(batch.next) else {
                return self.carried_out(number);
            };
            batch.next += 1;
            if batch
                .requests
                .iter()
                .any(|(_, request)| Kind::of(&request.action) == *kind)
            {
                break *kind;
            }
        };
        let fate = batch.fate;
        if matches!(fate, Fate::Conflict | Fate::Refused) {
            let kind = if fate == Fate::Conflict {
                StoreErrorKind::Conflict
            } else {
                StoreErrorKind::Other
            };
            self.answer_all(number, &error(kind));
            return self.carried_out(number);
        }
        for index in 0..self.batches[number].requests.len() {
            let (key, request) = &self.batches[number].requests[index];
            if Kind::of(&request.action) != kind {
                continue;
            }
            let snapshot = matches!(request.action, Action::Acquire(_)) && self.tape.below(2) == 1;
            let answer = self.store.execute((*key, request), (number, self.now, snapshot));
            if self.trace.is_some() {
                let line = format!(
                    "  {}: {} → {}",
                    self.keys[*key],
                    show::request(request),
                    show::answer(&answer)
                );
                self.tell(&line);
            }
            let (_, request) = &self.batches[number].requests[index];
            if self.batches[number].answered_at.is_some() {
                self.came.note(Sometimes::CarriedOutTooLate);
            }
            let late = (fate == Fate::Late).then(|| {
                // Its release is repeated until the ttl has passed. An acquire that is carried out after that
                // expires by itself.
                let ttl = match &request.action {
                    Action::Acquire(ask) => ask.ttl,
                    Action::Transfer(ask) => ask.ttl,
                    _ => return 0,
                };
                let batch = &self.batches[number];
                let until = batch.answered_at.unwrap_or(batch.times_out_at) + nanos(ttl);
                if self.now < until { until + S } else { u64::MAX }
            });
            if let Ok(Outcome::Granted { fence_token, .. }) = &answer {
                let checks = &mut self.checks.keys[self.batches[number].requests[index].0];
                checks.runs.granted(*fence_token, names(request));
                // A ticket was taken out.
                let taken_out = matches!(request.action, Action::Transfer(_));
                checks
                    .closed
                    .take_if(|(_, by)| taken_out && *by == request.lease_id);
            }
            self.checks.executed(request, &answer, late);
            self.batches[number].answers[index] = Some(answer);
        }
        let slow = self.plan.faults.slow_commits;
        let takes = if self.phase == Phase::Busy && self.tape.chance(slow) {
            self.tape.pick(&[20, 100, 500, 1000, 2000]) * MS
        } else {
            self.tape.pick(&[200, 50, 1500]) * US
        };
        let at = self.now + takes;
        self.at(at, What::Commit(number));
        if at > self.batches[number].times_out_at {
            self.break_at(number, at);
        }
    }

    /// The statement that was executed last ends.
    pub(crate) fn commit(&mut self, number: usize) {
        let batch = &self.batches[number];
        let commits = batch.fate != Fate::RolledBack && number >= self.crashed;
        let kind = KINDS[batch.next - 1];
        for index in 0..self.batches[number].requests.len() {
            let (key, request) = &self.batches[number].requests[index];
            let key = *key;
            if Kind::of(&request.action) != kind || self.store.rows[key].lock != Lock::Batch(number) {
                continue;
            }
            if !commits {
                self.store.rows[key].lock = Lock::Nobody;
                continue;
            }
            let answer = self.batches[number].answers[index].clone();
            let outcome = answer.and_then(Result::ok);
            let (_, request) = &self.batches[number].requests[index];
            self.store.commit(key, outcome.as_ref(), request.record.is_some());
            if let Some(outcome) = outcome {
                if let Outcome::Released(Released::Freed | Released::PassedOn) = outcome {
                    self.checks.keys[key].runs.released.push(request.lease_id);
                }
                self.tell_of(key);
            }
        }
        if commits {
            self.arrive(number);
        } else {
            self.break_at(number, self.now);
        }
    }

    /// All statements of the batch are committed.
    fn carried_out(&mut self, number: usize) {
        let delay = self.delay();
        match self.batches[number].fate {
            Fate::LostAfter => {
                self.came.note(Sometimes::AnswerLost);
                let hangs = self.tape.last_of(4);
                let at = if hangs { u64::MAX } else { self.now + delay };
                self.break_at(number, at);
            }
            _ => self.deliver_at(number, self.now + delay),
        }
    }

    // ── Back in the process ──────────────────────────────────────────────────────────────────────────

    pub(crate) fn deliver(&mut self, number: usize) {
        self.answer(number, None);
    }

    pub(crate) fn break_off(&mut self, number: usize) {
        self.answer(number, Some(&error(StoreErrorKind::Interrupted)));
    }

    fn answer(&mut self, number: usize, failure: Option<&StoreError>) {
        let batch = &mut self.batches[number];
        let (process, lane) = (batch.process, batch.lane);
        let its = &self.processes[process];
        let answered = batch.answered_at.replace(self.now).is_some();
        if answered || !its.alive || its.incarnation != batch.incarnation {
            return;
        }
        let count = batch.requests.len();
        self.processes[process].dispatch.answered(lane);
        let most_together = if failure.is_some() {
            (count / 8).max(1)
        } else {
            MAX_BATCH
        };
        for index in 0..count {
            let batch = &mut self.batches[number];
            let key = batch.requests[index].0;
            let answer = match failure {
                Some(error) => Err(error.clone()),
                None => batch.answers[index]
                    .take()
                    .unwrap_or_else(|| Err(error(StoreErrorKind::Interrupted))),
            };
            tell!(
                self,
                "P{process} receives the answer for {}: {}",
                self.keys[key],
                show::answer(&answer)
            );
            if let Ok(outcome) = &answer {
                self.sees_answer(process, key, outcome);
            }
            let cell = &mut self.processes[process].cells[key];
            cell.most_together = most_together;
            cell.on_its_way = false;
            self.step(process, key, |machine, env| machine.handle_answer(env, answer));
        }
        self.drive_now(process);
    }

    /// Sends the wake-up of a committed statement.
    pub(crate) fn tell_of(&mut self, key: usize) {
        let Some(says) = self.store.rows[key].tells.take() else {
            return;
        };
        if let store::WakeUp::PassedOn { lease_id, .. } = says {
            self.checks.passed_on(lease_id);
            self.sees_passed_on(lease_id);
        }
        self.wake_up(WakeUp { key, says });
    }

    /// Tells that a key was freed in another way.
    pub(crate) fn tell_released(&mut self, key: usize) {
        let says = store::WakeUp::Released(self.keys[key].clone());
        self.wake_up(WakeUp { key, says });
    }

    fn wake_up(&mut self, wake_up: WakeUp) {
        if !self.plan.wake_ups {
            return;
        }
        self.checks.wake_ups.push(wake_up);
        let number = self.checks.wake_ups.len() - 1;
        for process in 0..self.processes.len() {
            if !self.processes[process].subscribed || self.processes[process].cut {
                continue;
            }
            let faults = &self.plan.faults;
            let (lost, repeated) = (faults.lost_wake_ups, faults.repeated_wake_ups);
            if self.tape.chance(lost) {
                continue;
            }
            let delay = self.delay();
            self.after(
                delay,
                What::WakeUp {
                    process,
                    wake_up: number,
                },
            );
            if self.tape.chance(repeated) {
                let delay = self.tape.pick(&[1, 30, 300, 1000, 2500, 5000, 12_000]) * MS;
                self.after(
                    delay,
                    What::WakeUp {
                        process,
                        wake_up: number,
                    },
                );
            }
        }
    }
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, String::new())
}
