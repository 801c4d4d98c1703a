//! The effect of each event. `None`: it cannot happen now.

use super::record::{Record, State as Stands, write};
use super::{
    Attempt, BEGUN, CALLS, CRASHED, CRASHES, FINAL, Guard, Kind, LAST_TICK, Phase, Records, State, Step,
    TOLD, TTL, Write,
};

impl Records {
    pub(super) fn step(self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Tick => {
                state.now = (state.now < LAST_TICK).then_some(state.now + 1)?;
            }
            Step::Acquire(process) => self.acquire(state, process)?,
            Step::Read(process) => self.read(state, process)?,
            Step::Execute(process) => self.execute(state, process)?,
            Step::ExecuteLate(late) => {
                let write = state.late.remove(late);
                self.carry_out(state, write)?;
            }
            Step::Lose(late) => {
                state.late.remove(late);
            }
            Step::Work(process) => self.work(state, process)?,
            Step::Fail(process) => {
                let Phase::Inside(attempt) = state.processes[process].phase else {
                    return None;
                };
                state.processes[process].phase = Phase::Writing(Write::Finish {
                    attempt,
                    stands: Stands::Failed,
                });
            }
            Step::Commit(transaction) => self.commit(state, transaction),
            Step::RollBack(transaction) => {
                let attempt = state.transactions.remove(transaction);
                state.leave(attempt);
            }
            Step::Crash(process) => {
                state.crashes = (state.crashes < CRASHES).then_some(state.crashes + 1)?;
                match std::mem::replace(&mut state.processes[process].phase, Phase::Idle) {
                    Phase::Idle => return None,
                    Phase::Writing(write) => state.late.push(write),
                    _ => {}
                }
            }
            Step::Purge => {
                let processing = state.record?.stands == Stands::Processing;
                // A run that has ended is remembered for longer than this model lasts.
                if !processing || self.has(Guard::PurgeSparesProcessing) {
                    return None;
                }
                state.record = None;
            }
        }
        Some(())
    }

    /// Whether a transaction keeps everybody else from the rows.
    fn is_locked(self, state: &State) -> bool {
        !state.transactions.is_empty() && self.has(Guard::TransactionLocksRows)
    }

    fn acquire(self, state: &mut State, process: usize) -> Option<()> {
        let locked = self.is_locked(state);
        let held = state.lease.is_some_and(|(_, until)| state.now < until);
        let site = &mut state.processes[process];
        if site.phase != Phase::Idle || site.calls == CALLS || locked || held {
            return None;
        }
        site.calls += 1;
        state.last_token += 1;
        let (token, until) = (state.last_token, state.now + TTL);
        site.phase = Phase::Holds { token, until };
        state.lease = Some((token, until));
        Some(())
    }

    /// Reads the record, and decides about it.
    fn read(self, state: &mut State, process: usize) -> Option<()> {
        let Phase::Holds { token, until } = state.processes[process].phase else {
            return None;
        };
        let lost = state.now >= until && self.has(Guard::CrashIsOver);
        let is_final = self.has(Guard::SuccessIsFinal);
        let stops = self.kind == Kind::Stop && self.has(Guard::StopStops);
        let found = state.record;
        let stands = found.map(|found| found.stands);
        let ends = match stands {
            Some(Stands::Succeeded) if is_final => true,
            Some(Stands::Processing) if stops => true,
            _ => lost,
        };
        if ends {
            state.free(token);
            state.processes[process].phase = Phase::Idle;
            return Some(());
        }
        let before = found.filter(|_| self.has(Guard::AttemptsAreCounted));
        let number = before.map_or(0, |found| found.attempt.number) + 1;
        let attempt = Attempt { token, number };
        state.processes[process].phase = Phase::Writing(Write::Begin { found, attempt });
        Some(())
    }

    fn execute(self, state: &mut State, process: usize) -> Option<()> {
        let Phase::Writing(write) = state.processes[process].phase else {
            return None;
        };
        let written = self.carry_out(state, write)?;
        state.processes[process].phase = match write {
            Write::Begin { attempt, .. } if written => {
                if state.begun.contains(&attempt.number) {
                    state.violates(BEGUN);
                }
                state.begun.push(attempt.number);
                Phase::Inside(attempt)
            }
            // It would read anew, and find what somebody else has begun.
            Write::Begin { attempt, .. } => {
                state.free(attempt.token);
                Phase::Idle
            }
            Write::Finish { attempt, stands } => {
                if written && stands == Stands::Succeeded && state.succeeded != Some(attempt) {
                    state.violates(TOLD);
                }
                Phase::Idle
            }
        };
        Some(())
    }

    /// Changes the record, unless it is another one. `None` while a transaction has it locked.
    fn carry_out(self, state: &mut State, request: Write) -> Option<bool> {
        if self.is_locked(state) {
            return None;
        }
        let (expected, new, checks) = match request {
            Write::Begin { found, attempt } => {
                let begun = Record {
                    stands: Stands::Processing,
                    attempt,
                };
                (found, begun, Guard::BeginChecksRecord)
            }
            Write::Finish { attempt, stands } => {
                let begun = Record {
                    stands: Stands::Processing,
                    attempt,
                };
                let outcome = Record { stands, attempt };
                (Some(begun), outcome, Guard::FinishChecksAttempt)
            }
        };
        let expected = if self.has(checks) { expected } else { state.record };
        let found = state.record.map(|found| self.as_shown(found, checks));
        let expected = expected.map(|expected| self.as_shown(expected, checks));
        let Some(written) = write(found, expected, new) else {
            return Some(false);
        };
        if let Write::Begin {
            found: Some(found), ..
        } = request
            && found.stands == Stands::Processing
            && state.record == Some(found)
            && state.lives(found.attempt.token)
        {
            state.violates(CRASHED);
        }
        state.put(written);
        if let Write::Finish { attempt, .. } = request {
            state.free(attempt.token);
        }
        Some(true)
    }

    /// Without a rule, dblock's own rules are shown another record: a failure instead of a success, or an
    /// older token.
    fn as_shown(self, mut record: Record, checks: Guard) -> Record {
        let unconditioned = checks == Guard::FinishChecksAttempt && !self.has(checks);
        if record.stands == Stands::Succeeded && (unconditioned || !self.has(Guard::SuccessIsFinal)) {
            record.stands = Stands::Failed;
        }
        if unconditioned || !self.has(Guard::CrashIsOver) {
            record.attempt.token = 0;
        }
        record
    }

    fn work(self, state: &mut State, process: usize) -> Option<()> {
        let Phase::Inside(attempt) = state.processes[process].phase else {
            return None;
        };
        if self.kind != Kind::CompleteIn {
            state.done += 1;
            state.processes[process].phase = Phase::Writing(Write::Finish {
                attempt,
                stands: Stands::Succeeded,
            });
            return Some(());
        }
        if self.is_locked(state) {
            return None;
        }
        let begun = Record {
            stands: Stands::Processing,
            attempt,
        };
        let is_its_own = state.record == Some(begun) && state.lives(attempt.token);
        if is_its_own || !self.has(Guard::CompleteChecksAttempt) {
            state.done += u8::from(!self.has(Guard::WorkIsInTransaction));
            state.transactions.push(attempt);
            state.processes[process].phase = Phase::Completing(attempt);
        } else {
            state.processes[process].phase = Phase::Idle;
        }
        Some(())
    }

    fn commit(self, state: &mut State, transaction: usize) {
        let attempt = state.transactions.remove(transaction);
        state.done += u8::from(self.has(Guard::WorkIsInTransaction));
        let stands = Stands::Succeeded;
        state.put(Record { stands, attempt });
        state.free(attempt.token);
        state.leave(attempt);
    }
}

impl State {
    fn put(&mut self, new: Record) {
        let stands = Stands::Succeeded;
        if self
            .succeeded
            .is_some_and(|attempt| new != Record { stands, attempt })
        {
            self.violates(FINAL);
        }
        if new.stands == stands {
            self.succeeded = self.succeeded.or(Some(new.attempt));
        }
        self.record = Some(new);
    }

    /// Ends a lease, unless it is over or another's.
    fn free(&mut self, token: u8) {
        if self.lives(token) {
            self.lease = None;
        }
    }

    /// The body of that attempt is over, if it is still there.
    fn leave(&mut self, attempt: Attempt) {
        for site in &mut self.processes {
            if site.phase == Phase::Completing(attempt) {
                site.phase = Phase::Idle;
            }
        }
    }
}
