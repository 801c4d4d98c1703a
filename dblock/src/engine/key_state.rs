//! Everything that the engine knows about one key. At most one request for a key is on its way, and a
//! request of unknown outcome is settled before a new one.

mod acquiring;

use std::sync::Arc;

use tokio::time::Instant;
use uuid::Uuid;

use super::WeakEngine;
use super::batch::Kind;
use super::holding::{Holding, Settled};
use super::lease::Lease;
use super::orphan::Orphan;
use super::queue::Queue;
use super::waiter::{Syncer, Waiter};
use crate::error::LostReason;
use crate::health::HealthBoard;
use crate::key::Key;
use crate::store::{Acquire, Action, Outcome, Request, StoreError};

/// What the engine knows beside its keys.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) engine: &'a WeakEngine,
    pub(super) health: &'a HealthBoard,
    /// Releases by other processes are heard.
    pub(super) listening: bool,
    pub(super) now: Instant,
}

#[derive(Debug)]
pub(super) struct KeyState {
    key: Key,
    holding: Option<Holding>,
    queue: Queue,
    orphans: Vec<Orphan>,
    in_flight: Option<InFlight>,
    /// The lane in whose list of keys with something to send the driver has this one.
    pub(super) listed: Option<usize>,
}

/// The request on its way.
#[derive(Debug)]
struct InFlight {
    lease_id: Uuid,
    action: Action,
    for_whom: ForWhom,
    sent_at: Instant,
}

/// What to send next.
enum Plan {
    Holding(Action),
    Orphan(Uuid),
    Acquire,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForWhom {
    Orphan,
    Holding,
    Waiter(u64),
}

impl KeyState {
    pub(super) fn new(key: Key, now: Instant) -> Self {
        Self {
            key,
            holding: None,
            queue: Queue::new(now),
            orphans: Vec::new(),
            in_flight: None,
            listed: None,
        }
    }

    /// Nothing is held, wanted or on its way: the key can be forgotten.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        !self.is_busy() && self.queue.is_idle(now)
    }

    /// Somebody is inside, or is on the way in or out: a shutdown gives them its grace. Leases that nobody took and
    /// rows that `hold_min` keeps busy by themselves need none.
    pub(super) fn needs_grace(&self, now: Instant) -> bool {
        self.holding
            .as_ref()
            .is_some_and(|holding| !holding.lingers_by_itself(now))
            || self.in_flight.is_some()
    }

    /// Something is held, owed to the store or on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.holding.is_some() || !self.orphans.is_empty() || self.in_flight.is_some()
    }

    /// A release must still be written to the row.
    pub(super) fn has_release_pending(&self) -> bool {
        !self.orphans.is_empty() || self.holding.as_ref().is_some_and(Holding::is_left)
    }

    /// A caller of this process waits for a key that it does not have.
    pub(super) fn waits(&self) -> bool {
        self.holding.is_none() && self.queue.waits()
    }

    /// The key may be free: somebody has released it, or a wake-up may have been missed.
    pub(super) fn woken(&mut self, now: Instant) {
        self.queue.woken(now);
    }

    /// Nothing wakes us up any more.
    pub(super) fn deafened(&mut self, now: Instant) {
        self.queue.deafened(now);
    }

    /// A caller in the queue has gone away.
    pub(super) fn abandoned(&mut self, waiter: u64) {
        self.queue.remove(waiter);
    }

    pub(super) fn wait_for_lock(&mut self, waiter: Waiter, now: Instant) {
        self.queue.push(waiter, now);
    }

    pub(super) fn refuse_for_shutdown(&mut self, nested_too: bool) {
        self.queue.refuse_for_shutdown(nested_too);
    }

    /// The holds of a lease have changed.
    pub(super) fn note_holds(&mut self, lease: &Lease, syncer: Option<Syncer>, now: Instant) {
        match &mut self.holding {
            // An owner that is out already need not wait for its successor's row.
            Some(holding) if Arc::ptr_eq(&holding.grant, lease.grant()) && lease.is_current() => {
                holding.refresh(now);
                holding.note_holds(syncer);
            }
            _ => {
                if let Some(syncer) = syncer {
                    syncer.late(lease);
                }
            }
        }
    }

    /// Lets time pass: answers callers whose time is over and drops a lease that has surely ended.
    pub(super) fn look(&mut self, scene: Scene<'_>) {
        let now = scene.now;
        if let Some(holding) = &mut self.holding {
            holding.refresh(now);
            // Who came while the word of the last one's leaving was on its way.
            if holding.can_be_handed_over()
                && self.queue.waits()
                && let Some(engine) = scene.engine.upgrade()
            {
                holding.hand_over(&engine, now);
            }
            holding.expire(now);
            if holding.is_past(now) {
                self.drop_past_lease(scene.listening, now);
            } else if holding.is_left() {
                self.queue.note_trouble(holding.trouble().cloned(), now);
            }
        }
        // Not while the last release is on its way: nobody is inside, so callers wait for its answer.
        let held_here = self
            .holding
            .as_ref()
            .filter(|holding| holding.is_occupied(now))
            .map(Holding::seen);
        self.queue.expire(now, held_here);
    }

    /// The lease has run out in the store, unless a request of unknown outcome has extended the row: then
    /// nobody would hold it for one more ttl.
    fn drop_past_lease(&mut self, listening: bool, now: Instant) {
        let Some(mut holding) = self.holding.take() else {
            return;
        };
        holding.run_out();
        let terms = holding.terms();
        let on_its_way = self
            .in_flight
            .as_ref()
            .is_some_and(|sent| sent.for_whom == ForWhom::Holding && Kind::of(&sent.action) == Kind::Extend);
        // What `hold_min` has extended ends by itself.
        if (on_its_way || holding.is_unsure()) && !holding.lingers(now) {
            self.orphans.push(Orphan::new(terms.lease_id, terms.ttl, now));
        }
        self.queue
            .released(holding.seen(), holding.hand_overs(), false, listening, now);
        self.queue.note_trouble(holding.trouble().cloned(), now);
    }

    /// The key has gone round in this process while others want it, and there is nobody left to hand it to.
    pub(super) fn goes_round(&self, now: Instant) -> bool {
        let ending = |holding: &Holding| holding.can_be_handed_over() && holding.hand_overs() > 0;
        self.in_flight.is_none()
            && self.queue.turns.is_contended(now)
            && self.holding.as_ref().is_some_and(ending)
    }

    /// What kind of request to send now, if any.
    pub(super) fn next_kind(&mut self, now: Instant) -> Option<Kind> {
        self.plan(now).map(|plan| match plan {
            Plan::Holding(action) => Kind::of(&action),
            Plan::Orphan(_) => Kind::Release,
            Plan::Acquire => Kind::Acquire,
        })
    }

    fn plan(&mut self, now: Instant) -> Option<Plan> {
        if self.in_flight.is_some() {
            return None;
        }
        // What keeps a lease comes before what ends one that nobody took.
        if let Some(holding) = &mut self.holding
            && let Some(action) = holding.next_action(now)
        {
            return Some(Plan::Holding(action));
        }
        // The newest first: nothing comes between an acquire and the release that settles it.
        if let Some(orphan) = self.orphans.iter().rev().find(|orphan| orphan.retry_at <= now) {
            return Some(Plan::Orphan(orphan.lease_id));
        }
        (self.holding.is_none() && self.queue.may_ask(now)).then_some(Plan::Acquire)
    }

    /// The request to send now; it is on its way from here on. Without `hand_over` each grant comes from the store.
    pub(super) fn take_request(&mut self, hand_over: bool, now: Instant) -> Option<Request> {
        let (lease_id, action, for_whom) = match self.plan(now)? {
            Plan::Holding(action) => {
                let holding = self.holding.as_mut()?;
                holding.sent(&action);
                (holding.terms().lease_id, action, ForWhom::Holding)
            }
            Plan::Orphan(lease_id) => (lease_id, Action::Release, ForWhom::Orphan),
            Plan::Acquire => {
                let ask = self.queue.next_ask()?;
                let mut acquire = Acquire::new(ask.owner, ask.ttl, ask.holder);
                acquire.wanted_for = ask.wanted_for;
                acquire.spare_tokens = if hand_over { ask.spare_tokens } else { 0 };
                self.queue.asked();
                (
                    Uuid::now_v7(),
                    Action::Acquire(acquire),
                    ForWhom::Waiter(ask.waiter),
                )
            }
        };
        self.in_flight = Some(InFlight {
            lease_id,
            action: action.clone(),
            for_whom,
            sent_at: now,
        });
        Some(Request {
            key: self.key.clone(),
            lease_id,
            action,
        })
    }

    /// When to look again without an event.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        // What was due before is listed, or follows the request on its way: only what comes later needs a look.
        let asked = self.in_flight.is_some();
        let orphans = self
            .orphans
            .iter()
            .map(|orphan| orphan.retry_at)
            .filter(|at| !asked && *at > now);
        let holding = self.holding.as_ref().map(|holding| holding.next_look(now, asked));
        let queue = self.queue.next_look(now, asked || self.holding.is_some());
        orphans.chain(holding).chain(queue).min()
    }

    /// Takes the answer to the request on its way.
    pub(super) fn settle(&mut self, answer: Result<Outcome, StoreError>, scene: Scene<'_>) {
        let Some(sent) = self.in_flight.take() else {
            debug_assert!(false, "an answer for {:?} that nobody asked for", self.key);
            return;
        };
        match sent.for_whom {
            ForWhom::Orphan => self.orphans.retain_mut(|orphan| {
                orphan.lease_id != sent.lease_id || !orphan.settle(&answer, sent.sent_at, scene.now)
            }),
            ForWhom::Holding => self.settle_holding(&sent, answer, scene),
            ForWhom::Waiter(id) => self.settle_acquire(id, &sent, answer, scene),
        }
    }

    fn settle_holding(&mut self, sent: &InFlight, answer: Result<Outcome, StoreError>, scene: Scene<'_>) {
        let now = scene.now;
        let Some(holding) = self
            .holding
            .as_mut()
            .filter(|holding| holding.terms().lease_id == sent.lease_id)
        else {
            return;
        };
        holding.refresh(now);
        if let Ok(Outcome::Extended { wanted, .. }) = &answer {
            if let Some(lag) = holding.renewal_lag(now) {
                scene.health.set_renewal_lag(lag);
            }
            let until = self.queue.turns.extended(*wanted, scene.listening, now);
            holding.grant.hand_over_until(until);
        }
        if let Settled::Over { wanted } = holding.settle(&sent.action, sent.sent_at, answer, now) {
            self.queue
                .released(holding.seen(), holding.hand_overs(), wanted, scene.listening, now);
            self.holding = None;
        }
    }

    /// Ends what is held and refuses who waits: the engine stops. A row that `hold_min` keeps busy is left
    /// to expire.
    pub(super) fn end(&mut self, reason: LostReason, now: Instant) {
        if let Some(holding) = self.holding.take_if(|holding| holding.lingers_by_itself(now)) {
            tracing::debug!(key = %self.key, remaining = ?holding.grant.remaining(), "left busy for hold_min");
        }
        if let Some(holding) = &self.holding {
            holding.grant.end(reason);
        }
        self.queue.refuse_for_shutdown(true);
    }
}
