//! Decides what is sent for a key, and when to look at it again; applies the store's answers; says what is
//! still to be done.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::abandoned::Abandoned;
use super::adopting::Adoption;
use super::asking::{Arriving, Asking, LastAnswer, Place, Unentered};
use super::held::{After, Grant, Held, Times};
use super::queue::WANTED_FOR;
use super::{Listed, Machine};
use crate::machine::env::{Env, Time};
use crate::machine::out::{Note, Refusal, Waiter};
use crate::store::{
    Acquire, Action, Enter, Extend, HandedOver, Holder, Kind, Outcome, RecordChange, Request, Share,
    StoreError, StoreErrorKind,
};

/// A request that is on its way from here on.
#[derive(Debug)]
pub struct Transmit {
    pub request: Request,
    /// Time limit of the store for it, if shorter than usual.
    pub time_limit: Option<Duration>,
}

/// The request on its way.
pub(super) struct OnItsWay {
    pub(super) lease_id: Uuid,
    pub(super) sent_at: Time,
    pub(super) what: Sent,
}

/// Without the lease, which may be the secret of a ticket.
impl fmt::Debug for OnItsWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnItsWay")
            .field("sent_at", &self.sent_at)
            .field("what", &self.what)
            .finish_non_exhaustive()
    }
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
    /// For the adoption with this number.
    Adoption(u64),
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
    pub(super) wake_up_token: Option<i64>,
}

/// The request to send next.
enum NextRequest {
    OwnLease(Action),
    Abandoned(Uuid),
    Arriving(Arriving),
    Acquire,
    Adoption(u64),
}

impl NextRequest {
    fn kind(&self) -> Kind {
        match self {
            Self::OwnLease(action) => Kind::of(action),
            Self::Abandoned(_) => Kind::Release,
            Self::Arriving(_) => Kind::Extend,
            Self::Acquire | Self::Adoption(_) => Kind::Acquire,
        }
    }
}

/// The limit of the callers for whom the extension asks for room, if it does.
fn enters(action: &Action) -> Option<u32> {
    let Action::Extend(extend) = action else {
        return None;
    };
    let enter = extend.share.as_ref()?.enter.as_ref()?;
    Some(enter.limit)
}

impl<A, C> Machine<A, C> {
    /// Finds what can be sent, and when to look again.
    pub(super) fn list_next_request(&mut self, env: &Env<'_>) {
        let now = env.now;
        let kind = self.next_request(now).map(|next| next.kind());
        if let Some(kind) = kind.filter(|_| kind != self.listed.kind()) {
            self.listed = Listed::New(kind);
        }
        self.look_at = self.next_look(now);
    }

    fn next_request(&self, now: Time) -> Option<NextRequest> {
        if self.on_its_way.is_some() {
            return None;
        }
        // Keeping a lease comes before releasing one that no caller took.
        if let Some(held) = &self.held
            && let Some(action) = held.next_action(self.entrants(now), now)
        {
            return Some(NextRequest::OwnLease(action));
        }
        if let Some(Unentered::MustExtend(arriving)) = self.asking.unentered
            && arriving.retry_at <= now
        {
            return Some(NextRequest::Arriving(arriving));
        }
        // The newest comes first: an acquire of unknown outcome is released before anything else is sent. While an
        // owner holds the lock, the row does not name an abandoned lease, and a release on its way would only
        // delay a renewal. A row that others share may name it.
        let renews = self
            .held
            .as_ref()
            .is_some_and(|held| held.is_held() && !held.is_shared());
        let mut due = self.abandoned.iter().rev().filter(|_| !renews);
        if let Some(abandoned) = due.find(|abandoned| abandoned.retry_at <= now) {
            return Some(NextRequest::Abandoned(abandoned.lease_id));
        }
        if let Some(number) = self.next_adoption(now) {
            return Some(NextRequest::Adoption(number));
        }
        let leaves_it = self.turns.is_out() || self.turns.stands_back();
        let asks = self.held.is_none() && !self.queue.is_empty() && !leaves_it && self.asking.may_ask(now);
        asks.then_some(NextRequest::Acquire)
    }

    /// Callers that want to enter the lease that this process shares, and that the store may be asked for now.
    fn entrants(&self, now: Time) -> Option<Enter> {
        let held = self.held.as_ref().filter(|_| self.asking.may_ask(now))?;
        held.entrants(&self.queue, now)
    }

    /// The request to send now. It is on its way from here on.
    pub(super) fn build_request(&mut self, kinds: &[Kind], env: &mut Env<'_>) -> Option<Request> {
        let next = self
            .next_request(env.now)
            .filter(|next| kinds.contains(&next.kind()))?;
        let mut record = None;
        let (lease_id, action, what) = match next {
            NextRequest::OwnLease(action) => {
                let held = self.held.as_mut()?;
                held.sent(&action);
                if enters(&action).is_some() {
                    self.asking.asked_for_room();
                }
                if matches!(action, Action::Release) {
                    record.clone_from(&held.undo);
                }
                (held.lease_id(), action.clone(), Sent::OwnLease(action))
            }
            NextRequest::Abandoned(lease_id) => {
                let mut abandoned = self.abandoned.iter();
                let released = abandoned.find(|abandoned| abandoned.lease_id == lease_id)?;
                record.clone_from(&released.undo);
                (lease_id, Action::Release, Sent::Abandoned)
            }
            NextRequest::Arriving(arriving) => {
                let (_, first) = self.queue.first()?;
                let (ttl, owner) = (first.call.options.ttl, first.call.owner);
                let mut extend = Extend::new(1, ttl);
                if arriving.limit.is_some() {
                    extend.share = Some(Share::new(0, None));
                } else {
                    extend.handed_over = Some(HandedOver::new(
                        owner,
                        Arc::clone(&first.call.holder),
                        arriving.fence_token,
                    ));
                }
                (
                    arriving.lease_id,
                    Action::Extend(extend),
                    Sent::Arriving { ttl, owner },
                )
            }
            NextRequest::Adoption(number) => {
                let adoption = self.adopting.iter_mut().find(|one| one.number == number)?;
                let (ticket, action) = adoption.send();
                (ticket, action, Sent::Adoption(number))
            }
            NextRequest::Acquire => {
                let (number, first) = self.queue.first()?;
                let call = &first.call;
                let mut acquire = Acquire::new(call.owner, call.options.ttl, Arc::clone(&call.holder));
                acquire.wanted_for = (self.queue.blocking() > 0).then_some(WANTED_FOR);
                let waited = env.now.since(first.since);
                acquire.queue =
                    (acquire.wanted_for.is_some() && Asking::queues(waited, env)).then_some(waited);
                // An ask that has a place carries no begin: a pass-on writes no record. The caller then
                // writes the begin itself.
                let begin = call.begin.as_ref().filter(|_| self.asking.place().is_none());
                record = begin.map(|begin| Arc::clone(&begin.change));
                let undo = begin.map(|begin| Arc::clone(&begin.undo));
                acquire.limit = call.options.limit;
                let others_wait = self.queue.len() > 1 && acquire.limit.is_none();
                let (lease_id, spare_tokens) = self.asking.asked(others_wait, env);
                acquire.spare_tokens = spare_tokens;
                let asked = Asked {
                    number,
                    acquire: acquire.clone(),
                    undo,
                    wake_up_token: None,
                };
                (lease_id, Action::Acquire(acquire), Sent::Acquire(asked))
            }
        };
        self.on_its_way = Some(OnItsWay {
            lease_id,
            sent_at: env.now,
            what,
        });
        let mut request = Request::new(self.key.clone(), lease_id, action);
        request.record = record;
        Some(request)
    }

    /// When to look again without an event.
    fn next_look(&self, now: Time) -> Option<Time> {
        let asked = self.on_its_way.is_some();
        // A due request is already listed, or follows the one on its way. So only later ones need a timer.
        let later = |at: &Time| !asked && *at > now;
        let abandoned = self.abandoned.iter().map(|abandoned| abandoned.retry_at);
        let abandoned = abandoned.filter(later);
        let arriving = self.asking.arriving().map(|arriving| arriving.retry_at);
        let arriving = arriving.filter(later);
        let held = self.held.as_ref().and_then(|held| held.next_look(now, asked));
        let may_enter = self
            .held
            .as_ref()
            .is_none_or(|held| held.entrants(&self.queue, now).is_some());
        let ask = if may_enter && !self.queue.is_empty() {
            self.asking.ask_at().filter(later)
        } else {
            None
        };
        let non_blocking = self.queue.first_non_blocking().zip(self.finds_row_locked_since());
        let adopting = self.adopting.iter().map(|adoption| adoption.retry_at);
        abandoned
            .chain(adopting.filter(later))
            .chain(arriving)
            .chain(held)
            .chain(ask)
            .chain(self.first_deadline())
            .chain(self.turns.next_look())
            .chain(non_blocking.map(|(waiter, locked_since)| waiter.busy_at(locked_since)))
            .min()
    }

    /// The earliest deadline of a caller.
    fn first_deadline(&self) -> Option<Time> {
        let adopting = self.adopting.iter().filter_map(Adoption::deadline);
        adopting.chain(self.queue.first_deadline()).min()
    }

    /// For tests: the latest time at which [`handle_timeout`](Self::handle_timeout) must be called, unless
    /// something is sent or arrives before. [`poll_timeout`](Self::poll_timeout) must not be later.
    pub fn must_look_by(&self) -> Option<Time> {
        let sends = self.on_its_way.is_some() || self.listed.kind().is_some();
        let renewal = self.held.as_ref().and_then(Held::must_send_by);
        let renewal = renewal.filter(|_| !sends);
        let callers = self.first_deadline().into_iter();
        callers.chain(renewal).chain(self.turns.next_look()).min()
    }

    // ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    pub(super) fn apply_answer(&mut self, answer: Result<Outcome, StoreError>, env: &mut Env<'_>) {
        // Answers need no number: a key has one request on its way, and the driver gives it exactly one
        // answer. A request that took too long is answered by the time limit, and its future dropped.
        let Some(sent) = self.on_its_way.take() else {
            return;
        };
        match &sent.what {
            Sent::Abandoned => self.abandoned.retain_mut(|abandoned| {
                abandoned.lease_id != sent.lease_id
                    || !abandoned.release_answered(&answer, sent.sent_at, env.now)
            }),
            Sent::OwnLease(action) => self.apply_to_own_lease(&sent, action, answer, env),
            Sent::Arriving { ttl, owner } => {
                self.apply_to_arriving(sent.sent_at, *ttl, *owner, answer, env);
            }
            Sent::Acquire(asked) => self.apply_to_waiter(&sent, asked, answer, env),
            Sent::Adoption(number) => self.apply_to_adoption(&sent, *number, answer, env),
        }
    }

    fn apply_to_own_lease(
        &mut self,
        sent: &OnItsWay,
        action: &Action,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let Some(held) = self.held.as_mut().filter(|held| held.lease_id() == sent.lease_id) else {
            return;
        };
        if let Ok(Outcome::Extended { wanted, .. }) = &answer {
            self.notes.extend(held.renewal_lag(env.now).map(Note::RenewalLag));
            held.hand_over_until(self.fairness.extended(*wanted, env));
        }
        let entering = enters(action).map(|limit| (limit, answer.clone()));
        let after = held.apply_answer(action, sent.sent_at, answer, env);
        match entering {
            Some((_, Err(error))) => {
                self.refuse_hopeless(&error);
                self.asking.note_answer(LastAnswer::Failed(error), env.now);
            }
            Some((_, Ok(Outcome::Skipped))) => {
                self.asking.note_answer(LastAnswer::RowLocked, env.now);
                self.refuse_locked_out(self.asking.locked_since(env.now), env.now);
            }
            Some((limit, Ok(Outcome::Extended { wanted, room_in, .. }))) if !held.has_room() => {
                if wanted {
                    // They may have come first.
                    held.hand_over_until(env.now);
                }
                let mut holder = held.holder(env.now);
                holder.remaining = room_in.or(holder.remaining);
                self.busy(holder, Some(limit), env);
            }
            _ => {}
        }
        if let After::Over { passed_on } = after
            && let Some(held) = self.end_lease(env.now)
        {
            if !matches!(action, Action::Release) {
                self.take_back(&held, env.now);
            }
            if passed_on {
                let pause = self.fairness.pause_before_next_ask(env);
                self.asking.ask_after(pause, env.now);
            }
        }
    }

    /// Applies the answer to the extension of a row that was passed on.
    fn apply_to_arriving(
        &mut self,
        sent_at: Time,
        ttl: Duration,
        owner: Uuid,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let Some(arriving) = self.asking.arriving() else {
            return;
        };
        match answer {
            Ok(Outcome::Extended {
                remaining, wanted, ..
            }) => {
                let grant = Grant {
                    lease_id: arriving.lease_id,
                    fence_token: arriving.fence_token,
                    spare_tokens: arriving.spare_tokens,
                    times: Times {
                        store_end: sent_at + remaining,
                        // An earlier extension of unknown outcome, for another caller, may still be carried out.
                        over_at: arriving.over_at.max(env.now + remaining),
                        length: ttl,
                        since: sent_at,
                    },
                    row_owner: Some(owner),
                    wanted,
                    limit: arriving.limit,
                };
                self.asking.unentered = None;
                self.arrive(grant, None, None, env);
            }
            Ok(Outcome::Lost) => {
                self.asking.unentered = None;
                self.asking.ask_now();
            }
            Ok(_) => self.asking.retry_arriving(Duration::ZERO, env),
            Err(error) => {
                // The extension may still be carried out within one ttl, and then lasts one more. So the row
                // may be busy for two.
                self.asking.retry_arriving(ttl * 2, env);
                self.refuse_hopeless(&error);
                self.asking.note_answer(LastAnswer::Failed(error), env.now);
            }
        }
    }

    fn apply_to_waiter(
        &mut self,
        sent: &OnItsWay,
        asked: &Asked,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let ask = &asked.acquire;
        self.asking.answered_in(env.now.since(sent.sent_at));
        let (now, lease_id) = (env.now, sent.lease_id);
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
                recorded,
                ..
            }) => {
                // A fresh grant has exactly the ttl of this ask. If the rest is not that long, the row was
                // passed on to our place. If it happens to be that long, the lease is good for as long as a fresh one.
                let place = self.asking.place().filter(|_| remaining != ask.ttl);
                let grant = Grant {
                    lease_id,
                    fence_token,
                    spare_tokens: ask.spare_tokens,
                    times: Times {
                        store_end: sent.sent_at + remaining,
                        over_at: now + remaining,
                        length: place.map_or(ask.ttl, |place| place.next_ttl),
                        since: sent.sent_at,
                    },
                    // The place may come from an earlier ask for another caller.
                    row_owner: place.is_none().then_some(ask.owner),
                    wanted,
                    limit: ask.limit,
                };
                let undo = asked.undo.clone().filter(|_| recorded);
                self.arrive(grant, Some(asked.number), undo, env);
                self.note_taken_over(taken_over);
            }
            Ok(Outcome::Queued { holder, next_ttl, .. }) => {
                self.asking.queued(Place {
                    lease_id,
                    holder_token: holder.fence_token,
                    wake_up_token: asked.wake_up_token,
                    next_ttl,
                    store_end: sent.sent_at + next_ttl,
                    spare_tokens: ask.spare_tokens,
                    limit: ask.limit,
                });
                self.busy(holder, ask.limit, env);
            }
            Ok(Outcome::Busy(holder)) => {
                self.busy(holder, ask.limit, env);
                if ask.wanted_for.is_none() && !self.queue.is_empty() {
                    // Nobody waited when this was asked: the row must be told of those that wait now.
                    self.asking.ask_now();
                }
            }
            Ok(Outcome::Skipped) => {
                self.refuse_locked_out(self.asking.locked_since(now), now);
                let waited = self
                    .queue
                    .first()
                    .map_or(Duration::ZERO, |(_, first)| now.since(first.since));
                self.asking.skipped(waited, env);
            }
            Ok(Outcome::Lost) if self.asking.place().is_some() => {
                // The row was passed on to the lease, which expired before any wake-up arrived.
                self.asking.unentered = None;
                self.asking.ask_now();
            }
            Ok(other) => {
                // The lease was never granted, so no store that keeps its contract answers this.
                let message = format!("the store answered an acquire with {other:?}");
                let error = StoreError::new(StoreErrorKind::Interrupted, message);
                self.acquire_failed(lease_id, asked, error, env);
            }
            Err(error) => self.acquire_failed(lease_id, asked, error, env),
        }
    }

    fn note_taken_over(&mut self, former: Option<Holder>) {
        if let Some((held, former)) = self.held.as_ref().zip(former) {
            self.notes
                .push(Note::TakenOver(Arc::clone(held.current()), former));
        }
    }

    /// There was no room for callers with this limit.
    fn busy(&mut self, holder: Holder, limit: Option<u32>, env: &mut Env<'_>) {
        let refusal = Refusal::Busy(Some(holder.clone()));
        self.refuse_non_blocking(&refusal, |waiter| waiter.call.options.limit <= limit);
        // One with a larger limit may find room, unless it came after one that waits.
        let waits = |(_, first): (u64, &Waiter<A>)| !first.call.is_non_blocking();
        if self.queue.first().is_some_and(waits) {
            self.refuse_non_blocking(&refusal, |_| true);
        }
        self.asking.busy(holder, env);
        self.asking.no_room_for(limit);
    }

    fn acquire_failed(&mut self, lease_id: Uuid, asked: &Asked, error: StoreError, env: &mut Env<'_>) {
        let ttl = asked.acquire.ttl;
        if error.is_outcome_unknown() {
            let mut abandoned = match self.asking.place() {
                Some(_) => Abandoned::with_place(lease_id, ttl, env.now),
                None => Abandoned::new(lease_id, ttl, env.now),
            };
            abandoned.undo.clone_from(&asked.undo);
            self.asking.unentered = None;
            self.abandoned.push(abandoned);
        }
        self.refuse_hopeless(&error);
        self.asking.failed(error, env);
    }

    // ── What the engine counts ─────────────────────────────────────────────────────────────────────

    // The engine counts keys by these methods, and forgets a key that is idle.

    /// A release must still be written to the row, or is on its way.
    pub fn has_release_pending(&self) -> bool {
        // An acquire that no caller waits for any more is released once it is granted.
        let releases = |sent: &OnItsWay| match &sent.what {
            Sent::Abandoned => true,
            Sent::OwnLease(action) => !matches!(action, Action::Extend(_)),
            Sent::Acquire(_) => self.queue.is_empty(),
            Sent::Arriving { .. } | Sent::Adoption(_) => false,
        };
        !self.abandoned.is_empty()
            || self.held.as_ref().is_some_and(Held::needs_release)
            || self.on_its_way.as_ref().is_some_and(releases)
    }

    /// An owner holds the lock, is about to enter, or has just left. A shutdown waits for this, for its grace
    /// at most. Leases that no caller took, and rows that `hold_min` keeps busy by themselves, need no grace.
    pub fn needs_grace(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.lingers_by_itself())
            || self.on_its_way.is_some()
            || self.turns.is_out()
    }

    /// A lease is held or abandoned, a request is on its way, or a caller tries to take the key.
    pub fn is_busy(&self) -> bool {
        self.held.is_some() || !self.abandoned.is_empty() || self.on_its_way.is_some() || self.turns.is_out()
    }

    /// Nothing needs to be known about the key.
    pub fn is_idle(&self) -> bool {
        !self.is_busy()
            && self.queue.is_empty()
            && self.adopting.is_empty()
            && self.asking.unentered.is_none()
            && self.listed.kind().is_none()
            && self.turns.is_idle()
    }
}
