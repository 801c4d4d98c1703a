//! How callers enter, and who is refused. Every lease from the store goes through [`Machine::arrive`]. A
//! lease that no caller wants is released. A kept lease is entered again by the next call in its transaction.
//! A lease that a caller's transaction took belongs to that caller.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Machine;
use super::abandoned::Abandoned;
use super::asking::{Arriving, Unentered, locked_pause};
use super::held::{Grant, Held, Times};
use super::queue::WANTED_FOR;
use super::requests::Sent;
use crate::machine::call::{Call, Takes};
use crate::machine::env::{Env, Time};
use crate::machine::out::{Note, Refusal, Reply, Turn, Waiter};
use crate::machine::ownership::Ownership;
use crate::options::LockOptions;
use crate::store::{RecordChange, StoreError, StoreErrorKind};

/// A caller enters at once with a passed-on lease that has at least this much time left. Otherwise it is
/// extended first.
const ENOUGH_TO_ENTER: Duration = Duration::from_millis(100);

/// The outcome of offering a lease to the callers of this process.
enum Offered {
    Entered,
    /// Too little time is left, or no caller wants it.
    OfNoUse,
    /// It must be extended before a caller enters.
    TooShort,
}

impl<A, C> Machine<A, C> {
    pub(super) fn passed_on(&mut self, lease_id: Uuid, fence_token: i64, env: &mut Env<'_>) {
        if self.asking.passed_on(lease_id, fence_token) {
            return;
        }
        if let Some(sent) = self.on_its_way.as_mut().filter(|sent| sent.lease_id == lease_id)
            && let Sent::Acquire(asked) = &mut sent.what
        {
            asked.wake_up_token = asked.wake_up_token.max(Some(fence_token));
            return;
        }
        let abandoned = self
            .abandoned
            .iter_mut()
            .find(|abandoned| abandoned.lease_id == lease_id);
        match abandoned {
            Some(abandoned) => abandoned.passed_on(env.now),
            None if self.held.is_none() && !self.queue.is_empty() => {
                let pause = self.fairness.pause_before_next_ask(env);
                self.asking.woken_for_another(pause, env.now);
            }
            None => {}
        }
    }

    /// The first caller enters if a wake-up has said that the row was passed on to this process.
    pub(super) fn enter_after_wake_up(&mut self, env: &mut Env<'_>) {
        let Some((place, fence_token)) = self.asking.arrived() else {
            return;
        };
        let grant = Grant {
            lease_id: place.lease_id,
            fence_token,
            spare_tokens: place.spare_tokens,
            times: Times {
                store_end: place.store_end,
                over_at: env.now + place.next_ttl,
                length: place.next_ttl,
                since: env.now,
            },
            // The extension that follows names the owner.
            row_owner: None,
            wanted: true,
            limit: place.limit,
        };
        self.arrive(grant, None, None, env);
    }

    /// Gives back the places and leases that no caller waits for any more.
    pub(super) fn give_up_places(&mut self, now: Time) {
        let asked = self.asking.unentered_shares();
        let first = self
            .queue
            .first()
            .map(|(_, first)| first.call.options.limit.is_some());
        // A place for a shared hold is of no use to a caller that wants the lock alone, and the other way round.
        if asked.is_some() && first != asked {
            self.give_up_unentered(now);
            self.asking.ask_now();
        }
    }

    /// Gives back the place or the lease that the row names, and that no caller has entered with.
    pub(super) fn give_up_unentered(&mut self, now: Time) {
        let (lease_id, over_at) = match self.asking.unentered {
            None => return,
            // By then the place has lapsed. If the row was passed on just before, that lease has expired too.
            Some(Unentered::Next(place)) => (place.lease_id, now + WANTED_FOR + place.next_ttl),
            Some(Unentered::MustExtend(arriving)) => (arriving.lease_id, arriving.over_at),
        };
        self.abandoned
            .push(Abandoned::all_answered(lease_id, over_at, now));
        self.asking.unentered = None;
    }

    /// Gives a lease of this process to a caller, extends it first, or gives it back to the store. With
    /// `undo` a run of the caller that asked began with the lease.
    pub(super) fn arrive(
        &mut self,
        grant: Grant,
        asked: Option<u64>,
        undo: Option<Arc<RecordChange>>,
        env: &mut Env<'_>,
    ) {
        let (lease_id, over_at, fence_token) = (grant.lease_id, grant.times.over_at, grant.fence_token);
        match self.offer(grant, asked, undo.is_some(), env) {
            Offered::Entered => {
                if let Some(held) = &mut self.held {
                    held.undo = undo;
                }
            }
            Offered::OfNoUse => {
                self.asking.unentered = None;
                let mut abandoned = Abandoned::all_answered(lease_id, over_at, env.now);
                abandoned.undo = undo;
                self.abandoned.push(abandoned);
                self.asking.ask_now();
            }
            Offered::TooShort => {
                self.asking.must_extend(Arriving {
                    lease_id,
                    fence_token,
                    spare_tokens: grant.spare_tokens,
                    limit: grant.limit,
                    over_at,
                    retry_at: env.now,
                });
            }
        }
    }

    /// Offers a lease to the caller that it was asked for, else to the first caller. A lease with which a run
    /// has `begun` is for no other caller.
    fn offer(&mut self, grant: Grant, asked: Option<u64>, begun: bool, env: &mut Env<'_>) -> Offered {
        let now = env.now;
        let fits = |call: &Call| match (call.options.limit, grant.limit) {
            (None, None) => true,
            (Some(limit), Some(granted)) => granted <= limit,
            _ => false,
        };
        let first = self
            .queue
            .first()
            .filter(|(_, first)| !begun && fits(&first.call));
        let first = first.map(|(number, _)| number);
        let asked = asked.and_then(|number| self.queue.remove(number).map(|waiter| (number, waiter)));
        let taken = asked.or_else(|| first.and_then(|number| Some((number, self.queue.remove(number)?))));
        let Some((number, waiter)) = taken else {
            return Offered::OfNoUse;
        };
        let call = &waiter.call;
        let LockOptions { ttl, renew, .. } = call.options;
        let deadline = grant.times.deadline(ttl);
        // The owner that the row names is known after a grant to an ask, and after the extension of a row that was passed
        // on. Before that the row has the short lease of a successor.
        let whole = grant.row_owner.is_some() && ttl <= grant.times.length;
        let enough = if whole {
            now < deadline
        } else {
            now + self.asking.time_of_two_answers().max(ENOUGH_TO_ENTER) < deadline
        };
        if !enough || !whole && !renew {
            self.queue.put_back(number, waiter);
            // A fresh lease without time left: its answer came too late.
            return if whole {
                Offered::OfNoUse
            } else {
                Offered::TooShort
            };
        }
        self.admit(grant, waiter, deadline, begun, env);
        Offered::Entered
    }

    /// The caller enters with the lease.
    pub(super) fn admit(
        &mut self,
        grant: Grant,
        waiter: Waiter<A>,
        deadline: Time,
        begun: bool,
        env: &mut Env<'_>,
    ) {
        let now = env.now;
        let mut ownership = Ownership::new(
            self.key.clone(),
            Arc::clone(&waiter.call),
            grant.lease_id,
            grant.fence_token,
            now,
            deadline,
        );
        ownership.since = grant.times.since;
        ownership.begun = begun;
        let ownership = Arc::new(ownership);
        self.entered(&ownership, waiter.since, now);
        let until = self.fairness.granted(grant.wanted, env);
        self.held = Some(Held::new(grant, Arc::clone(&ownership), until, now));
        self.reply(Reply::Granted(waiter, ownership));
    }

    // ── Asks and turns to take ────────────────────────────────────────────────────────────────────────────────────────

    /// A caller wants the lock: the store is asked at once, unless others wait for its answer.
    pub(super) fn ask_for(&mut self, call: &Call) {
        if call.is_non_blocking() || self.queue.is_empty() {
            self.asking.ask_now();
        }
    }

    /// The first caller gets a turn, if it can take the key and the row cannot name a lease of this process. Else it
    /// asks for a lease.
    pub(super) fn give_turn(&mut self, env: &mut Env<'_>) {
        let may_take = self.held.is_none()
            && self.turns.may_give()
            && self.asking.unentered.is_none()
            && self.abandoned.is_empty()
            && self.asking.may_ask(env.now);
        let alone = self.queue.len() == 1;
        let takes = |call: &Call| match call.takes {
            Takes::No => false,
            Takes::Alone => alone,
            Takes::First => true,
        };
        let first = self
            .queue
            .first()
            .filter(|(_, first)| may_take && takes(&first.call));
        let Some(number) = first.map(|(number, _)| number) else {
            return;
        };
        if let Some(waiter) = self.queue.remove(number) {
            let lease_id = env.random.lease_id();
            let turn = Turn { number, lease_id };
            let beside_others = self.asking.found_locked(env.now);
            self.turns.give(turn, waiter.since, beside_others, env.now);
            self.reply(Reply::Turn(waiter, turn));
        }
    }

    /// A caller's transaction has taken the key. The caller enters if it still has the turn.
    pub(super) fn take(
        &mut self,
        turn: Turn,
        fence_token: i64,
        call: Arc<Call>,
        now: Time,
    ) -> Option<Arc<Ownership>> {
        let since = self.turns.took(turn)?;
        let lease_id = turn.lease_id;
        let key = self.key.clone();
        let ownership = Arc::new(Ownership::new(key, call, lease_id, fence_token, now, Time::MAX));
        self.entered(&ownership, since, now);
        self.held = Some(Held::taken(Arc::clone(&ownership)));
        Some(ownership)
    }

    /// A caller that came at `since` enters with a lease that this process did not have.
    fn entered(&mut self, ownership: &Arc<Ownership>, since: Time, now: Time) {
        if self.asking.was_busy_after(since) {
            let waited = Note::Waited(Arc::clone(ownership), now.since(since));
            self.notes.push(waited);
        }
        self.asking.granted(now);
    }

    /// Another call in the transaction that keeps the lease.
    pub(super) fn enter_again(&mut self, lease_id: Uuid, waiter: Waiter<A>, now: Time) {
        let held = self.held.as_mut();
        let entered = held.and_then(|held| held.enter_again(lease_id, &waiter.call, &self.key, now));
        self.reply(match entered {
            Some(ownership) => Reply::Granted(waiter, ownership),
            None => Reply::Refused(waiter, Refusal::RowLocked),
        });
    }

    /// Asks sooner for the end of the transaction that keeps the row, while callers wait. Nothing reports
    /// that end. Each ask may also find the row locked by another process.
    pub(super) fn retry_sooner_for_waiters(&mut self, now: Time) {
        if let Some((held, (_, first))) = self.held.as_mut().zip(self.queue.first()) {
            held.ask_by(now + locked_pause(now.since(first.since)));
        }
    }

    // ── Who is refused ───────────────────────────────────────────────────────────────────────────────

    /// Refuses callers whose timeout has passed, and non-blocking callers of a key that is held.
    pub(super) fn refuse_overdue(&mut self, now: Time) {
        if self.queue.first_deadline().is_none_or(|deadline| now < deadline) && !self.queue.has_non_blocking()
        {
            return;
        }
        if let Some(held) = &self.held {
            if held.needs_release() {
                // Nobody holds the lock, but the row is not released yet: callers wait for that.
                self.asking.note_last_error(held.last_error(), now);
            } else if held.entrants(&self.queue, now).is_none() {
                let holder = held.holder(now);
                self.refuse_non_blocking(&Refusal::Busy(Some(holder)), |_| true);
            }
        }
        if let Some(locked_since) = self.finds_row_locked_since() {
            self.refuse_locked_out(locked_since, now);
        }
        // Its timeout may pass in the same moment.
        let alone = self.queue.first_is_alone();
        while let Some((number, waiter)) = self.queue.pop_overdue(now) {
            let refusal = self.refusal_of(&waiter, alone.is_some_and(|first| first < number), now);
            self.reply(Reply::Refused(waiter, refusal));
        }
    }

    /// What a caller is told whose timeout passes now. `behind`: it came after one who wants the lock alone.
    pub(super) fn refusal_of(&self, waiter: &Waiter<A>, behind: bool, now: Time) -> Refusal {
        let shares = waiter.call.options.limit.is_some() && !behind;
        match &self.held {
            // Whether they may enter is for the store to say. It is not asked behind a caller that waits for them to leave.
            Some(held) if held.is_shared() && held.is_held() && shares => {
                self.asking.refusal(waiter.since, waiter.call.is_non_blocking())
            }
            Some(held) if !held.needs_release() => Refusal::Busy(Some(held.holder(now))),
            _ => self.asking.refusal(waiter.since, waiter.call.is_non_blocking()),
        }
    }

    /// Others have the row locked since then that is to be released.
    pub(super) fn finds_row_locked_since(&self) -> Option<Time> {
        self.held.as_ref().and_then(Held::finds_row_locked_since)
    }

    /// Refuses non-blocking callers of a row that others have locked since then.
    pub(super) fn refuse_locked_out(&mut self, locked_since: Time, now: Time) {
        self.refuse_non_blocking(&Refusal::RowLocked, |waiter| waiter.busy_at(locked_since) <= now);
    }

    /// Refuses the non-blocking callers that pass `test`.
    pub(super) fn refuse_non_blocking(&mut self, refusal: &Refusal, test: impl Fn(&Waiter<A>) -> bool) {
        while let Some(waiter) = self.queue.pop_non_blocking(&test) {
            self.reply(Reply::Refused(waiter, refusal.clone()));
        }
    }

    pub(super) fn refuse_all(&mut self, nested_too: bool, now: Time) {
        self.refuse_all_adoptions(nested_too, now);
        for waiter in self.queue.take(nested_too) {
            self.reply(Reply::Refused(waiter, Refusal::Shutdown));
        }
    }

    /// After a failure: refuses non-blocking callers if the store is unreachable, and all callers if the
    /// error is permanent.
    pub(super) fn refuse_hopeless(&mut self, error: &StoreError) {
        let refusal = Refusal::Store(error.clone());
        if error.kind() == StoreErrorKind::Unreachable {
            self.refuse_non_blocking(&refusal, |_| true);
        }
        if !error.is_retryable() {
            for waiter in self.queue.take(true) {
                self.reply(Reply::Refused(waiter, refusal.clone()));
            }
        }
    }
}
