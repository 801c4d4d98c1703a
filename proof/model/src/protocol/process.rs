//! The steps of a process: it asks, enters, leaves, and takes wake-ups.

use super::state::{Forced, Inside, Place, State, Told, Waits};
use super::{PASSES, Protocol};
use crate::guards::Guard;
use crate::store::{Action, LeaseId, Process, Time, Token};

/// The effect of a wake-up on the process that hears it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hears {
    /// Late, repeated or old.
    Nothing,
    /// The caller that waits enters.
    Enter,
    /// Too little of the lease is left: an extend comes first.
    Extend,
    /// Nobody waits with the lease.
    Unwanted,
}

impl Protocol {
    /// Whether a body thinks that it is inside.
    pub(super) fn is_inside(&self, inside: &Inside, now: Time) -> bool {
        now < inside.deadline || !self.has(Guard::LocalDeadline)
    }

    /// Asks for a waiting caller, again or for the first time.
    pub(super) fn ask(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let site = state.site(process);
        if site.waits.is_none() {
            site.used += 1;
            let number = site.used;
            site.wait(LeaseId { process, number }, now);
        }
        let Waits { lease, since, .. } = site.waits?;
        let queue = self.bounds.queue.then_some(now - since);
        state.send(lease, Action::Acquire { queue });
        Some(())
    }

    pub(super) fn enter(&self, state: &mut State, lease: LeaseId, token: Token, deadline: Time) {
        let site = state.site(lease.process);
        site.waits = None;
        site.inside = Some(Inside {
            lease,
            token,
            deadline,
            holds: 1,
            last_token: Token(token.0 + i64::from(self.bounds.spare)),
            row_holds: 1,
            row_token: token,
            checked: false,
        });
    }

    pub(super) fn hears(&self, state: &State, told: Told) -> Hears {
        let Told { lease, token, .. } = told;
        let site = &state.sites[lease.process.index()];
        let Some(waits) = site.waits.filter(|_| site.waits_with(lease)) else {
            let over = !site.answers_for(lease) && !state.is_dead(lease) && !told.heard;
            return if over { Hears::Unwanted } else { Hears::Nothing };
        };
        let newer = |place: &Place| token > place.token || !self.has(Guard::WakeUpIsNewer);
        let idle = site.asked.is_none();
        match waits.place.filter(newer) {
            Some(_) if !idle && self.has(Guard::WakeUpWithNoAskOnItsWay) => Hears::Nothing,
            Some(place) if state.now < place.deadline || !self.has(Guard::WakeUpWithinLease) => Hears::Enter,
            Some(_) if idle => Hears::Extend,
            _ => Hears::Nothing,
        }
    }

    pub(super) fn hear(&self, state: &mut State, told: Told) -> Option<()> {
        let Told { lease, token, .. } = told;
        match self.hears(state, told) {
            Hears::Nothing => return None,
            Hears::Enter => {
                let mut deadline = state.site(lease.process).waits?.place?.deadline;
                if !self.has(Guard::WakeUpWithinLease) {
                    let length = self.store().next_ttl();
                    deadline = deadline.max((state.now + length).saturating_sub(self.margin()));
                }
                self.enter(state, lease, token, deadline);
            }
            Hears::Extend => self.send_extend(state, lease, 1, 0, token),
            Hears::Unwanted => {
                state
                    .told
                    .iter_mut()
                    .filter(|other| **other == told)
                    .for_each(|told| told.heard = true);
                if self.has(Guard::UnwantedPassOnIsReleased) {
                    state.site(lease.process).owe(lease);
                }
            }
        }
        Some(())
    }

    pub(super) fn extend(&self, state: &mut State, process: Process) -> Option<()> {
        let inside = state.site(process).inside?;
        let change = inside.holds.cast_signed() - inside.row_holds.cast_signed();
        self.send_extend(state, inside.lease, inside.holds, change, inside.token);
        Some(())
    }

    fn send_extend(&self, state: &mut State, lease: LeaseId, count: u8, change: i8, token: Token) {
        let change = self.change(change);
        state.send(lease, Action::Extend { count, change, token });
    }

    pub(super) fn send_release(&self, state: &mut State, lease: LeaseId) {
        // Without absolute counts: by the holds that the row is thought to have. It is 1 but for nested ones.
        let change = self.change(-1);
        state.send(lease, Action::Release { change });
    }

    fn change(&self, change: i8) -> i8 {
        if self.has(Guard::AbsoluteCounts) {
            0
        } else {
            change
        }
    }

    /// The caller waits no longer.
    pub(super) fn withdraw(&self, state: &mut State, process: Process) -> Option<()> {
        let site = state.site(process);
        let lease = site.waits?.lease;
        if self.has(Guard::WithdrawalEndsAsking) {
            site.waits = None;
            site.owe(lease);
        } else {
            self.send_release(state, lease);
        }
        Some(())
    }

    /// A body ends. If that was the last hold, the lease is over.
    pub(super) fn leave(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let site = state.site(process);
        let inside = site.inside.as_mut()?;
        inside.holds -= 1;
        if inside.holds > 0 {
            return Some(());
        }
        let lease = inside.lease;
        site.inside = None;
        if self.has(Guard::EntryEndsAsking) {
            site.owe(lease);
        } else {
            site.wait(lease, now);
            self.send_release(state, lease);
        }
        Some(())
    }

    pub(super) fn may_hand_over(&self, inside: &Inside, now: Time) -> bool {
        (now < inside.deadline || !self.has(Guard::HandOverWithinLease))
            && (inside.token < inside.last_token
                || (!self.has(Guard::HandOverWithinSpareTokens) && inside.token == inside.last_token))
            && (!inside.checked || !self.has(Guard::NoHandOverAfterCheck))
    }
}

impl State {
    pub(super) fn hand_over(&mut self, process: Process) -> Option<()> {
        let inside = self.site(process).inside.as_mut()?;
        inside.token.0 += 1;
        inside.checked = false;
        let Inside { lease, token, .. } = *inside;
        // A process whose lease was freed by force may not know it yet. Its tokens are refused.
        if self.forced != Forced::Lease(lease) {
            self.history.give(token);
        }
        Some(())
    }

    /// The body begins a transaction and checks its token in it.
    pub(super) fn check(&mut self, process: Process) -> Option<()> {
        let (now, held) = (self.now, self.held());
        let inside = self.site(process).inside.as_mut()?;
        inside.checked = true;
        let Inside {
            lease,
            token,
            deadline,
            ..
        } = *inside;
        match held.filter(|row| row.lease == lease) {
            Some(row) if row.token == token => self.checked = Some((lease, token)),
            row => {
                self.history.breaks(PASSES, row.is_some() && now < deadline);
                self.site(process).inside = None;
            }
        }
        Some(())
    }
}
