//! The callers that wait until the store confirms what they did.

use crate::engine::core::time::Time;

/// A caller that waits until the store confirms what it did.
#[derive(Debug)]
pub(crate) struct Confirm<C> {
    pub(crate) ticket: C,
    pub(crate) deadline: Time,
}

/// The row must show this before a caller gets its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The number of holds. Memory is enough while somebody has the row locked.
    Holds,
    /// The owner.
    Owner,
    /// An end that is counted from now.
    End,
}

#[derive(Debug)]
struct Pending<C> {
    confirm: Confirm<C>,
    shows: Shows,
}

/// Those of one lease.
#[derive(Debug)]
pub(super) struct Confirmations<C> {
    /// Callers whose change the next request carries, and those whose change is on its way.
    waiting: Vec<Pending<C>>,
    sent: Vec<Pending<C>>,
    /// The earliest deadline of these callers, or an earlier time.
    pub(super) due: Option<Time>,
}

impl<C> Confirmations<C> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Vec::new(),
            sent: Vec::new(),
            due: None,
        }
    }

    /// Whether a request is needed for them.
    pub(super) fn want_request(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn add(&mut self, confirm: Confirm<C>, shows: Shows) {
        self.due = self.due.into_iter().chain([confirm.deadline]).min();
        self.waiting.push(Pending { confirm, shows });
    }

    /// A request with their changes is being sent.
    pub(super) fn sent(&mut self) {
        self.sent.append(&mut self.waiting);
    }

    /// The request was not carried out, or not far enough, or that is unknown: they wait for the next one.
    pub(super) fn wait_for_next(&mut self) {
        self.waiting.append(&mut self.sent);
    }

    /// Those whose changes the request that was answered has carried.
    pub(super) fn take_sent(&mut self) -> impl Iterator<Item = C> {
        self.sent.drain(..).map(|pending| pending.confirm.ticket)
    }

    /// Those of them for whom memory is enough.
    pub(super) fn take_sent_holds(&mut self) -> impl Iterator<Item = C> {
        let holds = self.sent.extract_if(.., |pending| pending.shows == Shows::Holds);
        holds.map(|pending| pending.confirm.ticket)
    }

    /// Those for whom nothing was sent.
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = C> {
        self.waiting.drain(..).map(|pending| pending.confirm.ticket)
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = C> {
        self.due = None;
        let all = self.sent.drain(..).chain(self.waiting.drain(..));
        all.map(|pending| pending.confirm.ticket)
    }

    /// Those whose timeout has passed.
    pub(super) fn take_late(&mut self, now: Time) -> Vec<C> {
        if self.due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let is_late = |pending: &mut Pending<C>| pending.confirm.deadline <= now;
        let late = self.waiting.extract_if(.., is_late);
        let late = late.chain(self.sent.extract_if(.., is_late));
        let late = late.map(|pending| pending.confirm.ticket).collect();
        let rest = self.waiting.iter().chain(&self.sent);
        self.due = rest.map(|pending| pending.confirm.deadline).min();
        late
    }
}
