//! What a process does: when it may take a step, and what it makes of the answers.

use super::{BLOCK, Event, Inside, MARGIN, Owed, Reservation, ReservationsModel, Site, State, Step};
use crate::guards::Guard;
use crate::store::{Action, LeaseId, Outcome, Process, Request, Rules, Time};
use crate::wire::{Asked, Fate, local_deadline};

impl ReservationsModel {
    pub(super) fn has(&self, guard: Guard) -> bool {
        self.guards.has(guard)
    }

    pub(super) fn may(&self, event: Event) -> bool {
        self.bounds.events.contains(&event)
    }

    pub(super) fn apply(&self, state: &mut State, request: Request) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: self.bounds.ttl,
            block: BLOCK,
            reserve: self.bounds.reserve,
        };
        let now = state.store_now();
        let before = state.row.map(|row| row.lease);
        let outcome = rules.apply(&mut state.row, now, request);
        if let Some(row) = state.row.as_mut()
            && before != Some(row.lease)
        {
            let inside = state.sites.iter().filter_map(|site| site.inside);
            let mut inside = inside.filter(|inside| inside.lease == row.lease);
            row.turn = match (inside.next(), outcome) {
                // It got its turn when it came in.
                (Some(inside), _) => inside.turn,
                (None, Outcome::Granted(token, _)) => state.tokens.give(token),
                (None, _) => 0,
            };
        }
        outcome
    }

    /// When a promise of the store ends for the process.
    pub(super) fn deadline(&self, sent_at: Time, remaining: Time) -> Time {
        local_deadline(sent_at, remaining, if self.may(Event::Jump) { MARGIN } else { 0 })
    }

    pub(super) fn deadline_of_reservation(&self, asked: &Asked, now: Time, remaining: Time) -> Time {
        let since = if self.has(Guard::DeadlineFromSend) {
            asked.sent_at
        } else {
            now
        };
        if self.has(Guard::Margin) {
            self.deadline(since, remaining)
        } else {
            local_deadline(since, remaining, 0)
        }
    }

    pub(super) fn hears(&self, state: &State, site: &Site, left: LeaseId) -> bool {
        let reservation = site.waits.and_then(|waits| waits.reservation);
        reservation.is_some_and(|reservation| {
            (reservation.behind == left || !self.has(Guard::LeftNamesTheLease))
                && (state.now < reservation.deadline || !self.has(Guard::LeftWhileReserved))
                && (site.asked.is_none() || !self.has(Guard::LeftWithNoAskOnItsWay))
        })
    }

    pub(super) fn hear(&self, state: &mut State, process: Process) -> Option<()> {
        let site = &mut state.sites[process.index()];
        let waits = site.waits.take()?;
        let Reservation {
            behind,
            token,
            deadline,
        } = waits.reservation?;
        let deadline = if self.has(Guard::LeftWhileReserved) {
            deadline
        } else {
            state.now + self.bounds.reserve
        };
        let turn = match state.row.filter(|row| row.lease == waits.lease) {
            // Only without a guard: it was granted the lock, and does not know.
            Some(row) => row.turn,
            None => state.tokens.give(token),
        };
        site.inside = Some(Inside {
            lease: waits.lease,
            token,
            turn,
            deadline,
            behind: Some(behind),
            written: false,
            second: false,
            over: false,
        });
        state.resource.write(token, turn);
        Some(())
    }

    pub(super) fn leave(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let site = &mut state.sites[process.index()];
        let inside = site.inside.as_mut()?;
        let in_time = now < inside.deadline;
        if in_time && !inside.written && self.has(Guard::ReleaseAfterClaim) {
            inside.over = true;
            return Some(());
        }
        let Inside {
            lease,
            behind,
            written,
            ..
        } = *inside;
        site.inside = None;
        if !in_time && !written && !self.has(Guard::EntryEndsAsking) {
            site.wait(lease);
            return Some(());
        }
        site.owe(Owed {
            lease,
            until: now,
            known: true,
            behind: behind.filter(|_| in_time),
        });
        if in_time {
            state.say_left(lease);
        }
        Some(())
    }

    pub(super) fn answer(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let asked = state.sites[process.index()].asked.take()?;
        let lease = asked.request.lease;
        match (asked.request.action, asked.answer?) {
            (Action::Acquire, Outcome::Granted(token, remaining)) => {
                let deadline = self.deadline(asked.sent_at, remaining);
                state.granted(lease, token, asked.turn, deadline);
            }
            (
                Action::Acquire,
                Outcome::Reserved {
                    behind,
                    token,
                    remaining,
                },
            ) => {
                let deadline = self.deadline_of_reservation(&asked, now, remaining);
                if let Some(waits) = &mut state.sites[process.index()].waits {
                    waits.reservation = Some(Reservation {
                        behind,
                        token,
                        deadline,
                    });
                }
            }
            (Action::Extend { .. }, Outcome::Extended(remaining)) => {
                let later = self.deadline(asked.sent_at, remaining);
                let inside = state.sites[process.index()].inside.as_mut()?;
                inside.written = true;
                if now < inside.deadline {
                    inside.deadline = inside.deadline.max(later);
                    if inside.over {
                        self.leave(state, process)?;
                    }
                }
            }
            (Action::Extend { .. }, _) => {
                let site = &mut state.sites[process.index()];
                let inside = site.inside.take();
                if inside.is_some_and(|inside| !inside.written) && !self.has(Guard::EntryEndsAsking) {
                    site.wait(lease);
                }
            }
            _ => {}
        }
        Some(())
    }

    /// The answer to a release.
    pub(super) fn settle(&self, state: &mut State, process: Process, answer: Outcome) -> Option<()> {
        let asked = state.sites[process.index()].asked.take()?;
        let lease = asked.request.lease;
        let site = &mut state.sites[process.index()];
        let Some(index) = site.owed.iter().position(|owed| owed.lease == lease) else {
            // Only without a guard: it goes on to use the lease.
            return Some(());
        };
        let owed = site.owed[index];
        let settled = match answer {
            Outcome::Released => true,
            Outcome::Withdrawn if !self.has(Guard::WithdrawnIsNotTheEnd) => true,
            _ => owed.known || asked.sent_at >= owed.until,
        };
        if settled {
            site.owed.remove(index);
            let held = state.row.filter(|row| row.is_held(state.store_now()));
            let former = held.filter(|row| owed.behind == Some(row.lease));
            let crashed = former.is_some_and(|row| state.crashed == Some(row.lease.process));
            state.kept_out |= crashed;
        }
        Some(())
    }

    pub(super) fn give_up(&self, state: &mut State, process: Process) -> Option<()> {
        let until = state.now + self.bounds.ttl;
        let late = self.fate(state, process)? == Fate::Late;
        let site = &mut state.sites[process.index()];
        let asked = site.asked.take()?;
        if late {
            state.late.push(asked.request);
        }
        let lease = asked.request.lease;
        let waits = site.waits.is_some_and(|waits| waits.lease == lease);
        if asked.request.action == Action::Acquire && waits && self.has(Guard::UnknownAskEndsLease) {
            site.waits = None;
            site.owe(Owed {
                lease,
                until,
                known: false,
                behind: None,
            });
            state.given_up.push((lease, until));
            state.given_up.sort_unstable();
        }
        Some(())
    }

    pub(super) fn fate(&self, state: &State, process: Process) -> Option<Fate> {
        let asked = state.sites[process.index()].asked.as_ref()?;
        let room = state.late.len() < self.bounds.late;
        Some(if asked.answer.is_none() && room {
            Fate::Late
        } else {
            Fate::Lost
        })
    }

    pub(super) fn execute(&self, state: &mut State, process: Process) -> Option<()> {
        let request = state.sites[process.index()].asked?.request;
        let outcome = self.apply(state, request);
        let turn = state.row.map_or(0, |row| row.turn);
        let site = &mut state.sites[process.index()];
        match (request.action, outcome) {
            (Action::Release { .. }, _) => self.settle(state, process, outcome)?,
            (Action::Acquire, Outcome::Busy | Outcome::Lost) => {
                site.asked = None;
                if let Some(waits) = &mut site.waits {
                    waits.reservation = None;
                }
            }
            _ => {
                let asked = site.asked.as_mut()?;
                asked.answer = Some(outcome);
                asked.turn = turn;
            }
        }
        Some(())
    }

    pub(super) fn steps_of(&self, state: &State, process: Process, steps: &mut Vec<Step>) {
        let site = &state.sites[process.index()];
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let idle = site.asked.is_none();
        if let Some(asked) = &site.asked {
            may(Step::Execute(process), asked.answer.is_none());
            may(Step::Answer(process), asked.answer.is_some());
            if let Some(fate) = self.fate(state, process) {
                may(Step::GiveUp(process, fate), true);
            }
        }
        if let Some(inside) = site.inside {
            let in_time = state.now < inside.deadline;
            let runs = in_time && !inside.over;
            may(
                Step::Extend(process),
                idle && in_time && (!inside.written || self.may(Event::Renew)),
            );
            may(
                Step::HandOver(process),
                runs && self.may(Event::HandOver) && !inside.second,
            );
            may(
                Step::SayLeft(process),
                runs && !self.has(Guard::LeavesForGood) && !state.left.contains(&inside.lease),
            );
            let leaves = idle || !(inside.written || self.has(Guard::ReleaseAfterClaim));
            let leaves = leaves || (in_time && !inside.written);
            may(Step::Leave(process), leaves && (!inside.over || !in_time));
        } else {
            let fresh = site.waits.is_none() && site.used < self.bounds.leases[process.index()];
            may(Step::Ask(process), idle && (fresh || site.waits.is_some()));
        }
        for left in &state.left {
            may(Step::Hear(process, *left), self.hears(state, site, *left));
        }
        may(
            Step::Withdraw(process),
            self.may(Event::Withdraw) && idle && site.waits.is_some(),
        );
        for owed in &site.owed {
            may(Step::Release(owed.lease), idle);
        }
        let lives = site.inside.is_some() || site.asked.is_some() || site.waits.is_some();
        may(
            Step::Crash(process),
            self.may(Event::Crash) && state.crashed.is_none() && (lives || !site.owed.is_empty()),
        );
    }
}
