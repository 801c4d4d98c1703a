//! The callers of this process that want one key, first in first out. Only the first one's request goes to
//! the store; the others learn from its answers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::waiter::{AcquireCall, Waiter};
use crate::store::{Occupant, StoreError, StoreErrorKind};

/// Pause before a busy key is asked again: starts at the first, grows to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(1);

/// How long a busy answer says in the row that somebody waits. Longer than any pause, and than a slow
/// statement or two.
const WANTED_FOR: Duration = Duration::from_secs(3);

/// How long the store's word that a key is busy counts for callers that come later. A store that answers is
/// asked more often than that.
const ANSWER_LASTS: Duration = Duration::from_secs(1);

/// How long a caller that does not wait puts up with a row that somebody has locked.
const SKIP_PATIENCE: Duration = Duration::from_secs(1);

/// While another process wants the key, this one takes it at most so often and so long in a row, and then
/// stands back for longer than the other's pause between two looks.
const LONGEST_STREAK: u32 = 16;
const LONGEST_STREAK_TIME: Duration = Duration::from_millis(100);
const STAND_BACK: Duration = Duration::from_millis(130);

#[derive(Debug)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    /// The store is not asked before this.
    ask_at: Instant,
    pause: Duration,
    last: LastAnswer,
    last_at: Instant,
    /// Leases in a row of this process while others wanted the key, and since when.
    streak: u32,
    streak_since: Instant,
    /// Callers that wait are not asked for before this, so that another process gets in.
    stand_back_until: Instant,
}

/// What the store said last, for callers whose time is over.
#[derive(Debug)]
enum LastAnswer {
    None,
    Busy(Option<Occupant>),
    Failed(StoreError),
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiters: VecDeque::new(),
            ask_at: now,
            pause: FIRST_PAUSE,
            last: LastAnswer::None,
            last_at: now,
            streak: 0,
            streak_since: now,
            stand_back_until: now,
        }
    }

    /// Nobody waits, and nothing need be remembered for those who come next.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.waiters.is_empty() && self.remembers_until() <= now
    }

    /// A streak goes on when the next caller comes soon, and standing back holds for it too.
    fn remembers_until(&self) -> Instant {
        let streak_end = self.streak_since + LONGEST_STREAK_TIME;
        if self.streak > 0 {
            self.stand_back_until.max(streak_end)
        } else {
            self.stand_back_until
        }
    }

    pub(super) fn push(&mut self, waiter: Waiter, now: Instant) {
        if waiter.is_impatient() || self.waiters.is_empty() {
            self.ask_at = now;
        }
        self.waiters.push_back(waiter);
    }

    /// Puts a caller back whose grant came too late to be of use.
    pub(super) fn push_front(&mut self, waiter: Waiter) {
        self.waiters.push_front(waiter);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        let at = self.waiters.iter().position(|waiter| waiter.id == id)?;
        self.waiters.remove(at)
    }

    fn take_if(&mut self, mut test: impl FnMut(&Waiter) -> bool) -> std::vec::IntoIter<Waiter> {
        let (mut taken, mut kept) = (Vec::new(), VecDeque::with_capacity(self.waiters.len()));
        for waiter in self.waiters.drain(..) {
            if test(&waiter) {
                taken.push(waiter);
            } else {
                kept.push_back(waiter);
            }
        }
        self.waiters = kept;
        taken.into_iter()
    }

    /// Forgets callers that have gone away and answers those whose time is over. `held_here` is the lease
    /// of this process that they wait for, if it has one.
    pub(super) fn expire(&mut self, now: Instant, held_here: Option<&Occupant>) {
        let is_over =
            |waiter: &Waiter| waiter.is_gone() || waiter.deadline.is_some_and(|deadline| deadline <= now);
        if !self
            .waiters
            .iter()
            .any(|waiter| is_over(waiter) || (held_here.is_some() && waiter.is_impatient()))
        {
            return;
        }
        if let Some(occupant) = held_here {
            self.refuse_impatient(Some(occupant));
        }
        for waiter in self.take_if(is_over) {
            // An answer from long before the caller came says nothing about its time.
            let is_news = self.last_at + ANSWER_LASTS >= waiter.call.since;
            match (held_here, &self.last) {
                (Some(occupant), _) => waiter.refuse_busy(Some(occupant.clone())),
                (None, LastAnswer::Busy(occupant)) if is_news => waiter.refuse_busy(occupant.clone()),
                (None, LastAnswer::Failed(error)) => waiter.refuse_store(Some(error.clone())),
                (None, LastAnswer::Busy(_) | LastAnswer::None) => waiter.refuse_store(None),
            }
        }
    }

    fn refuse_impatient(&mut self, occupant: Option<&Occupant>) {
        self.take_if(Waiter::is_impatient)
            .for_each(|waiter| waiter.refuse_busy(occupant.cloned()));
    }

    pub(super) fn refuse_for_shutdown(&mut self, nested_too: bool) {
        self.take_if(|waiter| nested_too || !waiter.call.nested)
            .for_each(Waiter::refuse_shutdown);
    }

    /// The caller to ask for now, if any, and how long the row should say that somebody waits.
    pub(super) fn next_ask(&self, now: Instant) -> Option<(u64, &AcquireCall, Option<Duration>)> {
        let first = self.waiters.front().filter(|_| self.may_ask_at() <= now)?;
        let somebody_waits = self.waiters.iter().any(|waiter| !waiter.is_impatient());
        Some((first.id, &first.call, somebody_waits.then_some(WANTED_FOR)))
    }

    fn may_ask_at(&self) -> Instant {
        if self.waiters.iter().any(Waiter::is_impatient) {
            self.ask_at
        } else {
            self.ask_at.max(self.stand_back_until)
        }
    }

    /// When to look again without an event. `asked`: a request is on its way, or the lock is held here.
    pub(super) fn next_look(&self, now: Instant, asked: bool) -> Option<Instant> {
        if self.waiters.is_empty() {
            return Some(self.remembers_until()).filter(|until| *until > now);
        }
        let deadlines = self.waiters.iter().filter_map(|waiter| waiter.deadline);
        let ask_at = Some(self.may_ask_at()).filter(|at| !asked && *at > now);
        deadlines.chain(ask_at).min()
    }

    /// Somebody else holds the lock.
    pub(super) fn busy(&mut self, occupant: Occupant, now: Instant) {
        self.refuse_impatient(Some(&occupant));
        let expiry = now + occupant.remaining + Duration::from_millis(1);
        self.ask_at = expiry.min(now + jittered(self.pause));
        self.pause = (self.pause * 3 / 2).min(LONGEST_BUSY_PAUSE);
        self.streak = 0;
        self.answered(LastAnswer::Busy(Some(occupant)), now);
    }

    /// The row was locked by somebody's statement or transaction.
    pub(super) fn skipped(&mut self, now: Instant) {
        self.take_if(|waiter| waiter.is_impatient() && now >= waiter.call.since + SKIP_PATIENCE)
            .for_each(|waiter| waiter.refuse_busy(None));
        self.ask_at = now + jittered(self.pause.min(FIRST_PAUSE * 4));
        self.pause = (self.pause * 3 / 2).min(LONGEST_BUSY_PAUSE);
        let known = match &mut self.last {
            LastAnswer::Busy(occupant) => occupant.take(),
            _ => None,
        };
        self.answered(LastAnswer::Busy(known), now);
    }

    /// The store could not be asked. Callers that wait go on trying if that makes sense.
    pub(super) fn failed(&mut self, error: StoreError, now: Instant) {
        let hopeless = !error.is_retryable();
        let unreachable = error.kind() == StoreErrorKind::Unreachable;
        self.take_if(|waiter| hopeless || (unreachable && waiter.is_impatient()))
            .for_each(|waiter| waiter.refuse_store(Some(error.clone())));
        self.ask_at = now + jittered(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_ERROR_PAUSE);
        self.answered(LastAnswer::Failed(error), now);
    }

    /// The request's lease was of no use: ask again with a fresh one.
    pub(super) fn ask_again(&mut self, now: Instant) {
        self.ask_at = now;
    }

    /// The lock came to this process.
    pub(super) fn granted(&mut self, now: Instant) {
        self.pause = FIRST_PAUSE;
        // Who waits from here on waits for this process.
        self.answered(LastAnswer::Busy(None), now);
    }

    fn answered(&mut self, answer: LastAnswer, now: Instant) {
        self.last = answer;
        self.last_at = now;
    }

    /// The store could not be asked about the lease of this process: callers whose time is over must not
    /// hear that the key is busy.
    pub(super) fn note_trouble(&mut self, trouble: Option<StoreError>, now: Instant) {
        if let Some(error) = trouble {
            self.answered(LastAnswer::Failed(error), now);
        }
    }

    /// The lease of this process is over. `wanted`: somebody in another process may wait for the key.
    pub(super) fn released(&mut self, former: Occupant, wanted: bool, now: Instant) {
        self.answered(LastAnswer::Busy(Some(former)), now);
        self.ask_at = now;
        if !wanted {
            self.streak = 0;
            return;
        }
        if self.streak == 0 {
            self.streak_since = now;
        }
        self.streak += 1;
        if self.streak >= LONGEST_STREAK || now - self.streak_since >= LONGEST_STREAK_TIME {
            self.streak = 0;
            self.stand_back_until = now + STAND_BACK;
        }
    }
}

/// Between three quarters and five quarters of `pause`, so that processes do not ask in step.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + fastrand::f64() / 2.0)
}
