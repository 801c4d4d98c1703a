//! How the store carries requests out, and what that means to the properties.

use super::bounds::Event;
use super::state::{Forced, State, Told};
use super::{DEAD, ENDED, IN_VAIN, Protocol};
use crate::guards::Guard;
use crate::store::{Action, LeaseId, Outcome, Process, QUEUED_FOR, Request, Row, Time, Token};

impl Protocol {
    /// Such a request is carried out and answered at once.
    pub(super) fn is_prompt(&self, process: Process, action: Action) -> bool {
        self.is_calm(process) || (self.bounds.prompt && !matches!(action, Action::Extend { .. }))
    }

    pub(super) fn execute(&self, state: &mut State, process: Process) -> Option<()> {
        let request = state.site(process).asked?.request;
        let outcome = if state.uncommitted.is_some() {
            self.skip(state, request.lease)
        } else {
            self.apply(state, request, state.store_now())
        };
        self.answered(state, process, outcome)
    }

    /// An acquire that finds the row locked sees it as it was.
    fn skip(&self, state: &State, lease: LeaseId) -> Outcome {
        let next = state
            .row
            .and_then(|row| row.successor(state.store_now()).zip(Some(row.token)));
        match next.filter(|(next, _)| next.lease == lease) {
            Some((next, token)) if !self.has(Guard::SnapshotIsNotQueued) => Outcome::Queued(token, next.ttl),
            _ => Outcome::Busy,
        }
    }

    /// Some answers come at once.
    pub(super) fn answered(&self, state: &mut State, process: Process, outcome: Outcome) -> Option<()> {
        let asked = state.site(process).asked.as_mut()?;
        asked.answer = Some(outcome);
        let prompt = match asked.request.action {
            Action::Acquire { .. } => outcome == Outcome::Busy || outcome == Outcome::Lost,
            Action::Extend { .. } => false,
            Action::Release { .. } => self.has(Guard::LastReleaseAfterTtl) && !self.may(Event::UnknownAsk),
        };
        if prompt || self.is_prompt(process, asked.request.action) {
            self.answer(state, process)?;
        }
        Some(())
    }

    /// The store carries a request out, `at` on its clock.
    pub(super) fn apply(&self, state: &mut State, request: Request, at: Time) -> Outcome {
        let before = state.row;
        let lease = request.lease;
        let outcome = self.store().apply(&mut state.row, at, request);
        if outcome == Outcome::Lost {
            return outcome;
        }
        let another = before.is_some_and(|row| row.lease != lease);
        let expired = before.is_some_and(|row| row.is_expired(at));
        let history = &mut state.history;
        match outcome {
            Outcome::Extended(_) => {
                history.breaks(ENDED, expired);
                if state.forced == Forced::Lease(lease) {
                    state.forced = Forced::Before;
                }
                return outcome;
            }
            Outcome::Released => history.breaks(ENDED, expired),
            Outcome::Busy | Outcome::Queued(..) => history.breaks(IN_VAIN, !another),
            _ => {}
        }
        if matches!(request.action, Action::Acquire { .. }) {
            let mut given_up = history.given_up.iter();
            let late = given_up.any(|(given_up, until)| *given_up == lease && *until <= state.now);
            let second = state.copied == Some((lease, true)) && another;
            if late || second {
                history.excused.push(lease);
            }
            if let Some(crashed) = state.crashed.as_mut().filter(|crashed| crashed.asked(lease)) {
                crashed.last_ask = at;
            }
            if let Some((_, carried_out)) = state.copied.as_mut().filter(|(copied, _)| *copied == lease) {
                *carried_out = true;
            }
        }
        let stood = |row: &Row| {
            before.is_some_and(|old| old.is_held(at) && old.lease == row.lease && old.token == row.token)
        };
        if let Some(row) = state.row.filter(|row| row.is_held(at) && !stood(row)) {
            state.history.give(row.token);
            if outcome == Outcome::Released {
                state.pass_on(row.lease, row.token, at);
            }
        }
        outcome
    }
}

impl State {
    fn pass_on(&mut self, lease: LeaseId, token: Token, at: Time) {
        self.history.excused.retain(|excused| *excused != lease);
        if self.is_dead(lease) {
            let too_late = self
                .crashed
                .is_some_and(|crashed| at >= crashed.last_ask + QUEUED_FOR);
            self.history.breaks(DEAD, too_late);
        } else {
            let heard = false;
            self.told.push(Told { lease, token, heard });
            self.told.sort_unstable();
        }
    }
}
