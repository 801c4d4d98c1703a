//! Decides what is sent for a key, and when to look at it again.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::asking::{Arriving, Asking, Stand};
use super::held::Held;
use super::{Machine, fairness};
use crate::engine::core::env::Env;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::out::Kind;
use crate::engine::core::time::Time;
use crate::store::{Acquire, Action, Extend, HandedOver, RecordChange, Request};

/// The request on its way.
#[derive(Debug)]
pub(super) struct OnItsWay {
    pub(super) lease_id: Uuid,
    pub(super) sent_at: Time,
    pub(super) what: Sent,
}

#[derive(Debug)]
pub(super) enum Sent {
    /// For the lease that this process has.
    OwnLease(Action),
    /// The release of an abandoned lease.
    Abandoned,
    /// The extension of a row that was passed on, by this ttl for this owner: no caller has entered yet.
    Arriving {
        ttl: Duration,
        owner: Uuid,
    },
    Acquire(Asked),
}

/// An acquire on its way.
#[derive(Debug)]
pub(super) struct Asked {
    /// The number of the caller that it is for.
    pub(super) number: u64,
    pub(super) acquire: Acquire,
    /// If it begins a run: what takes that back.
    pub(super) undo: Option<Arc<RecordChange>>,
    /// The token of a wake-up that came before the answer that gives the lease its place.
    pub(super) told: Option<i64>,
}

/// The request to send next.
enum Next {
    OwnLease(Action),
    Abandoned(Uuid),
    Arriving(Arriving),
    Acquire,
}

impl Next {
    fn kind(&self) -> Kind {
        match self {
            Self::OwnLease(action) => Kind::of(action),
            Self::Abandoned(_) => Kind::Release,
            Self::Arriving(_) => Kind::Extend,
            Self::Acquire => Kind::Acquire,
        }
    }
}

impl<A, C> Machine<A, C> {
    /// Finds what can be sent, and when to look again.
    pub(super) fn list_next_request(&mut self, env: &Env<'_>) {
        let now = env.now;
        let kind = self.next_request(now).map(|next| next.kind());
        if kind.is_some() && kind != self.listed {
            self.listed = kind;
            self.newly_listed = kind;
        }
        self.look_at = self.next_look(now);
        #[cfg(any(test, feature = "simulation"))]
        self.check_looks();
    }

    fn next_request(&self, now: Time) -> Option<Next> {
        if self.on_its_way.is_some() && !flawed(Flaw::RequestsOvertake) {
            return None;
        }
        // Keeping a lease comes before releasing one that no caller took.
        if let Some(held) = &self.held
            && let Some(action) = held.next_action(now)
        {
            return Some(Next::OwnLease(action));
        }
        if let Some(Stand::PassedOn(arriving)) = self.asking.stand
            && arriving.retry_at <= now
        {
            return Some(Next::Arriving(arriving));
        }
        // The newest comes first: nothing is sent between an acquire and the release that undoes it. While an
        // owner holds the lock, the row does not name an abandoned lease, and a release on its way would only
        // delay a renewal.
        let renews = self.held.as_ref().is_some_and(Held::is_held);
        let mut due = self.abandoned.iter().rev().filter(|_| !renews);
        if let Some(abandoned) = due.find(|abandoned| abandoned.retry_at <= now) {
            return Some(Next::Abandoned(abandoned.lease_id));
        }
        let asks = self.held.is_none() && !self.queue.is_empty() && self.asking.may_ask(now);
        asks.then_some(Next::Acquire)
    }

    /// The request to send now. It is on its way from here on.
    pub(super) fn send(&mut self, kinds: &[Kind], env: &mut Env<'_>) -> Option<Request> {
        let next = self
            .next_request(env.now)
            .filter(|next| kinds.contains(&next.kind()))?;
        let mut record = None;
        let (lease_id, action, what) = match next {
            Next::OwnLease(action) => {
                let held = self.held.as_mut()?;
                held.sent(&action);
                if matches!(action, Action::Release) {
                    record.clone_from(&held.undo);
                }
                (held.lease_id(), action.clone(), Sent::OwnLease(action))
            }
            Next::Abandoned(lease_id) => {
                let mut abandoned = self.abandoned.iter();
                let released = abandoned.find(|abandoned| abandoned.lease_id == lease_id)?;
                record.clone_from(&released.undo);
                (lease_id, Action::Release, Sent::Abandoned)
            }
            Next::Arriving(arriving) => {
                let (_, first) = self.queue.first()?;
                let (ttl, owner) = (first.call.options.ttl, first.call.owner);
                let mut extend = Extend::new(1, ttl);
                extend.handed_over = Some(HandedOver {
                    owner,
                    holder: Arc::clone(&first.call.holder),
                    fence_token: arriving.fence_token,
                });
                (
                    arriving.lease_id,
                    Action::Extend(extend),
                    Sent::Arriving { ttl, owner },
                )
            }
            Next::Acquire => {
                let (number, first) = self.queue.first()?;
                let call = &first.call;
                let mut acquire = Acquire::new(call.owner, call.options.ttl, Arc::clone(&call.holder));
                acquire.wanted_for = (self.queue.blocking() > 0).then_some(fairness::WANTED_FOR);
                let waited = env.now.since(first.since);
                acquire.queue =
                    (acquire.wanted_for.is_some() && Asking::queues(waited, env)).then_some(waited);
                // The row may have been passed on to a lease that has a place. Then the caller writes that
                // the run begins.
                let begin = call.begin.as_ref().filter(|_| self.asking.place().is_none());
                record = begin.map(|begin| Arc::clone(&begin.change));
                let undo = begin.map(|begin| Arc::clone(&begin.undo));
                let (lease_id, spare_tokens) = self.asking.asked(self.queue.len() > 1, env);
                acquire.spare_tokens = spare_tokens;
                let asked = Asked {
                    number,
                    acquire: acquire.clone(),
                    undo,
                    told: None,
                };
                (lease_id, Action::Acquire(acquire), Sent::Acquire(asked))
            }
        };
        self.on_its_way = Some(OnItsWay {
            lease_id,
            sent_at: env.now,
            what,
        });
        Some(Request {
            key: self.key.clone(),
            lease_id,
            action,
            record,
        })
    }

    /// When to look again without an event.
    fn next_look(&self, now: Time) -> Option<Time> {
        let asked = self.on_its_way.is_some();
        // Requests that are due already are listed, or follow the one on its way. Only later ones need a
        // look.
        let later = |at: &Time| !asked && *at > now;
        let abandoned = self.abandoned.iter().map(|abandoned| abandoned.retry_at);
        let abandoned = abandoned.filter(later);
        let arriving = self.asking.arriving().map(|arriving| arriving.retry_at);
        let arriving = arriving.filter(later);
        let held = self.held.as_ref().and_then(|held| held.next_look(now, asked));
        let ask = if self.held.is_none() && !self.queue.is_empty() {
            self.asking.ask_at().filter(later)
        } else {
            None
        };
        let deadline = self.queue.first_deadline();
        abandoned
            .chain(arriving)
            .chain(held)
            .chain(ask)
            .chain(deadline)
            .min()
    }

    /// Asserts that whatever must happen without another event is listed, or looked at in time.
    #[cfg(any(test, feature = "simulation"))]
    fn check_looks(&self) {
        let by = |at: Time| self.look_at.is_some_and(|look| look <= at);
        if let Some(deadline) = self.queue.first_deadline() {
            assert!(by(deadline), "a caller's time is over before anybody looks");
        }
        let sends = self.on_its_way.is_some() || self.listed.is_some();
        if let Some(at) = self.held.as_ref().and_then(Held::must_send_by).filter(|_| !sends) {
            assert!(by(at), "a renewal is due before anybody looks");
        }
    }
}
