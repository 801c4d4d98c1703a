//! One key: everything that a process knows and decides about it, as a machine without I/O.
//!
//! [`Machine::step`] takes an [`Event`] and says what it wants done. At most one request for a key is on its way, and
//! a request of unknown outcome is confirmed before the next one.
//!
//! - [`held`] is the lease that this process has, a state machine drawn at the top of its file.
//! - [`asking`] says when to ask for one, and keeps this process's place in the queue between processes.
//! - [`wait_queue`] are the callers of this process, [`fairness`] is between processes.
//! - [`abandoned`] are leases that nobody takes any more.

mod abandoned;
mod asking;
mod fairness;
mod held;
mod wait_queue;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

pub(crate) use self::held::Confirm;
pub(crate) use self::wait_queue::Waiter;

use self::abandoned::Abandoned;
use self::asking::{Arriving, Asking};
use self::fairness::Fairness;
use self::held::{After, Grant, Held, ttl_of};
use self::wait_queue::WaitQueue;
use super::env::Env;
use super::flaw::{Flaw, flawed};
use super::out::{Kind, LastAnswer, Note, Out, Refusal, Reply};
use super::ownership::Ownership;
use super::time::Time;
use crate::error::LostReason;
use crate::key::Key;
use crate::store::{
    Acquire, Action, Extend, HandedOver, Occupant, Outcome, Request, StoreError, StoreErrorKind,
};

/// What must be left at least of a lease that was passed on for a caller to enter at once: an extension follows.
const ENOUGH_TO_ENTER: Duration = Duration::from_millis(100);

/// How long a caller that does not wait puts up with a row that somebody has locked.
const ROW_LOCKED_TIMEOUT: Duration = Duration::from_secs(1);

/// What happens to a key.
#[derive(Debug)]
pub(crate) enum Event<C> {
    /// A caller wants the lock.
    Acquire(Box<Waiter<C>>),
    /// A caller has gone away; by the number that [`Out::waiter`] told.
    GiveUp(u64),
    /// A re-entry: one more hold. `confirm` is answered when the store says that the lease still holds.
    Enter(Arc<Ownership>, Option<Confirm<C>>),
    /// A hold ends. `in_order`: the body returned. `confirm` is answered when the row says so.
    Leave {
        ownership: Arc<Ownership>,
        in_order: bool,
        confirm: Option<Confirm<C>>,
    },
    /// A fence check: the lock goes on through the store from here on. `confirm` is answered when the row names the
    /// owner.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    Pin(Arc<Ownership>, Option<Confirm<C>>),
    /// The store does not know the lease any more, as somebody else has found out.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    Gone(Arc<Ownership>),
    /// The request for this key may go out now, if it is one of these kinds.
    Send(&'static [Kind]),
    /// The answer to the request on its way.
    Answer(Result<Outcome, StoreError>),
    /// Somebody has freed the key, or a wake-up may have been missed.
    WokenUp,
    /// The key was passed on to this lease, with this token.
    PassedOn(Uuid, i64),
    /// Wake-ups are not heard any more.
    WakeUpsLost,
    /// Time has passed.
    Time,
    /// The manager shuts down: callers that hold no other lock are refused.
    Refuse,
    /// What is held ends, and all callers are refused.
    Stop,
    /// The same for good: nobody sends or answers anything any more.
    End,
}

/// Everything that a process knows about one key.
#[derive(Debug)]
pub(crate) struct Machine<C> {
    key: Key,
    queue: WaitQueue<C>,
    held: Option<Held<C>>,
    asking: Asking,
    fairness: Fairness,
    abandoned: Vec<Abandoned>,
    on_its_way: Option<OnItsWay>,
    /// The kind of request for which the dispatcher has this key on a list.
    listed: Option<Kind>,
}

/// The request on its way.
#[derive(Debug)]
struct OnItsWay {
    lease_id: Uuid,
    action: Action,
    for_whom: ForWhom,
    sent_at: Time,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ForWhom {
    Abandoned,
    Held,
    /// A row that was passed on: nobody has entered yet.
    Arriving,
    /// The caller with this number.
    Waiter(u64),
}

/// What to send next.
enum Plan {
    Held(Action),
    Abandoned(Uuid),
    Arriving(Arriving),
    Acquire,
}

impl Plan {
    fn kind(&self) -> Kind {
        match self {
            Self::Held(action) => Kind::of(action),
            Self::Abandoned(_) => Kind::Release,
            Self::Arriving(_) => Kind::Extend,
            Self::Acquire => Kind::Acquire,
        }
    }
}

/// What became of a lease that is offered to the callers of this process.
enum Offered {
    Entered,
    /// Its time is nearly over, or nobody wants it.
    OfNoUse,
    /// It must be extended first.
    TooShort,
}

impl<C> Machine<C> {
    pub(crate) fn new(key: Key) -> Self {
        Self {
            key,
            queue: WaitQueue::new(),
            held: None,
            asking: Asking::new(),
            fairness: Fairness::default(),
            abandoned: Vec::new(),
            on_its_way: None,
            listed: None,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Takes an event, and says what is to be done.
    pub(crate) fn step(&mut self, env: &mut Env<'_>, event: Event<C>) -> Out<C> {
        let mut out = Out::default();
        // Whether a lease has ended is decided before an answer moves its end.
        if !flawed(Flaw::LostLivesAgain) {
            self.pass_time(env, &mut out);
        }
        self.take(event, env, &mut out);
        self.pass_time(env, &mut out);
        self.plan_ahead(env, &mut out);
        out
    }

    fn take(&mut self, event: Event<C>, env: &mut Env<'_>, out: &mut Out<C>) {
        let now = env.now;
        match event {
            Event::Acquire(waiter) => {
                if waiter.non_blocking || self.queue.is_empty() {
                    self.asking.ask_now();
                }
                out.waiter = self.queue.push(waiter);
            }
            Event::GiveUp(_) if flawed(Flaw::GoneCallersAreKept) => {}
            Event::GiveUp(number) => drop(self.queue.remove(number)),
            Event::Enter(ownership, confirm) => {
                let entered = match &mut self.held {
                    Some(held) => held.enter(&ownership),
                    None => Err(LostReason::Released),
                };
                out.entered = entered.is_ok();
                self.confirm(&ownership, confirm, entered.map(|()| false), out);
            }
            Event::Leave {
                ownership,
                in_order,
                confirm,
            } => {
                let left = self
                    .held
                    .as_mut()
                    .and_then(|held| held.leave(&ownership, in_order, now));
                self.confirm(
                    &ownership,
                    confirm,
                    left.map(|()| false).ok_or(LostReason::Released),
                    out,
                );
            }
            Event::Pin(ownership, confirm) => {
                let pinned = match &mut self.held {
                    Some(held) => held.pin(&ownership),
                    None => Err(LostReason::Released),
                };
                self.confirm(&ownership, confirm, pinned.map(|()| true), out);
            }
            Event::Gone(ownership) => {
                let held = self
                    .held
                    .as_mut()
                    .filter(|held| Arc::ptr_eq(held.current(), &ownership));
                if let Some(held) = held {
                    let reason = if ownership.is_revoked() {
                        LostReason::Revoked
                    } else {
                        LostReason::Gone
                    };
                    held.end(reason, now, out);
                }
            }
            Event::Send(kinds) => {
                self.listed = None;
                out.request = self.send(kinds, env);
                out.time_limit = self.held.as_ref().and_then(|held| held.time_limit(now));
            }
            Event::Answer(answer) => self.answer(answer, env, out),
            Event::WokenUp => self.asking.woken(),
            Event::PassedOn(lease_id, fence_token) => self.passed_on(lease_id, fence_token, env),
            Event::WakeUpsLost => self.asking.wake_ups_lost(env),
            Event::Time => {}
            Event::Refuse => self.refuse_all(false, out),
            Event::Stop => self.stop(now, out),
            Event::End => {
                self.stop(now, out);
                if let Some(held) = &mut self.held {
                    held.give_up_confirms(out);
                }
            }
        }
    }

    fn confirm(
        &mut self,
        ownership: &Ownership,
        confirm: Option<Confirm<C>>,
        named: Result<bool, LostReason>,
        out: &mut Out<C>,
    ) {
        match (confirm, named, &mut self.held) {
            (None, ..) => {}
            (Some(confirm), Ok(named), Some(held)) => held.confirm(confirm, named, out),
            (Some(confirm), ..) => {
                let reason = ownership.ended().unwrap_or(LostReason::Released);
                out.replies.push(Reply::Lost(confirm.ticket, reason));
            }
        }
    }

    // ── What time does ───────────────────────────────────────────────────────────────────────────────

    /// Lets time pass: ends and forgets a lease, lets the next caller in, and answers callers whose time is over.
    fn pass_time(&mut self, env: &mut Env<'_>, out: &mut Out<C>) {
        let now = env.now;
        self.refuse_overdue(now, out);
        if let Some(held) = &mut self.held {
            if held.pass_time(now, out) {
                self.forget(env, out);
            } else {
                held.hand_over(&mut self.queue, &self.key, now, out);
            }
        }
        if self.held.as_ref().is_some_and(Held::is_held) {
            // The row was not theirs meanwhile, and they are not released before the lock is.
            self.abandoned.retain(|abandoned| now < abandoned.over_at);
        }
        let asking = self.on_its_way.is_some() && !flawed(Flaw::WakeUpsAreBelievedWhileAsking);
        if self.held.is_none() && !asking {
            self.enter_after_wake_up(env, out);
            self.give_up_places(now);
        }
    }

    /// The lease has ended in the store, unless a request of unknown outcome has extended the row: then nobody would
    /// hold it for one more ttl.
    fn forget(&mut self, env: &Env<'_>, out: &mut Out<C>) {
        let Some(held) = self.held.take() else { return };
        let sent = self.on_its_way.as_ref();
        let extend_on_its_way = sent
            .filter(|sent| sent.for_whom == ForWhom::Held)
            .and_then(|sent| ttl_of(&sent.action));
        self.after(&held, env.now);
        let lease_id = held.lease_id();
        if let Some((ttl, kept_until)) = held.forget(extend_on_its_way, env.now, out) {
            let mut abandoned = Abandoned::new(lease_id, ttl, env.now);
            abandoned.retry_at = kept_until;
            self.abandoned.push(abandoned);
        }
    }

    /// The lease of this process is over.
    fn after(&mut self, held: &Held<C>, now: Time) {
        self.asking.released(held.occupant(now), held.hand_overs(), now);
        if let Some(trouble) = held.trouble() {
            self.asking.answered(trouble, now);
        }
    }

    fn refuse_overdue(&mut self, now: Time, out: &mut Out<C>) {
        if self.queue.first_deadline().is_none_or(|deadline| now < deadline) && !self.queue.has_non_blocking()
        {
            return;
        }
        let mut occupant = None;
        if let Some(held) = &self.held {
            if held.is_occupied() {
                occupant = Some(held.occupant(now));
                self.refuse_non_blocking(Time::MAX, &Refusal::Held(occupant.clone()), out);
            } else {
                // Nobody holds it while the last release is on its way: callers wait for its answer.
                self.asking.note_trouble(held.trouble(), now);
            }
        }
        if flawed(Flaw::TimeoutsAreForgotten) {
            return;
        }
        while let Some(waiter) = self.queue.pop_overdue(now) {
            let refusal = match &occupant {
                Some(_) => Refusal::Held(occupant.clone()),
                None => self.asking.refusal(waiter.since, waiter.non_blocking),
            };
            out.replies.push(Reply::Refused(waiter, refusal));
        }
    }

    fn refuse_non_blocking(&mut self, came_before: Time, refusal: &Refusal, out: &mut Out<C>) {
        while let Some(waiter) = self.queue.pop_non_blocking(came_before) {
            out.replies.push(Reply::Refused(waiter, refusal.clone()));
        }
    }

    fn refuse_all(&mut self, nested_too: bool, out: &mut Out<C>) {
        let refused = self.queue.take(nested_too).into_iter();
        out.replies
            .extend(refused.map(|waiter| Reply::Refused(waiter, Refusal::Shutdown)));
    }

    /// Ends what is held and refuses all callers. A row that `hold_min` keeps busy is left to expire.
    fn stop(&mut self, now: Time, out: &mut Out<C>) {
        self.refuse_all(true, out);
        if let Some(held) = self.held.take_if(|held| held.lingers_by_itself()) {
            out.notes.push(Note::LeftBusy(Arc::clone(held.current())));
        }
        if let Some(held) = &mut self.held {
            held.end(LostReason::Shutdown, now, out);
        }
    }

    // ── Places in the queue ──────────────────────────────────────────────────────────────────────────

    fn passed_on(&mut self, lease_id: Uuid, fence_token: i64, env: &mut Env<'_>) {
        let asked = self
            .on_its_way
            .as_ref()
            .filter(|sent| matches!(sent.for_whom, ForWhom::Waiter(_)));
        if self
            .asking
            .passed_on(lease_id, fence_token, asked.map(|sent| sent.lease_id))
        {
            return;
        }
        let abandoned = self
            .abandoned
            .iter_mut()
            .find(|abandoned| abandoned.lease_id == lease_id);
        match abandoned {
            Some(abandoned) => abandoned.passed_on(env.now),
            None if self.held.is_none() && !self.queue.is_empty() => {
                let pause = self.fairness.passed_over(env);
                self.asking.woken_for_another(pause, env.now);
            }
            None => {}
        }
    }

    /// Lets the first caller in when the row was passed on to this process.
    fn enter_after_wake_up(&mut self, env: &mut Env<'_>, out: &mut Out<C>) {
        let Some((place, fence_token)) = self.asking.arrived() else {
            return;
        };
        let grant = Grant {
            lease_id: place.lease_id,
            fence_token,
            spare_tokens: place.spare_tokens,
            store_end: if flawed(Flaw::PlacesCountFromTheWakeUp) {
                env.now + place.next_ttl
            } else {
                place.until
            },
            over_at: env.now + place.next_ttl,
            length: place.next_ttl,
            // The extension that follows names the owner.
            row_owner: None,
            since: env.now,
            wanted: true,
        };
        self.arrive(grant, None, env, out);
    }

    /// Gives back what nobody waits for any more.
    fn give_up_places(&mut self, now: Time) {
        if !self.queue.is_empty() || flawed(Flaw::PlacesAreKept) {
            return;
        }
        let place = if flawed(Flaw::WithdrawnPlaceIsKept) {
            self.asking.place
        } else {
            self.asking.place.take()
        };
        if let Some(place) = place {
            // The successor lapses, and the lease too if the row was passed on to it just before.
            let lapses = now + fairness::WANTED_FOR + place.next_ttl;
            self.abandoned
                .push(Abandoned::answered(place.lease_id, lapses, now));
        }
        if let Some(arriving) = self.asking.arriving.take() {
            self.abandoned
                .push(Abandoned::answered(arriving.lease_id, arriving.until, now));
        }
    }

    /// Gives a lease that the store has granted to a caller, extends it first, or gives it back.
    fn arrive(&mut self, grant: Grant, asked: Option<u64>, env: &mut Env<'_>, out: &mut Out<C>) {
        let (lease_id, until, fence_token) = (grant.lease_id, grant.over_at, grant.fence_token);
        match self.offer(grant, asked, env, out) {
            Offered::Entered => {}
            Offered::OfNoUse => {
                self.asking.place = None;
                self.asking.arriving = None;
                self.abandoned.push(Abandoned::answered(lease_id, until, env.now));
                self.asking.ask_now();
            }
            Offered::TooShort => {
                self.asking.must_extend(Arriving {
                    lease_id,
                    fence_token,
                    spare_tokens: grant.spare_tokens,
                    until,
                    retry_at: env.now,
                });
            }
        }
    }

    /// Offers a lease to the caller that was asked for, or to the first one.
    fn offer(&mut self, grant: Grant, asked: Option<u64>, env: &mut Env<'_>, out: &mut Out<C>) -> Offered {
        let now = env.now;
        let first = self.queue.first().map(|(number, _)| number);
        let asked = asked.and_then(|number| self.queue.remove(number).map(|waiter| (number, waiter)));
        let taken = asked.or_else(|| first.and_then(|number| Some((number, self.queue.remove(number)?))));
        let Some((number, waiter)) = taken else {
            return Offered::OfNoUse;
        };
        let call = &waiter.call;
        let deadline = grant.deadline(call.ttl);
        let whole = grant.row_owner.is_some() && call.ttl <= grant.length;
        let enough = if whole {
            now < deadline
        } else {
            now + self.asking.time_of_two_answers().max(ENOUGH_TO_ENTER) < deadline
                || flawed(Flaw::TooLittleIsEnough)
        };
        if !enough || !whole && !call.renew {
            self.queue.put_back(number, waiter);
            // A whole lease of which nothing is left was answered too late.
            return if whole {
                Offered::OfNoUse
            } else {
                Offered::TooShort
            };
        }
        let ids = (grant.lease_id, grant.fence_token);
        let ownership = Ownership::new(self.key.clone(), call.clone(), ids, (grant.since, now), deadline);
        let ownership = Arc::new(ownership);
        self.asking.granted(now);
        let until = self.fairness.granted(grant.wanted, env);
        self.held = Some(Held::new(grant, Arc::clone(&ownership), until, now));
        out.replies.push(Reply::Granted(waiter, ownership));
        Offered::Entered
    }

    // ── What is sent ─────────────────────────────────────────────────────────────────────────────────

    /// Says what is ready to be sent, and when to look again.
    fn plan_ahead(&mut self, env: &Env<'_>, out: &mut Out<C>) {
        let now = env.now;
        let kind = self.plan(now).map(|plan| plan.kind());
        if kind.is_some() && kind != self.listed {
            self.listed = kind;
            out.ready = kind;
        }
        out.look_at = self.next_look(now);
        #[cfg(any(test, feature = "simulation"))]
        self.check_looks(out.look_at);
        out.wants_wake_ups = self.held.is_none() && self.asking.ask_at().is_some() && !self.queue.is_empty();
        out.idle = self.is_idle();
    }

    /// There is nothing to know about the key.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_busy()
            && self.queue.is_empty()
            && self.asking.place.is_none()
            && self.asking.arriving.is_none()
            && self.listed.is_none()
    }

    fn plan(&self, now: Time) -> Option<Plan> {
        if self.on_its_way.is_some() && !flawed(Flaw::RequestsOvertake) {
            return None;
        }
        // What keeps a lease comes before what ends one that nobody took.
        if let Some(held) = &self.held
            && let Some(action) = held.next_action(now)
        {
            return Some(Plan::Held(action));
        }
        if let Some(arriving) = self.asking.arriving.filter(|arriving| arriving.retry_at <= now) {
            return Some(Plan::Arriving(arriving));
        }
        // The newest first: nothing comes between an acquire and the release that undoes it. While somebody holds the
        // lock, the row is not theirs, and a release on its way would only make a renewal late.
        let renews = self.held.as_ref().is_some_and(Held::is_held);
        let mut due = self.abandoned.iter().rev().filter(|_| !renews);
        if let Some(abandoned) = due.find(|abandoned| abandoned.retry_at <= now) {
            return Some(Plan::Abandoned(abandoned.lease_id));
        }
        let asks = self.held.is_none() && !self.queue.is_empty() && self.asking.may_ask(now);
        asks.then_some(Plan::Acquire)
    }

    /// The request to send now; it is on its way from here on.
    fn send(&mut self, kinds: &[Kind], env: &mut Env<'_>) -> Option<Request> {
        let plan = self.plan(env.now).filter(|plan| kinds.contains(&plan.kind()))?;
        let (lease_id, action, for_whom) = match plan {
            Plan::Held(action) => {
                let held = self.held.as_mut()?;
                held.sent(&action);
                (held.lease_id(), action, ForWhom::Held)
            }
            Plan::Abandoned(lease_id) => (lease_id, Action::Release, ForWhom::Abandoned),
            Plan::Arriving(arriving) => {
                let (_, first) = self.queue.first()?;
                let mut extend = Extend::new(1, first.call.ttl);
                extend.handed_over = Some(HandedOver {
                    owner: first.call.owner,
                    holder: Arc::clone(&first.call.holder),
                    fence_token: arriving.fence_token,
                });
                (arriving.lease_id, Action::Extend(extend), ForWhom::Arriving)
            }
            Plan::Acquire => {
                let (number, first) = self.queue.first()?;
                let call = &first.call;
                let mut acquire = Acquire::new(call.owner, call.ttl, Arc::clone(&call.holder));
                acquire.wanted_for = (self.queue.blocking() > 0).then_some(fairness::WANTED_FOR);
                let waited = env.now.since(first.since);
                acquire.queue =
                    (acquire.wanted_for.is_some() && Asking::queues(waited, env)).then_some(waited);
                let (lease_id, spare_tokens) = self.asking.asked(self.queue.len() > 1, env);
                acquire.spare_tokens = spare_tokens;
                (lease_id, Action::Acquire(acquire), ForWhom::Waiter(number))
            }
        };
        self.on_its_way = Some(OnItsWay {
            lease_id,
            action: action.clone(),
            for_whom,
            sent_at: env.now,
        });
        Some(Request {
            key: self.key.clone(),
            lease_id,
            action,
        })
    }

    /// When to look again without an event.
    fn next_look(&self, now: Time) -> Option<Time> {
        let asked = self.on_its_way.is_some();
        // What was due before is listed, or follows the request on its way: only what comes later needs a look.
        let later = |at: &Time| !asked && *at > now;
        let abandoned = self.abandoned.iter().map(|abandoned| abandoned.retry_at);
        let abandoned = abandoned.filter(later);
        let arriving = self
            .asking
            .arriving
            .map(|arriving| arriving.retry_at)
            .filter(later);
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

    /// What must happen without another event is sent for, or looked at in time.
    #[cfg(any(test, feature = "simulation"))]
    fn check_looks(&self, look_at: Option<Time>) {
        let by = |at: Time| look_at.is_some_and(|look| look <= at);
        if let Some(deadline) = self.queue.first_deadline() {
            assert!(by(deadline), "a caller's time is over before anybody looks");
        }
        let sends = self.on_its_way.is_some() || self.listed.is_some();
        if let Some(at) = self.held.as_ref().and_then(Held::must_send_by).filter(|_| !sends) {
            assert!(by(at), "a renewal is due before anybody looks");
        }
    }

    // ── What is answered ─────────────────────────────────────────────────────────────────────────────

    fn answer(&mut self, answer: Result<Outcome, StoreError>, env: &mut Env<'_>, out: &mut Out<C>) {
        let Some(sent) = self.on_its_way.take() else {
            return;
        };
        if flawed(Flaw::AnswersCountTwice) {
            self.apply(&sent, answer.clone(), env, out);
        }
        self.apply(&sent, answer, env, out);
    }

    fn apply(
        &mut self,
        sent: &OnItsWay,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
        out: &mut Out<C>,
    ) {
        match sent.for_whom {
            ForWhom::Abandoned => self.abandoned.retain_mut(|abandoned| {
                abandoned.lease_id != sent.lease_id
                    || !abandoned.release_answered(&answer, sent.sent_at, env.now)
            }),
            ForWhom::Held => self.answer_held(sent, answer, env, out),
            ForWhom::Arriving => self.answer_arriving(sent, answer, env, out),
            ForWhom::Waiter(number) => self.answer_acquire(number, sent, answer, env, out),
        }
    }

    fn answer_held(
        &mut self,
        sent: &OnItsWay,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
        out: &mut Out<C>,
    ) {
        let Some(held) = self.held.as_mut().filter(|held| held.lease_id() == sent.lease_id) else {
            return;
        };
        if let Ok(Outcome::Extended { wanted, .. }) = &answer {
            out.notes.extend(held.renewal_lag(env.now).map(Note::RenewalLag));
            held.hand_over_until(self.fairness.extended(*wanted, env));
        }
        let after = held.answered(&sent.action, sent.sent_at, answer, env.now, out);
        if let After::Over { passed_on } = after
            && let Some(held) = self.held.take()
        {
            self.after(&held, env.now);
            if passed_on {
                let pause = self.fairness.passed_over(env);
                self.asking.ask_after(pause, env.now);
            }
        }
    }

    /// The extension of a row that was passed on.
    fn answer_arriving(
        &mut self,
        sent: &OnItsWay,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
        out: &mut Out<C>,
    ) {
        let Some(arriving) = self.asking.arriving else {
            return;
        };
        let Action::Extend(Extend {
            ttl,
            handed_over: Some(to),
            ..
        }) = &sent.action
        else {
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
                    store_end: sent.sent_at + remaining,
                    over_at: env.now + remaining,
                    length: *ttl,
                    row_owner: Some(to.owner),
                    since: sent.sent_at,
                    wanted,
                };
                self.asking.arriving = None;
                self.arrive(grant, None, env, out);
            }
            Ok(Outcome::Lost) => {
                self.asking.arriving = None;
                self.asking.ask_now();
            }
            Ok(_) => self.asking.retry_arriving(Duration::ZERO, env),
            Err(error) => {
                // It may have been carried out all the same.
                self.asking.retry_arriving(*ttl, env);
                self.refuse_hopeless(&error, out);
                self.asking.answered(LastAnswer::Failed(error), env.now);
            }
        }
    }

    fn answer_acquire(
        &mut self,
        number: u64,
        sent: &OnItsWay,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
        out: &mut Out<C>,
    ) {
        let Action::Acquire(ask) = &sent.action else {
            return;
        };
        self.asking.took(env.now.since(sent.sent_at));
        let (now, lease_id) = (env.now, sent.lease_id);
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
            }) => {
                // A fresh lease is as long as the ask; what is left of another length is a row that was passed on.
                let place = self.asking.place.filter(|_| remaining != ask.ttl);
                let grant = Grant {
                    lease_id,
                    fence_token,
                    spare_tokens: ask.spare_tokens,
                    store_end: sent.sent_at + remaining,
                    over_at: now + remaining,
                    length: place.map_or(ask.ttl, |place| place.next_ttl),
                    // An earlier ask for another caller may have given the place.
                    row_owner: place.is_none().then_some(ask.owner),
                    since: sent.sent_at,
                    wanted,
                };
                self.arrive(grant, Some(number), env, out);
                self.note_taken_over(taken_over, out);
            }
            Ok(Outcome::Queued { occupant, next_ttl }) => {
                self.asking.queued(
                    lease_id,
                    ask.spare_tokens,
                    occupant.fence_token,
                    next_ttl,
                    sent.sent_at,
                );
                self.busy(occupant, env, out);
            }
            Ok(Outcome::Busy(occupant)) => {
                self.busy(occupant, env, out);
                if ask.wanted_for.is_none() && !self.queue.is_empty() {
                    // Nobody waited when it was asked: the row must hear of those that do.
                    self.asking.ask_now();
                }
            }
            Ok(Outcome::Skipped) => {
                let patient = now.before(ROW_LOCKED_TIMEOUT);
                self.refuse_non_blocking(patient, &Refusal::RowLocked, out);
                self.asking.skipped(env);
            }
            Ok(Outcome::Lost) if self.asking.place.is_some() => {
                // It was passed on, and ran out before anybody heard of it.
                self.asking.place = self.asking.place.filter(|_| flawed(Flaw::LostPlaceIsKept));
                self.asking.ask_now();
            }
            Ok(other) => {
                // The lease was never granted, so no store that keeps its contract says that.
                let message = format!("the store answered an acquire with {other:?}");
                let error = StoreError::new(StoreErrorKind::Interrupted, message);
                self.acquire_failed(lease_id, ask.ttl, error, env, out);
            }
            Err(error) => self.acquire_failed(lease_id, ask.ttl, error, env, out),
        }
    }

    fn note_taken_over(&self, former: Option<Occupant>, out: &mut Out<C>) {
        if let Some((held, former)) = self.held.as_ref().zip(former) {
            out.notes
                .push(Note::TakenOver(Arc::clone(held.current()), former));
        }
    }

    fn busy(&mut self, occupant: Occupant, env: &mut Env<'_>, out: &mut Out<C>) {
        self.refuse_non_blocking(Time::MAX, &Refusal::Held(Some(occupant.clone())), out);
        self.asking.busy(occupant, env);
    }

    fn acquire_failed(
        &mut self,
        lease_id: Uuid,
        ttl: Duration,
        error: StoreError,
        env: &mut Env<'_>,
        out: &mut Out<C>,
    ) {
        if error.is_outcome_unknown() && !flawed(Flaw::UnknownOutcomeIsRepeated) {
            let abandoned = match self.asking.place {
                Some(_) => Abandoned::queued(lease_id, ttl, env.now),
                None => Abandoned::new(lease_id, ttl, env.now),
            };
            self.asking.place = self.asking.place.filter(|_| flawed(Flaw::UnknownPlaceIsKept));
            if !flawed(Flaw::AbandonedIsForgotten) {
                self.abandoned.push(abandoned);
            }
        }
        self.refuse_hopeless(&error, out);
        self.asking.failed(error, env);
    }

    /// Refuses callers for whom asking again makes no sense.
    fn refuse_hopeless(&mut self, error: &StoreError, out: &mut Out<C>) {
        let refusal = Refusal::Store(error.clone());
        if error.kind() == StoreErrorKind::Unreachable {
            self.refuse_non_blocking(Time::MAX, &refusal, out);
        }
        if !error.is_retryable() {
            let refused = self.queue.take(true).into_iter();
            out.replies
                .extend(refused.map(|waiter| Reply::Refused(waiter, refusal.clone())));
        }
    }

    // ── What the driver counts ───────────────────────────────────────────────────────────────────────

    /// A release must still be written to the row, or is on its way.
    pub(crate) fn has_release_pending(&self) -> bool {
        let releases = |sent: &OnItsWay| matches!(sent.action, Action::Release);
        !self.abandoned.is_empty()
            || self.held.as_ref().is_some_and(Held::is_left)
            || self.on_its_way.as_ref().is_some_and(releases)
    }

    /// Somebody holds the lock, or is on the way in or out: a shutdown gives them its grace. Leases that nobody
    /// took and rows that `hold_min` keeps busy by themselves need none.
    pub(crate) fn needs_grace(&self) -> bool {
        self.held.as_ref().is_some_and(|held| !held.lingers_by_itself()) || self.on_its_way.is_some()
    }

    /// Something is held, owed to the store or on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.held.is_some() || !self.abandoned.is_empty() || self.on_its_way.is_some()
    }
}

#[cfg(test)]
mod tests;
