//! Which steps there are, and what each does.

use super::bounds::Event;
use super::process::Hears;
use super::state::{Crashed, Forced, Site, State};
use super::{Heard, MOST_HOLDS, Protocol, Step};
use crate::guards::Guard;
use crate::store::{Action, Process, micros};

impl Protocol {
    pub(super) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let locked = self.is_locked(state);
        may(Step::Tick, state.now < self.bounds.last_tick);
        may(Step::Jump(self.bounds.jump), state.ahead < self.bounds.jump);
        may(Step::EndCheck, state.checked.is_some());
        may(Step::Commit, state.uncommitted.is_some());
        let force = self.may(Event::ForceRelease) && state.forced == Forced::Not;
        may(Step::ForceRelease, force && state.held().is_some() && !locked);
        may(Step::Purge, self.may_purge(state) && !locked);
        for told in &state.told {
            let hears = self.hears(state, *told);
            may(
                Step::Hear(told.lease, Heard(*told, hears)),
                hears != Hears::Nothing,
            );
        }
        for index in 0..state.late.len() {
            let request = state.late[index];
            let fresh = index == 0 || state.late[index - 1] != request;
            may(Step::ExecuteLate(index, request), fresh && !locked);
        }
        for process in (0..).map(Process).take(state.sites.len()) {
            self.steps_of(state, process, steps);
        }
    }

    fn steps_of(&self, state: &State, process: Process, steps: &mut Vec<Step>) {
        let site = &state.sites[process.index()];
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let locked = self.is_locked(state);
        let idle = site.asked.is_none();
        if let Some(asked) = &site.asked {
            let acquire = matches!(asked.request.action, Action::Acquire { .. });
            let sent = asked.answer.is_none();
            // An acquire skips a row that is locked.
            let skips = acquire && state.uncommitted.is_some_and(|(commits, _)| commits != process);
            may(Step::Execute(process), sent && (!locked || skips));
            may(
                Step::Begin(process),
                sent && !locked && self.may(Event::SlowCommit),
            );
            may(Step::Answer(process), !sent);
            may(
                Step::GiveUp(process, self.fate(state, asked)),
                self.may_give_up(state, asked),
            );
            let copy = self.may(Event::Copy) && !self.is_calm(process) && state.copied.is_none();
            may(
                Step::Copy(process),
                copy && acquire && sent && state.late.len() < self.bounds.late,
            );
        }
        if let Some(inside) = &site.inside {
            let runs = self.is_inside(inside, state.now);
            let missing = inside.holds != inside.row_holds;
            may(
                Step::Extend(process),
                idle && runs && (self.may(Event::Renew) || missing),
            );
            may(
                Step::Nest(process),
                self.may(Event::Nest) && inside.holds < MOST_HOLDS,
            );
            may(
                Step::HandOver(process),
                self.may(Event::HandOver) && !self.is_calm(process) && self.may_hand_over(inside, state.now),
            );
            let flushed = inside.row_token == inside.token || !self.has(Guard::FlushBeforeCheck);
            let check = self.may(Event::Check) && !self.is_calm(process) && state.checked.is_none();
            may(Step::Check(process), check && flushed);
            may(Step::Leave(process), idle || inside.holds > 1);
        } else {
            let fresh = site.used < self.bounds.leases[process.index()];
            may(Step::Ask(process), idle && (site.waits.is_some() || fresh));
        }
        may(
            Step::Withdraw(process),
            self.may(Event::Withdraw) && idle && site.waits.is_some(),
        );
        for owed in &site.owed {
            may(Step::Release(owed.lease), idle);
        }
        let commits = state.uncommitted.is_some_and(|(commits, _)| commits == process);
        let lives = Site {
            used: site.used,
            ..Site::default()
        } != *site;
        may(
            Step::Crash(process),
            self.may(Event::Crash) && !self.is_calm(process) && state.crashed.is_none() && lives && !commits,
        );
    }

    /// A transaction locks the row: requests are not carried out.
    fn is_locked(&self, state: &State) -> bool {
        state.uncommitted.is_some() || (state.checked.is_some() && self.has(Guard::CheckLocksRow))
    }

    fn may_purge(&self, state: &State) -> bool {
        let now = state.store_now();
        let idle = state.is_idle() || !self.has(Guard::PurgeOnlyIdle);
        let purge = self.may(Event::Purge) || !self.has(Guard::PurgeOnlyIdle);
        let below = |ceiling: i64| ceiling < micros(now) || !self.has(Guard::PurgeBelowClock);
        state
            .row
            .is_some_and(|row| !row.is_held(now) && below(row.ceiling.0))
            && idle
            && purge
    }

    pub(super) fn step(&self, state: &mut State, step: Step) -> Option<()> {
        self.take(state, step)?;
        let process = match step {
            Step::Ask(process) | Step::Extend(process) | Step::Withdraw(process) | Step::Leave(process) => {
                process
            }
            Step::Release(lease) | Step::Hear(lease, _) => lease.process,
            _ => return Some(()),
        };
        match state.site(process).asked.filter(|asked| asked.answer.is_none()) {
            Some(asked) if self.is_prompt(process, asked.request.action) => {
                if self.is_locked(state) {
                    return None;
                }
                self.execute(state, process)
            }
            _ => Some(()),
        }
    }

    fn take(&self, state: &mut State, step: Step) -> Option<()> {
        match step {
            Step::Tick => state.now += 1,
            Step::Jump(length) => state.ahead += length,
            Step::Ask(process) => self.ask(state, process)?,
            Step::Hear(_, Heard(told, _)) => self.hear(state, told)?,
            Step::Withdraw(process) => self.withdraw(state, process)?,
            Step::Extend(process) => self.extend(state, process)?,
            Step::Nest(process) => state.site(process).inside.as_mut()?.holds += 1,
            Step::HandOver(process) => state.hand_over(process)?,
            Step::Check(process) => state.check(process)?,
            Step::EndCheck => state.checked = None,
            Step::Leave(process) => self.leave(state, process)?,
            Step::Release(lease) => self.send_release(state, lease),
            Step::Execute(process) => self.execute(state, process)?,
            Step::Begin(process) => state.uncommitted = Some((process, state.store_now())),
            Step::Commit => {
                let (process, at) = state.uncommitted.take()?;
                let request = state.site(process).asked?.request;
                let outcome = self.apply(state, request, at);
                self.answered(state, process, outcome)?;
            }
            Step::Answer(process) => self.answer(state, process)?,
            Step::GiveUp(process, _) => self.give_up(state, process)?,
            Step::Copy(process) => {
                let request = state.site(process).asked?.request;
                state.copied = Some((request.lease, false));
                state.push_late(request);
            }
            Step::ExecuteLate(index, _) => {
                let request = state.late.remove(index);
                self.apply(state, request, state.store_now());
            }
            Step::Crash(process) => {
                let site = std::mem::take(state.site(process));
                if let Some(asked) = &site.asked {
                    self.abandon(state, asked);
                }
                let (used, last_ask) = (site.used, state.store_now());
                state.site(process).used = used;
                state.crashed = Some(Crashed {
                    process,
                    last_ask,
                    used,
                });
                state.told.retain(|told| told.lease.process != process);
            }
            Step::ForceRelease => {
                let row = state.row.as_mut()?;
                state.forced = Forced::Lease(row.lease);
                row.force_release();
            }
            Step::Purge => state.row = None,
        }
        Some(())
    }
}
