//! The callers that wait until the store confirms what they did.

use crate::machine::env::Time;
use crate::machine::out::Unconfirmed;
use crate::store::StoreError;

/// A caller that waits until the store confirms what it did.
#[derive(Debug)]
pub struct Confirm<C> {
    pub to: C,
    pub deadline: Time,
}

/// The row must show this before a caller gets its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// The number of holds. While others have the row locked, the count in memory is enough.
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

/// The waiting callers of one lease.
#[derive(Debug)]
pub(super) struct Confirmations<C> {
    /// Callers whose change the next request carries, and those whose change is on its way.
    waiting: Vec<Pending<C>>,
    sent: Vec<Pending<C>>,
    /// The earliest deadline of these callers, or an earlier time.
    pub(super) due: Option<Time>,
    /// Replies that the machine has not taken yet.
    pub(super) replies: Vec<(C, Result<(), Unconfirmed>)>,
}

impl<C> Confirmations<C> {
    pub(super) fn new() -> Self {
        Self {
            waiting: Vec::new(),
            sent: Vec::new(),
            due: None,
            replies: Vec::new(),
        }
    }

    /// Whether a request is needed for them.
    pub(super) fn want_request(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A caller whose change needs no request.
    pub(super) fn reply_at_once(&mut self, confirm: Confirm<C>) {
        self.replies.push((confirm.to, Ok(())));
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

    /// Replies to the callers whose changes this answer confirms.
    pub(super) fn reply_to_sent(&mut self) {
        let sent = self.sent.drain(..);
        self.replies
            .extend(sent.map(|pending| (pending.confirm.to, Ok(()))));
    }

    /// Replies to the sent callers that wait for a count: for those memory is enough.
    pub(super) fn reply_to_sent_holds(&mut self) {
        let holds = self.sent.extract_if(.., |pending| pending.shows == Shows::Holds);
        self.replies
            .extend(holds.map(|pending| (pending.confirm.to, Ok(()))));
    }

    /// Replies to the callers whose change was not sent.
    pub(super) fn reply_to_waiting(&mut self) {
        let waiting = self.waiting.drain(..);
        self.replies
            .extend(waiting.map(|pending| (pending.confirm.to, Ok(()))));
    }

    pub(super) fn reply_to_all(&mut self, reply: &Result<(), Unconfirmed>) {
        self.due = None;
        let all = self.sent.drain(..).chain(self.waiting.drain(..));
        self.replies
            .extend(all.map(|pending| (pending.confirm.to, reply.clone())));
    }

    /// Replies to the callers whose timeout has passed.
    pub(super) fn reply_to_late(&mut self, now: Time, failure: Option<&StoreError>) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let is_late = |pending: &mut Pending<C>| pending.confirm.deadline <= now;
        let late = self.waiting.extract_if(.., is_late);
        let late = late.chain(self.sent.extract_if(.., is_late));
        let replies = late.map(|pending| (pending.confirm.to, Err(Unconfirmed::NoAnswer(failure.cloned()))));
        self.replies.extend(replies);
        let rest = self.waiting.iter().chain(&self.sent);
        self.due = rest.map(|pending| pending.confirm.deadline).min();
    }
}
