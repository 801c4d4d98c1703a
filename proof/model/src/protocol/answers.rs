//! A process takes an answer, or does without one that does not come.

use super::bounds::Event;
use super::state::{Asked, Fate, Owed, Place, State};
use super::{IN_VAIN, MARGIN, Protocol};
use crate::guards::Guard;
use crate::store::{Action, Outcome, Process, Request, Time, Token};

impl Protocol {
    /// When a length that the store has promised ends for the process.
    fn deadline(&self, asked: &Asked, now: Time, length: Time) -> Time {
        let since = if self.has(Guard::DeadlineFromSend) {
            asked.sent_at
        } else {
            now
        };
        (since + length).saturating_sub(self.margin())
    }

    pub(super) fn margin(&self) -> Time {
        if self.bounds.jump > 0 && self.has(Guard::Margin) {
            MARGIN
        } else {
            0
        }
    }

    /// The answer arrives.
    pub(super) fn answer(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let asked = state.site(process).asked.take()?;
        let Request { lease, action } = asked.request;
        let site = state.site(process);
        let waits = site.waits.filter(|waits| waits.lease == lease);
        match (action, asked.answer?) {
            (Action::Acquire { .. }, Outcome::Granted(token, remaining)) if waits.is_some() => {
                self.let_in(state, &asked, token, remaining);
            }
            (Action::Acquire { .. }, Outcome::Queued(token, next_ttl)) if waits.is_some() => {
                let length = if self.has(Guard::DeadlineOfNextTtl) {
                    next_ttl
                } else {
                    self.bounds.ttl
                };
                let deadline = self.deadline(&asked, now, length);
                site.waits.as_mut()?.place = Some(Place { token, deadline });
            }
            (Action::Acquire { .. }, Outcome::Lost) if waits.is_some() => {
                if self.has(Guard::LostEndsAsking) {
                    site.waits = None;
                } else {
                    state.history.breaks(IN_VAIN, waits?.lost);
                    state.site(process).waits.as_mut()?.lost = true;
                }
            }
            // After a wake-up.
            (Action::Extend { token, .. }, Outcome::Extended(remaining)) if waits.is_some() => {
                self.let_in(state, &asked, token, remaining);
            }
            (Action::Extend { count, token, .. }, Outcome::Extended(remaining)) => {
                let deadline = self.deadline(&asked, now, remaining);
                if let Some(inside) = site.inside.as_mut().filter(|inside| inside.lease == lease) {
                    (inside.row_holds, inside.row_token) = (count, token);
                    // A lease that has ended stays ended.
                    if now < inside.deadline {
                        inside.deadline = inside.deadline.max(deadline);
                    }
                }
            }
            (Action::Extend { .. }, _) => {
                if waits.is_some() {
                    site.waits = None;
                }
                site.inside = site.inside.filter(|inside| inside.lease != lease);
            }
            (Action::Release { .. }, answer) => self.released(state, &asked, answer),
            _ => {}
        }
        Some(())
    }

    /// The caller that waits enters, unless the answer came too late.
    fn let_in(&self, state: &mut State, asked: &Asked, token: Token, remaining: Time) {
        let lease = asked.request.lease;
        let deadline = self.deadline(asked, state.now, remaining);
        if state.now < deadline {
            self.enter(state, lease, token, deadline);
        } else {
            let site = state.site(lease.process);
            site.waits = None;
            site.owe(lease);
        }
    }

    /// Whether that ends what the process owes.
    fn released(&self, state: &mut State, asked: &Asked, answer: Outcome) {
        let late = !self.has(Guard::LastReleaseAfterTtl);
        let sent_at = if late { state.now } else { asked.sent_at };
        let lease = asked.request.lease;
        let site = state.site(lease.process);
        // Without a guard nothing may be owed.
        let Some(owed) = site.owed.iter().find(|owed| owed.lease == lease).copied() else {
            return;
        };
        // The row shows that an ask was carried out: the unknown one, unless there was one before it.
        let first = |guard| !owed.placed || !self.has(guard);
        let found = match answer {
            Outcome::Released => first(Guard::ReleasedMayBeAnEarlierAsk),
            Outcome::Withdrawn => first(Guard::WithdrawnMayBeAnEarlierAsk),
            _ => false,
        };
        if found || owed.known || sent_at >= owed.until || !self.has(Guard::AbandonedReleaseIsResent) {
            site.owed.retain(|other| *other != owed);
        }
    }

    pub(super) fn may_give_up(&self, state: &State, asked: &Asked) -> bool {
        let process = asked.request.lease.process;
        let event = match asked.request.action {
            Action::Acquire { .. } => Event::UnknownAsk,
            _ => Event::UnknownWrite,
        };
        let commits = state.uncommitted.is_some_and(|(commits, _)| commits == process);
        self.may(event) && !self.is_calm(process) && !commits
    }

    pub(super) fn fate(&self, state: &State, asked: &Asked) -> Fate {
        // A request that never arrives is one that stays late.
        if asked.answer.is_none() && state.late.len() < self.bounds.late {
            Fate::Late
        } else {
            Fate::Lost
        }
    }

    pub(super) fn give_up(&self, state: &mut State, process: Process) -> Option<()> {
        let until = state.now + self.bounds.ttl;
        let asked = state.sites[process.index()].asked?;
        self.abandon(state, &asked);
        let lease = asked.request.lease;
        let site = state.site(process);
        site.asked = None;
        let waits = site.waits.filter(|waits| waits.lease == lease);
        // Without a guard its caller may be inside.
        let Some(waits) = waits else { return Some(()) };
        match asked.request.action {
            Action::Acquire { .. } if self.has(Guard::UnknownEndsAsking) => {
                site.waits = None;
                if self.has(Guard::AbandonedIsReleased) {
                    let placed = waits.place.is_some();
                    site.push_owed(Owed {
                        lease,
                        known: false,
                        placed,
                        until,
                    });
                }
                state.history.given_up.push((lease, until));
                state.history.given_up.sort_unstable();
            }
            Action::Extend { .. } => {
                site.waits = None;
                site.owe(lease);
            }
            _ => {}
        }
        Some(())
    }

    /// Nobody waits for the answer.
    pub(super) fn abandon(&self, state: &mut State, asked: &Asked) {
        if self.fate(state, asked) == Fate::Late {
            state.push_late(asked.request);
        }
    }
}
