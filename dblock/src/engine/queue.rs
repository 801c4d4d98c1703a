//! When to ask the store for a key that callers of this process want, and what its answers mean for them.
//! Only the first caller's request goes to the store; the others learn from its answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::grant::Snapshot;
use super::line::Line;
use super::turns::{Turns, WANTED_FOR, jittered};
use super::waiter::Waiter;
use crate::store::{Occupant, StoreError, StoreErrorKind};

/// Pause before a busy key is asked again, where nothing wakes us up: starts at the first, grows to the
/// longest.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Pause before a busy key is asked again although wake-ups are heard: one may be lost.
const LISTENING_PAUSE: Duration = Duration::from_millis(950);

/// Pause before a row that is locked is asked again after a wake-up: whoever has locked it is about to take it.
const WOKEN_PAUSE: Duration = Duration::from_millis(2);

/// How long the store's word that a key is busy counts for callers that come later. A store that answers is
/// asked more often than that.
const ANSWER_LASTS: Duration = Duration::from_secs(1);

/// How long a caller that does not wait puts up with a row that somebody has locked.
const SKIP_PATIENCE: Duration = Duration::from_secs(1);

/// How many tokens an acquire keeps free for hand-overs: some four times as many as the last leases used, so that
/// tokens run ahead of the clock only where they are used up as fast.
const FEWEST_SPARE: u32 = 64;
const MOST_SPARE: u32 = 1 << 20;

#[derive(Debug)]
pub(super) struct Queue {
    line: Arc<Line>,
    /// The store is not asked before this.
    ask_at: Instant,
    /// A wake-up came since the store was asked last: its answer may be out of date.
    woken: bool,
    pause: Duration,
    last: LastAnswer,
    last_at: Instant,
    pub(super) turns: Turns,
    /// How many tokens the next acquire keeps free for hand-overs.
    spare_tokens: u32,
}

/// What the store said last, for callers whose time is over.
#[derive(Debug)]
enum LastAnswer {
    None,
    Busy(Option<Occupant>),
    /// The lease of this process is over.
    Ours(Snapshot),
    Failed(StoreError),
}

/// What to ask the store for.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) waiter: u64,
    pub(super) owner: Uuid,
    pub(super) ttl: Duration,
    pub(super) holder: Arc<str>,
    /// How long the row should say that somebody waits.
    pub(super) wanted_for: Option<Duration>,
    /// How many tokens to keep free for hand-overs to those behind in the line.
    pub(super) spare_tokens: u32,
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            line: Arc::default(),
            ask_at: now,
            woken: false,
            pause: FIRST_PAUSE,
            last: LastAnswer::None,
            last_at: now,
            turns: Turns::new(now),
            spare_tokens: FEWEST_SPARE,
        }
    }

    pub(super) fn line(&self) -> &Arc<Line> {
        &self.line
    }

    /// Nobody waits, and nothing need be remembered for those who come next.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.turns.remember_until() <= now && self.line.is_empty()
    }

    pub(super) fn push(&mut self, waiter: Waiter, now: Instant) {
        if waiter.is_impatient() || self.line.is_empty() {
            self.ask_at = now;
        }
        self.line.push(waiter);
    }

    /// Puts a caller back whose grant came too late to be of use, and asks for it again.
    pub(super) fn put_back(&mut self, waiter: Waiter, now: Instant) {
        self.line.push_front(waiter);
        self.ask_at = now;
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Waiter> {
        self.line.remove(id)
    }

    /// Somebody waits for the key, and does not have it.
    pub(super) fn waits(&self) -> bool {
        !self.line.is_empty()
    }

    /// Answers callers whose time is over. `held_here` is the lease of this process that they wait for, if
    /// it has one.
    pub(super) fn expire(&mut self, now: Instant, held_here: Option<&Snapshot>) {
        let due = self.line.first_deadline().is_some_and(|deadline| deadline <= now);
        if !due && (held_here.is_none() || !self.line.has_impatient()) {
            return;
        }
        let held_here = held_here.map(|holding| holding.occupant(now));
        if let Some(occupant) = &held_here {
            self.refuse_impatient(Some(occupant));
        }
        let is_over = |waiter: &Waiter| waiter.deadline.is_some_and(|deadline| deadline <= now);
        for waiter in self.line.take_if(is_over) {
            // An answer from long before the caller came says nothing about its time.
            let is_news = self.last_at + ANSWER_LASTS >= waiter.call.since;
            match (&held_here, &self.last) {
                (Some(occupant), _) => waiter.refuse_busy(Some(occupant.clone())),
                (None, LastAnswer::Ours(former)) if is_news => waiter.refuse_busy(Some(former.occupant(now))),
                (None, LastAnswer::Busy(occupant)) if is_news => waiter.refuse_busy(occupant.clone()),
                (None, LastAnswer::Failed(error)) => waiter.refuse_store(Some(error.clone())),
                (None, LastAnswer::Busy(_) | LastAnswer::Ours(_) | LastAnswer::None) => {
                    waiter.refuse_store(None);
                }
            }
        }
    }

    fn refuse_impatient(&mut self, occupant: Option<&Occupant>) {
        if self.line.has_impatient() {
            for waiter in self.line.take_if(Waiter::is_impatient) {
                waiter.refuse_busy(occupant.cloned());
            }
        }
    }

    pub(super) fn refuse_for_shutdown(&mut self, nested_too: bool) {
        for waiter in self.line.take_if(|waiter| nested_too || !waiter.call.nested) {
            waiter.refuse_shutdown();
        }
    }

    /// Whether to ask the store now.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        self.may_ask_at() <= now && !self.line.is_empty()
    }

    /// What to ask for, on behalf of the first caller.
    pub(super) fn next_ask(&self) -> Option<Ask> {
        self.line.first(|first, all, waiting| Ask {
            waiter: first.id,
            owner: first.call.owner,
            ttl: first.call.options.ttl,
            holder: Arc::clone(&first.call.holder),
            wanted_for: (waiting > 0).then_some(WANTED_FOR),
            spare_tokens: if all > 1 { self.spare_tokens } else { 0 },
        })
    }

    fn may_ask_at(&self) -> Instant {
        self.ask_at.max(self.turns.stand_back_until())
    }

    /// An acquire is on its way.
    pub(super) fn asked(&mut self) {
        self.woken = false;
    }

    /// When to look again without an event. `asked`: a request is on its way, or the lock is held here.
    pub(super) fn next_look(&self, now: Instant, asked: bool) -> Option<Instant> {
        if self.line.is_empty() {
            return Some(self.turns.remember_until()).filter(|until| *until > now);
        }
        let ask_at = Some(self.may_ask_at()).filter(|at| !asked && *at > now);
        self.line.first_deadline().into_iter().chain(ask_at).min()
    }

    /// Somebody else holds the lock. `listening`: a wake-up will tell of the release.
    pub(super) fn busy(&mut self, occupant: Occupant, listening: bool, now: Instant) {
        self.refuse_impatient(Some(&occupant));
        self.turns.another_has_it();
        let expiry = now + occupant.remaining + Duration::from_millis(1);
        self.ask_at = if self.woken {
            now
        } else {
            expiry.min(now + self.next_pause(listening))
        };
        self.answered(LastAnswer::Busy(Some(occupant)), now);
    }

    fn next_pause(&mut self, listening: bool) -> Duration {
        if listening {
            return LISTENING_PAUSE.mul_f64(0.95 + fastrand::f64() / 10.0);
        }
        let pause = jittered(self.pause);
        self.pause = (self.pause * 3 / 2).min(LONGEST_BUSY_PAUSE);
        pause
    }

    /// The row was locked by somebody's statement or transaction.
    pub(super) fn skipped(&mut self, now: Instant) {
        for waiter in self
            .line
            .take_if(|waiter| waiter.is_impatient() && now >= waiter.call.since + SKIP_PATIENCE)
        {
            waiter.refuse_busy(None);
        }
        self.ask_at = now + jittered(self.pause.min(FIRST_PAUSE * 4));
        if self.woken {
            self.ask_at = now + jittered(WOKEN_PAUSE);
        }
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
        for waiter in self
            .line
            .take_if(|waiter| hopeless || (unreachable && waiter.is_impatient()))
        {
            waiter.refuse_store(Some(error.clone()));
        }
        self.ask_at = now + jittered(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_ERROR_PAUSE);
        self.answered(LastAnswer::Failed(error), now);
    }

    /// The key may be free: somebody has released it, or a wake-up may have been missed.
    pub(super) fn woken(&mut self, now: Instant) {
        self.pause = FIRST_PAUSE;
        self.woken = true;
        self.ask_at = self.ask_at.min(now + self.turns.pause_for_another());
    }

    /// Nothing wakes us up any more: back to polling.
    pub(super) fn deafened(&mut self, now: Instant) {
        self.ask_at = self.ask_at.min(now + jittered(LONGEST_BUSY_PAUSE));
    }

    /// The lock came to this process. Returns until when it may be handed on here.
    pub(super) fn granted(&mut self, wanted: bool, listening: bool, now: Instant) -> Instant {
        self.pause = FIRST_PAUSE;
        // Who waits from here on waits for this process.
        self.answered(LastAnswer::Busy(None), now);
        self.turns.granted(wanted, listening, now)
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
    pub(super) fn released(
        &mut self,
        former: &Snapshot,
        hand_overs: u32,
        wanted: bool,
        listening: bool,
        now: Instant,
    ) {
        self.answered(LastAnswer::Ours(former.clone()), now);
        // One short turn says little of the next one.
        let spare = hand_overs.saturating_mul(4).max(self.spare_tokens / 2);
        self.spare_tokens = spare.clamp(FEWEST_SPARE, MOST_SPARE);
        self.ask_at = now;
        self.turns.released(wanted, listening, now);
    }
}
