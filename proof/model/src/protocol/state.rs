//! The knowledge of the processes and the row, and questions about it.

use super::TOKENS;
use crate::store::Outcome;
use crate::store::{Action, LeaseId, Process, Request, Row, Time, Token};

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub(super) now: Time,
    /// The store's clock is this much ahead.
    pub(super) ahead: Time,
    pub(super) row: Option<Row>,
    pub(super) sites: Vec<Site>,
    /// Requests that the store may still carry out although nobody waits for the answer, in no order.
    pub(super) late: Vec<Request>,
    /// The wake-ups told so far. Each may be heard at any later moment, as often as one likes, or never.
    pub(super) told: Vec<Told>,
    /// The process whose request is carried out and not yet committed, and since when on the store's clock.
    pub(super) uncommitted: Option<(Process, Time)>,
    /// The owner whose open transaction has checked its token.
    pub(super) checked: Option<(LeaseId, Token)>,
    pub(super) crashed: Option<Crashed>,
    pub(super) forced: Forced,
    /// The lease whose acquire the network copied, and whether it was carried out once.
    pub(super) copied: Option<(LeaseId, bool)>,
    pub(super) history: History,
}

/// The knowledge of one process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Site {
    /// How many leases it asked for.
    pub(super) used: u8,
    pub(super) waits: Option<Waits>,
    pub(super) inside: Option<Inside>,
    /// The one request that it waits for.
    pub(super) asked: Option<Asked>,
    pub(super) owed: Vec<Owed>,
}

/// A caller waits, and the process asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Waits {
    pub(super) lease: LeaseId,
    pub(super) since: Time,
    pub(super) place: Option<Place>,
    /// Only without a guard: the lease is over.
    pub(super) lost: bool,
}

/// The content of the latest `Queued`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// The holder's.
    pub(super) token: Token,
    pub(super) deadline: Time,
}

/// A request on its way, or its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Asked {
    pub(super) request: Request,
    /// On the process' clock.
    pub(super) sent_at: Time,
    pub(super) answer: Option<Outcome>,
}

/// The fate of a request that its process no longer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The store may still carry it out. Its answer reaches nobody.
    Late,
    /// It never arrives. If it was carried out already, its answer is lost.
    Lost,
}

/// A body that runs, be it past the local deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Inside {
    pub(super) lease: LeaseId,
    pub(super) token: Token,
    pub(super) deadline: Time,
    pub(super) holds: u8,
    /// The last of the spare tokens.
    pub(super) last_token: Token,
    /// The row's content as far as the process knows.
    pub(super) row_holds: u8,
    pub(super) row_token: Token,
    /// The body called `verify_in`.
    pub(super) checked: bool,
}

/// A release that is to be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Owed {
    pub(super) lease: LeaseId,
    /// Nothing of the lease is on its way.
    pub(super) known: bool,
    /// An earlier ask of the lease was answered.
    pub(super) placed: bool,
    pub(super) until: Time,
}

/// A wake-up: the row was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Told {
    pub(super) lease: LeaseId,
    pub(super) token: Token,
    /// Its process has heard it, and did not wait with the lease.
    pub(super) heard: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Crashed {
    pub(super) process: Process,
    /// When it died, or when a late ask of it was carried out; on the store's clock.
    pub(super) last_ask: Time,
    /// The last lease that it asked for.
    pub(super) used: u8,
}

impl Crashed {
    pub(super) fn asked(self, lease: LeaseId) -> bool {
        self.process == lease.process && lease.number <= self.used
    }
}

/// The operator's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Forced {
    Not,
    /// This lease. It does not count until it is confirmed once more.
    Lease(LeaseId),
    Before,
}

/// The part that is kept only to check the properties.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    /// The largest token given so far.
    pub(super) token: Token,
    /// Promises that were broken by what happened, rather than by how things are.
    pub(super) broken: Vec<&'static str>,
    /// Asks that were given up, and until when their process answers for them.
    pub(super) given_up: Vec<(LeaseId, Time)>,
    /// Leases that nobody has to answer for: an ask was carried out long after it was given up, or was a
    /// copy.
    pub(super) excused: Vec<LeaseId>,
}

impl History {
    pub(super) fn give(&mut self, token: Token) {
        self.breaks(TOKENS, token <= self.token);
        self.token = self.token.max(token);
    }

    pub(super) fn breaks(&mut self, promise: &'static str, broken: bool) {
        if broken && !self.broken.contains(&promise) {
            self.broken.push(promise);
        }
    }
}

impl Site {
    pub(super) fn waits_with(&self, lease: LeaseId) -> bool {
        self.waits.is_some_and(|waits| waits.lease == lease)
    }

    pub(super) fn answers_for(&self, lease: LeaseId) -> bool {
        self.waits_with(lease)
            || self.asked.is_some_and(|asked| asked.request.lease == lease)
            || self.inside.is_some_and(|inside| inside.lease == lease)
            || self.owed.iter().any(|owed| owed.lease == lease)
    }

    pub(super) fn wait(&mut self, lease: LeaseId, since: Time) {
        self.waits = Some(Waits {
            lease,
            since,
            place: None,
            lost: false,
        });
    }

    /// The lease is over for the process, and nothing of it is on its way.
    pub(super) fn owe(&mut self, lease: LeaseId) {
        self.push_owed(Owed {
            lease,
            known: true,
            placed: true,
            until: 0,
        });
    }

    pub(super) fn push_owed(&mut self, owed: Owed) {
        self.owed.push(owed);
        self.owed.sort_unstable();
    }
}

impl State {
    pub(super) fn new(sites: usize) -> Self {
        Self {
            now: 1,
            ahead: 0,
            row: None,
            sites: vec![Site::default(); sites],
            late: Vec::new(),
            told: Vec::new(),
            uncommitted: None,
            checked: None,
            crashed: None,
            forced: Forced::Not,
            copied: None,
            history: History::default(),
        }
    }

    pub(super) fn store_now(&self) -> Time {
        self.now + self.ahead
    }

    pub(super) fn site(&mut self, process: Process) -> &mut Site {
        &mut self.sites[process.index()]
    }

    pub(super) fn held(&self) -> Option<Row> {
        self.row.filter(|row| row.is_held(self.store_now()))
    }

    pub(super) fn send(&mut self, lease: LeaseId, action: Action) {
        let asked = Asked {
            request: Request { lease, action },
            sent_at: self.now,
            answer: None,
        };
        self.site(lease.process).asked = Some(asked);
    }

    pub(super) fn push_late(&mut self, request: Request) {
        self.late.push(request);
        self.late.sort_unstable();
    }

    pub(super) fn keeps(&self, promise: &str) -> bool {
        !self.history.broken.contains(&promise)
    }

    /// Its process died after it had asked for it.
    pub(super) fn is_dead(&self, lease: LeaseId) -> bool {
        self.crashed.is_some_and(|crashed| crashed.asked(lease))
    }

    /// Whether somebody answers for the lease, or nobody has to.
    pub(super) fn is_answered_for(&self, lease: LeaseId) -> bool {
        let unheard = |told: &Told| told.lease == lease && !told.heard;
        self.sites.iter().any(|site| site.answers_for(lease))
            || self.told.iter().any(unheard)
            || self.is_dead(lease)
            || self.history.excused.contains(&lease)
    }

    /// Nothing is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.late.is_empty() && self.sites.iter().all(|site| site.asked.is_none())
    }

    /// Makes states equal that differ only in what no longer matters.
    pub(super) fn forget(&mut self) {
        let (now, store_now) = (self.now, self.store_now());
        if let Some(row) = self.row.as_mut().filter(|_| self.uncommitted.is_none()) {
            row.forget(store_now);
        }
        let row = self.row;
        let in_row = |lease| {
            row.is_some_and(|row| row.lease == lease || row.next.is_some_and(|next| next.lease == lease))
        };
        let sites = &mut self.sites;
        self.told
            .retain(|told| in_row(told.lease) || sites[told.lease.process.index()].waits_with(told.lease));
        let past = |end: &mut Time| {
            if *end <= now {
                *end = 0;
            }
        };
        for site in sites {
            site.inside
                .iter_mut()
                .for_each(|inside| past(&mut inside.deadline));
            let places = site.waits.iter_mut().filter_map(|waits| waits.place.as_mut());
            places.for_each(|place| past(&mut place.deadline));
        }
        self.history
            .given_up
            .iter_mut()
            .for_each(|(_, until)| past(until));
        self.history.excused.retain(|lease| in_row(*lease));
    }
}
