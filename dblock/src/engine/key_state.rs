//! Everything that the engine knows about one key. At most one request for a key is on its way, and a
//! request of unknown outcome is settled before a new one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::WeakEngine;
use super::holding::{Holding, Settled};
use super::lease::{Hold, Lease, LeaseTerms};
use super::orphan::Orphan;
use super::queue::Queue;
use super::waiter::{AcquireCall, Syncer, Waiter};
use crate::error::LostReason;
use crate::health::HealthBoard;
use crate::key::Key;
use crate::store::{Action, Outcome, Request, StoreError, StoreErrorKind};

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
        self.holding.as_ref().is_some_and(|holding| !holding.lingers(now)) || self.in_flight.is_some()
    }

    /// Something is held, owed to the store or on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.holding.is_some() || !self.orphans.is_empty() || self.in_flight.is_some()
    }

    /// A release must still be written to the row.
    pub(super) fn has_release_pending(&self) -> bool {
        !self.orphans.is_empty()
            || self
                .holding
                .as_ref()
                .is_some_and(|holding| holding.lease.holds() == 0)
    }

    pub(super) fn wait_for_lock(&mut self, waiter: Waiter, now: Instant) {
        self.queue.push(waiter, now);
    }

    pub(super) fn refuse_for_shutdown(&mut self, nested_too: bool) {
        self.queue.refuse_for_shutdown(nested_too);
    }

    /// The holds of a lease have changed.
    pub(super) fn note_holds(&mut self, lease: &Arc<Lease>, syncer: Option<Syncer>) {
        match &mut self.holding {
            Some(holding) if Arc::ptr_eq(&holding.lease, lease) => holding.note_holds(syncer),
            _ => {
                if let Some(syncer) = syncer {
                    syncer.lost(lease);
                }
            }
        }
    }

    /// Lets time pass: answers callers whose time is over and drops a lease that has surely ended.
    pub(super) fn look(&mut self, now: Instant) {
        if let Some(holding) = &mut self.holding {
            holding.expire(now);
            if holding.is_past(now) {
                self.drop_past_lease(now);
            } else if holding.lease.holds() == 0 {
                self.queue.note_trouble(holding.trouble().cloned(), now);
            }
        }
        // Not while the last release is on its way: nobody is inside, so callers wait for its answer.
        let held_here = self
            .holding
            .as_ref()
            .filter(|holding| holding.is_occupied(now))
            .map(|holding| holding.lease.occupant());
        self.queue.expire(now, held_here.as_ref());
    }

    /// The lease has run out in the store, unless a request of unknown outcome has extended the row: then
    /// nobody would hold it for one more ttl.
    fn drop_past_lease(&mut self, now: Instant) {
        let Some(mut holding) = self.holding.take() else {
            return;
        };
        holding.give_everyone_up();
        let terms = &holding.lease.terms;
        let on_its_way = self
            .in_flight
            .as_ref()
            .is_some_and(|sent| sent.for_whom == ForWhom::Holding);
        if on_its_way || holding.is_unsure() {
            self.orphans.push(Orphan::new(terms.lease_id, terms.ttl, now));
        }
        self.queue.released(holding.lease.occupant(), true, now);
        self.queue.note_trouble(holding.trouble().cloned(), now);
    }

    /// What to send now, if anything.
    pub(super) fn next_action(&mut self, now: Instant) -> Option<Action> {
        self.plan(now).map(|(_, action, _)| action)
    }

    fn plan(&mut self, now: Instant) -> Option<(Uuid, Action, ForWhom)> {
        if self.in_flight.is_some() {
            return None;
        }
        // What keeps a lease comes before what ends one that nobody took.
        if let Some(holding) = &mut self.holding
            && let Some(action) = holding.next_action(now)
        {
            return Some((holding.lease.terms.lease_id, action, ForWhom::Holding));
        }
        if let Some(orphan) = self.orphans.iter().find(|orphan| orphan.retry_at <= now) {
            return Some((orphan.lease_id, Action::Release, ForWhom::Orphan));
        }
        if self.holding.is_some() {
            return None;
        }
        let (id, call, wanted_for) = self.queue.next_ask(now)?;
        let action = Action::Acquire {
            owner: call.owner,
            ttl: call.options.ttl,
            holder: Arc::clone(&call.holder),
            wanted_for,
        };
        Some((Uuid::now_v7(), action, ForWhom::Waiter(id)))
    }

    /// The request to send now; it is on its way from here on.
    pub(super) fn take_request(&mut self, now: Instant) -> Option<Request> {
        let (lease_id, action, for_whom) = self.plan(now)?;
        if let (ForWhom::Holding, Some(holding)) = (for_whom, &mut self.holding) {
            holding.sent();
        }
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
    pub(super) fn settle(
        &mut self,
        answer: Result<Outcome, StoreError>,
        engine: &WeakEngine,
        health: &HealthBoard,
        now: Instant,
    ) {
        let Some(sent) = self.in_flight.take() else {
            debug_assert!(false, "an answer for {:?} that nobody asked for", self.key);
            return;
        };
        match sent.for_whom {
            ForWhom::Orphan => self.orphans.retain_mut(|orphan| {
                orphan.lease_id != sent.lease_id || !orphan.settle(&answer, sent.sent_at, now)
            }),
            ForWhom::Holding => self.settle_holding(&sent, answer, health, now),
            ForWhom::Waiter(id) => self.settle_acquire(id, &sent, answer, engine, now),
        }
    }

    fn settle_holding(
        &mut self,
        sent: &InFlight,
        answer: Result<Outcome, StoreError>,
        health: &HealthBoard,
        now: Instant,
    ) {
        let Some(holding) = self
            .holding
            .as_mut()
            .filter(|h| h.lease.terms.lease_id == sent.lease_id)
        else {
            return;
        };
        if let (Ok(Outcome::Extended { .. }), Some(lag)) = (&answer, holding.renewal_lag(now)) {
            health.set_renewal_lag(lag);
        }
        if let Settled::Over { wanted } = holding.settle(&sent.action, sent.sent_at, answer, now) {
            let former = holding.lease.occupant();
            self.holding = None;
            self.queue.released(former, wanted, now);
        }
    }

    fn settle_acquire(
        &mut self,
        waiter: u64,
        sent: &InFlight,
        answer: Result<Outcome, StoreError>,
        engine: &WeakEngine,
        now: Instant,
    ) {
        let ttl = match &sent.action {
            Action::Acquire { ttl, .. } => *ttl,
            _ => Duration::ZERO,
        };
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                ..
            }) => {
                if let Some(former) = &taken_over {
                    tracing::warn!(key = %self.key, fence_token, former_owner = %former.owner,
                        former_holder = former.holder, "lock taken over from an expired lease");
                }
                self.queue.granted(now);
                let taken = engine.upgrade().zip(self.queue.remove(waiter));
                let Some((engine, waiter)) = taken else {
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                    return;
                };
                let lease = Lease::new(terms(&waiter.call, sent, fence_token, now), remaining);
                if lease.lost_reason().is_some() {
                    // The reply took so long that nothing of the lease is left for the caller.
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                    self.queue.push_front(waiter);
                    self.queue.ask_again(now);
                    return;
                }
                self.holding = Some(Holding::new(Arc::clone(&lease)));
                waiter.grant(Hold::granted(lease, engine));
            }
            Ok(Outcome::Busy(occupant)) => self.queue.busy(occupant, now),
            Ok(Outcome::Skipped) => self.queue.skipped(now),
            Ok(other) => {
                // The lease_id was fresh, so no store that keeps its contract says that.
                let message = format!("the store answered an acquire with {other:?}");
                self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                self.queue
                    .failed(StoreError::new(StoreErrorKind::Interrupted, message), now);
            }
            Err(error) => {
                if error.is_outcome_unknown() {
                    self.orphans.push(Orphan::new(sent.lease_id, ttl, now));
                }
                self.queue.failed(error, now);
            }
        }
    }

    /// Ends what is held and refuses who waits: the engine stops. A row that `hold_min` keeps busy is left
    /// to expire.
    pub(super) fn end(&mut self, reason: LostReason, now: Instant) {
        if let Some(holding) = self.holding.take_if(|holding| holding.lingers(now)) {
            tracing::debug!(key = %self.key, remaining = ?holding.lease.remaining(), "left busy for hold_min");
        }
        if let Some(holding) = &self.holding {
            holding.lease.end(reason);
        }
        self.queue.refuse_for_shutdown(true);
    }
}

fn terms(call: &AcquireCall, sent: &InFlight, fence_token: i64, now: Instant) -> LeaseTerms {
    let options = &call.options;
    LeaseTerms {
        key: call.key.clone(),
        owner: call.owner,
        lease_id: sent.lease_id,
        fence_token,
        holder: Arc::clone(&call.holder),
        ttl: options.ttl,
        renew: options.renew,
        on_lost: options.on_lost,
        since: sent.sent_at,
        max_hold_until: options.max_hold.map(|length| now + length),
        hold_min_until: options.hold_min.map(|length| now + length),
    }
}
