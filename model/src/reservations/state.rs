//! What the processes and the row know, and questions about it.

use super::{Inside, Owed, Site, State, Waits};
use crate::history::Turn;
use crate::store::{Action, LeaseId, Process, Request, Time, Token};
use crate::wire::Asked;

impl Site {
    pub(super) fn wait(&mut self, lease: LeaseId) {
        self.waits = Some(Waits {
            lease,
            reservation: None,
        });
    }

    pub(super) fn owe(&mut self, owed: Owed) {
        self.owed.push(owed);
        self.owed.sort_unstable();
    }

    pub(super) fn answers_for(&self, lease: LeaseId) -> bool {
        self.asked.is_some_and(|asked| asked.request.lease == lease)
            || self.waits.is_some_and(|waits| waits.lease == lease)
            || self.inside.is_some_and(|inside| inside.lease == lease)
            || self.owed.iter().any(|owed| owed.lease == lease)
    }
}

impl State {
    pub(super) fn store_now(&self) -> Time {
        self.now + self.ahead
    }

    pub(super) fn say_left(&mut self, lease: LeaseId) {
        if !self.left.contains(&lease) {
            self.left.push(lease);
            self.left.sort_unstable();
        }
    }

    pub(super) fn send(&mut self, lease: LeaseId, action: Action) {
        let asked = Asked::new(Request { lease, action }, self.now);
        self.sites[lease.process.index()].asked = Some(asked);
    }

    pub(super) fn ask(&mut self, process: Process) {
        let site = &mut self.sites[process.index()];
        let waits = site.waits.unwrap_or_else(|| {
            site.used += 1;
            let number = site.used;
            let lease = LeaseId { process, number };
            Waits {
                lease,
                reservation: None,
            }
        });
        site.waits = Some(waits);
        self.send(waits.lease, Action::Acquire);
    }

    pub(super) fn hand_over(&mut self, process: Process) -> Option<()> {
        let inside = self.sites[process.index()].inside.as_mut()?;
        inside.token += 1;
        inside.second = true;
        inside.turn = self.tokens.give(inside.token);
        self.resource.write(inside.token, inside.turn);
        Some(())
    }

    pub(super) fn granted(&mut self, lease: LeaseId, token: Token, turn: Turn, deadline: Time) {
        let now = self.now;
        let site = &mut self.sites[lease.process.index()];
        if let Some(inside) = &mut site.inside {
            // Only without a guard: it came in while it asked.
            inside.written = true;
            if now < inside.deadline {
                inside.deadline = inside.deadline.max(deadline);
            }
            return;
        }
        site.waits = None;
        if now >= deadline {
            site.owe(Owed {
                lease,
                until: now,
                known: true,
                behind: None,
            });
            return;
        }
        site.inside = Some(Inside {
            lease,
            token,
            turn,
            deadline,
            behind: None,
            written: true,
            second: false,
            over: false,
        });
        self.resource.write(token, turn);
    }

    /// Who is inside by the local deadline.
    pub(super) fn inside(&self) -> impl Iterator<Item = Inside> {
        let inside = self.sites.iter().filter_map(|site| site.inside);
        inside.filter(|inside| !inside.over && self.now < inside.deadline)
    }

    /// Each body that runs, be it past its local deadline.
    pub(super) fn running(&self) -> impl Iterator<Item = Inside> {
        let inside = self.sites.iter().filter_map(|site| site.inside);
        inside.filter(|inside| !inside.over)
    }

    pub(super) fn has_the_row(&self, lease: LeaseId) -> bool {
        let now = self.store_now();
        self.row.is_some_and(|row| {
            let reserved = row.reservation(now).is_some_and(|next| next.lease == lease);
            (row.lease == lease && row.is_held(now)) || (row.lease != lease && reserved)
        })
    }

    /// Whether somebody answers for the lease, or nobody has to: its process died, or it was asked for by a
    /// request that came later than a ttl after it was given up.
    pub(super) fn is_answered_for(&self, lease: LeaseId) -> bool {
        let late = |given_up: &(LeaseId, Time)| given_up.0 == lease && given_up.1 <= self.now;
        self.sites.iter().any(|site| site.answers_for(lease))
            || self.crashed == Some(lease.process)
            || self.given_up.iter().any(late)
    }

    /// Times that no longer matter are all the same.
    pub(super) fn forget(&mut self) {
        let (now, store_now) = (self.now, self.store_now());
        if let Some(row) = &mut self.row {
            if !row.is_held(store_now) {
                row.expire_at = 0;
            }
            row.reserved = row.reservation(store_now);
        }
        let sites = self.sites.iter_mut();
        let inside = sites.filter_map(|site| site.inside.as_mut());
        let ends = inside.map(|inside| &mut inside.deadline);
        let ends = ends.chain(self.given_up.iter_mut().map(|(_, end)| end));
        ends.filter(|end| **end <= now).for_each(|end| *end = 0);
    }
}
