//! Asking the store for a key that callers of this process want. Only the first caller's request goes to the
//! store; the others use its answers.
//!
//! # The place as successor
//! An ask that finds the key held makes its lease the row's successor ([`Place`]). The holder's release
//! passes the row on, and a wake-up says so. These are the rules for entering on a wake-up. Each closes a
//! sequence of events that lets two owners enter:
//!
//! - *The wake-up's token is larger than each holder's token in the answers since the lease got its place.*
//!   Otherwise the wake-up may be old: the row was passed on to this lease, expired, and went to others.
//! - *No request of the key is on its way.* Otherwise the machine waits for the answer. That request may
//!   find the lease expired, and queue it again.
//! - *The time left counts from when the latest ask was sent that was answered `Queued`.* The release came
//!   after that. With too little left, or for a caller that does not renew, an extension comes first.
//! - *A lease is never asked with again* once it has entered, was withdrawn, was answered `Lost`, or had an
//!   ask of unknown outcome.

use std::mem;
use std::time::Duration;

use uuid::Uuid;

use crate::machine::env::{Env, Time};
use crate::machine::out::Refusal;
use crate::store::{Holder, NEXT_TTL, StoreError};

/// Pauses before the next ask. They start at `FIRST_PAUSE`. They grow to `LONGEST_BUSY_PAUSE` for a busy key
/// without wake-ups, and to `LONGEST_ERROR_PAUSE` while the store fails.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_BUSY_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_ERROR_PAUSE: Duration = Duration::from_secs(1);

/// Pause before the next ask for a busy key while wake-ups arrive. A wake-up may be lost, and each ask keeps
/// the place live.
const LISTENING_PAUSE: Duration = Duration::from_millis(950);

/// Pause before the next ask for a locked row after a wake-up. Another process was woken too and is probably
/// writing the row.
const WOKEN_PAUSE: Duration = Duration::from_millis(2);

/// Pause before the next ask for a locked row: the first value until the caller has waited for
/// `LOCKED_FOR_LONG`, then the second. With its jitter the first stays below `STANDS_BACK_FOR` (`turns.rs`).
const LOCKED_PAUSE: Duration = Duration::from_millis(8);
const LONGEST_LOCKED_PAUSE: Duration = Duration::from_millis(40);
const LOCKED_FOR_LONG: Duration = Duration::from_mins(1);

/// For this long after the row was found locked, other processes are assumed to take the key.
const LOCKED_BY_OTHERS_FOR: Duration = Duration::from_secs(5);

/// A process that receives no wake-ups queues only after it has waited this long: a key that is passed on to
/// it lies idle until its next poll. The second value is for stores where other processes receive wake-ups.
const QUEUE_AFTER: Duration = Duration::from_millis(100);
const QUEUE_AFTER_AMONG_LISTENERS: Duration = Duration::from_secs(1);

/// How long an answer also counts for callers that come after it. While the store answers, a newer answer
/// comes sooner, so this matters only when it does not answer.
const ANSWER_LASTS: Duration = Duration::from_secs(1);

/// How many tokens an acquire keeps free for local hand-overs: about sixteen times those that the last lease
/// used. Few tokens keep the ceiling near the clock. The factor lets a process that is new to a busy key soon
/// have stretches as long as the others'.
const FEWEST_SPARE: u32 = 1024;
const MOST_SPARE: u32 = 1 << 20;

/// A lease of this process that the row names, or may name, and that no caller has entered with.
#[derive(Debug, Clone, Copy)]
pub(super) enum Unentered {
    /// It is the row's successor, or may be.
    Next(Place),
    /// The row was passed on to it, and must be extended before a caller enters.
    MustExtend(Arriving),
}

/// The lease of this process that the row names as its successor, or may name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) lease_id: Uuid,
    /// The holder's token in the latest answer.
    pub(super) holder_token: i64,
    /// The token with which the row was passed on to it, as a wake-up said.
    pub(super) wake_up_token: Option<i64>,
    pub(super) next_ttl: Duration,
    /// The lease will not end in the store before this, counted from the ask.
    pub(super) store_end: Time,
    pub(super) spare_tokens: u32,
    /// It waits for a shared hold, with this limit.
    pub(super) limit: Option<u32>,
}

/// A lease to which the row was passed on, and which needs an extension before a caller enters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arriving {
    pub(super) lease_id: Uuid,
    pub(super) fence_token: i64,
    pub(super) spare_tokens: u32,
    /// As in [`Place`].
    pub(super) limit: Option<u32>,
    /// The lease is over in the store by this time, whatever became of its requests.
    pub(super) over_at: Time,
    pub(super) retry_at: Time,
}

/// The store's last answer about a key.
#[derive(Debug)]
pub(super) enum LastAnswer {
    Busy(Option<Holder>),
    RowLocked,
    Failed(StoreError),
}

#[derive(Debug)]
pub(super) struct Asking {
    /// The store is not asked before this.
    ask_at: Option<Time>,
    /// A wake-up came after the last ask: the answer to that may be out of date.
    woken: bool,
    pause: Duration,
    /// The longest pause before the next ask for a free place as successor.
    place_pause: Duration,
    /// A wake-up after the last ask said that the place is free.
    place_is_free: bool,
    /// The last answer. It counts for callers that came before this time.
    last: Option<(LastAnswer, Time)>,
    /// When the key was last known to be held, by this process or another.
    busy_at: Option<Time>,
    /// The last answer found no room for a caller with this limit: 0 for one that wants the lock alone.
    no_room_for: Option<u32>,
    /// When the row was last found locked.
    locked_at: Option<Time>,
    /// When the first of the newest answers came that all found the row locked.
    locked_since: Time,
    pub(super) unentered: Option<Unentered>,
    /// How many tokens the next acquire keeps free for local hand-overs.
    spare_tokens: u32,
    /// How long the store took for the last answer to an acquire.
    answer_time: Duration,
}

impl Asking {
    pub(super) fn new() -> Self {
        Self {
            ask_at: None,
            woken: false,
            pause: FIRST_PAUSE,
            place_pause: FIRST_PAUSE,
            place_is_free: false,
            last: None,
            busy_at: None,
            no_room_for: None,
            locked_at: None,
            locked_since: Time::from_nanos(0),
            unentered: None,
            spare_tokens: FEWEST_SPARE,
            answer_time: Duration::ZERO,
        }
    }

    /// Asks at the next opportunity.
    pub(super) fn ask_now(&mut self) {
        self.ask_at = None;
    }

    /// The store has no room for a caller with this limit.
    pub(super) fn no_room_for(&mut self, limit: Option<u32>) {
        self.no_room_for = Some(limit.unwrap_or_default());
    }

    /// The first caller has this limit. There may be room where there was none for one with a smaller limit.
    pub(super) fn first_has(&mut self, limit: Option<u32>) {
        if self.no_room_for.is_some_and(|smaller| limit > Some(smaller)) {
            self.no_room_for = None;
            self.ask_now();
        }
    }

    pub(super) fn ask_after(&mut self, pause: Duration, now: Time) {
        self.ask_at = Some(now + pause);
    }

    pub(super) fn may_ask(&self, now: Time) -> bool {
        self.arriving().is_none() && self.ask_at.is_none_or(|at| at <= now)
    }

    pub(super) fn place(&self) -> Option<Place> {
        match self.unentered {
            Some(Unentered::Next(place)) => Some(place),
            _ => None,
        }
    }

    pub(super) fn arriving(&self) -> Option<Arriving> {
        match self.unentered {
            Some(Unentered::MustExtend(arriving)) => Some(arriving),
            _ => None,
        }
    }

    pub(super) fn ask_at(&self) -> Option<Time> {
        self.ask_at
    }

    /// Whether the unentered lease was asked for as a shared one, if there is one.
    pub(super) fn unentered_shares(&self) -> Option<bool> {
        let limit = match self.unentered.as_ref()? {
            Unentered::Next(place) => place.limit,
            Unentered::MustExtend(arriving) => arriving.limit,
        };
        Some(limit.is_some())
    }

    /// The store is being asked whether others may enter the lease of this process.
    pub(super) fn asked_for_room(&mut self) {
        self.woken = false;
    }

    /// An acquire is being sent. Returns its lease and how many tokens to keep free.
    pub(super) fn asked(&mut self, others_wait: bool, env: &mut Env<'_>) -> (Uuid, u32) {
        self.woken = false;
        self.place_is_free = false;
        // An ask for the same place repeats its lease and spare tokens. The row has those.
        if let Some(place) = self.place() {
            return (place.lease_id, place.spare_tokens);
        }
        let hands_over = others_wait && env.hand_over;
        (
            env.random.lease_id(),
            if hands_over { self.spare_tokens } else { 0 },
        )
    }

    /// Whether an ask for a caller that has waited this long queues.
    pub(super) fn queues(waited: Duration, env: &Env<'_>) -> bool {
        let after = if env.wake_ups {
            QUEUE_AFTER_AMONG_LISTENERS
        } else {
            QUEUE_AFTER
        };
        env.listening || waited >= after
    }

    /// Notes how long the store took for an answer.
    pub(super) fn answered_in(&mut self, time: Duration) {
        self.answer_time = time;
    }

    /// Time to allow for an extension: twice the time of the last answer to an acquire.
    pub(super) fn time_of_two_answers(&self) -> Duration {
        self.answer_time * 2
    }

    // ── Answers ──────────────────────────────────────────────────────────────────────────────────────

    /// The row names the lease as its successor, perhaps as before.
    pub(super) fn queued(&mut self, place: Place) {
        self.place_pause = FIRST_PAUSE;
        let wake_up_token = self
            .place()
            .map_or(place.wake_up_token, |before| before.wake_up_token);
        self.unentered = Some(Unentered::Next(Place {
            wake_up_token,
            ..place
        }));
    }

    /// Another owner holds the lock.
    pub(super) fn busy(&mut self, holder: Holder, env: &mut Env<'_>) {
        if let Some(Unentered::Next(place)) = &mut self.unentered {
            // If the row was passed on to this lease before, it has gone to others since.
            place.holder_token = place.holder_token.max(holder.fence_token);
        }
        let pause = if self.woken {
            Duration::ZERO
        } else if env.listening {
            let longest = self.place().map_or(NEXT_TTL, |place| place.next_ttl) / 3;
            let pause = longest
                .min(LISTENING_PAUSE)
                .mul_f64(0.95 + env.random.fraction() / 20.0);
            if self.place_is_free {
                pause.min(self.pause_before_the_place(env))
            } else {
                pause
            }
        } else {
            let pause = env.jittered(self.pause);
            self.pause = (self.pause * 3 / 2).min(LONGEST_BUSY_PAUSE);
            pause
        };
        let expiry = holder
            .remaining
            .map(|remaining| remaining + Duration::from_millis(1));
        self.ask_after(expiry.map_or(pause, |expiry| pause.min(expiry)), env.now);
        self.busy_at = Some(env.now);
        self.note_answer(LastAnswer::Busy(Some(holder)), env.now);
    }

    /// A statement or transaction had the row locked. The first caller has `waited` so long.
    pub(super) fn skipped(&mut self, waited: Duration, env: &mut Env<'_>) {
        let pause = if self.woken {
            WOKEN_PAUSE
        } else {
            locked_pause(waited)
        };
        let pause = env.jittered(pause);
        self.ask_after(pause, env.now);
        self.pause = (self.pause * 3 / 2).min(LONGEST_BUSY_PAUSE);
        self.locked_at = Some(env.now);
        self.note_answer(LastAnswer::RowLocked, env.now);
    }

    /// The store could not be asked.
    pub(super) fn failed(&mut self, error: StoreError, env: &mut Env<'_>) {
        let pause = env.jittered(self.pause);
        self.ask_after(pause, env.now);
        self.pause = (self.pause * 2).min(LONGEST_ERROR_PAUSE);
        self.note_answer(LastAnswer::Failed(error), env.now);
    }

    pub(super) fn note_answer(&mut self, answer: LastAnswer, now: Time) {
        if matches!(answer, LastAnswer::RowLocked) {
            self.locked_since = self.locked_since(now);
        }
        self.last = Some((answer, now + ANSWER_LASTS));
    }

    /// The row was passed on, and must be extended before a caller enters.
    pub(super) fn must_extend(&mut self, arriving: Arriving) {
        self.unentered = Some(Unentered::MustExtend(arriving));
        self.pause = FIRST_PAUSE;
    }

    /// The extension of a row that was passed on failed, and may have made the row busy for `longer`.
    pub(super) fn retry_arriving(&mut self, longer: Duration, env: &mut Env<'_>) {
        let pause = env.jittered(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_ERROR_PAUSE);
        if let Some(Unentered::MustExtend(arriving)) = &mut self.unentered {
            arriving.retry_at = env.now + pause;
            arriving.over_at = arriving.over_at.max(env.now + longer);
        }
    }

    /// Notes the error that keeps the row unreleased. A caller that times out is told this error, and not
    /// `Busy`.
    pub(super) fn note_last_error(&mut self, last_error: Option<LastAnswer>, now: Time) {
        match last_error {
            Some(last_error) => self.note_answer(last_error, now),
            None => self.last = None,
        }
    }

    /// The lock came to this process: callers that wait from here on wait for this process.
    pub(super) fn granted(&mut self, now: Time) {
        self.unentered = None;
        (self.pause, self.place_pause) = (FIRST_PAUSE, FIRST_PAUSE);
        self.ask_now();
        self.note_answer(LastAnswer::Busy(None), now);
    }

    /// The lease of this process is over: released, or lost.
    pub(super) fn released(&mut self, former: Holder, hand_overs: u32, now: Time) {
        // A single short stretch says little about the next one.
        let spare = hand_overs.saturating_mul(16).max(self.spare_tokens / 2);
        self.spare_tokens = spare.clamp(FEWEST_SPARE, MOST_SPARE);
        // A caller that comes later needs a newer answer.
        self.last = Some((LastAnswer::Busy(Some(former)), now));
        self.busy_at = Some(now);
        self.ask_now();
    }

    /// Whether the row was found locked not long ago.
    pub(super) fn found_locked(&self, now: Time) -> bool {
        self.locked_at.is_some_and(|at| now < at + LOCKED_BY_OTHERS_FOR)
    }

    /// Since when the row has been found locked, if it is so now.
    pub(super) fn locked_since(&self, now: Time) -> Time {
        match &self.last {
            Some((LastAnswer::RowLocked, until)) if now <= *until => self.locked_since,
            _ => now,
        }
    }

    /// Whether the key was held after `since`.
    pub(super) fn was_busy_after(&self, since: Time) -> bool {
        self.busy_at.is_some_and(|at| since < at)
    }

    /// The reply to a caller whose timeout has passed, and that came at `since`.
    pub(super) fn refusal(&self, since: Time, non_blocking: bool) -> Refusal {
        // An answer from long before the caller came says nothing about its wait.
        let news = self.last.as_ref().filter(|(_, until)| since <= *until);
        match news {
            Some((LastAnswer::Busy(holder), _)) => Refusal::Busy(holder.clone()),
            Some((LastAnswer::RowLocked, _)) => Refusal::RowLocked,
            Some((LastAnswer::Failed(error), _)) => Refusal::Store(error.clone()),
            None if non_blocking => Refusal::Store(no_answer()),
            None => Refusal::NoAnswer,
        }
    }

    // ── Wake-ups ─────────────────────────────────────────────────────────────────────────────────────

    /// The key may be free: a release was reported, or a wake-up may have been missed.
    pub(super) fn woken(&mut self) {
        self.pause = FIRST_PAUSE;
        self.woken = true;
        self.ask_now();
    }

    /// The key was passed on to another process, so the place as successor is free.
    pub(super) fn woken_for_another(&mut self, pause: Duration, now: Time) {
        self.pause = FIRST_PAUSE;
        if self.ask_at.is_some_and(|at| at > now + pause) {
            self.ask_after(pause, now);
        }
    }

    /// Nobody comes first any more, and there is no room: the place as successor is free.
    pub(super) fn place_is_free(&mut self, env: &mut Env<'_>) {
        if !mem::replace(&mut self.place_is_free, true)
            && let Some(at) = self.ask_at.filter(|at| *at > env.now)
        {
            let pause = self.pause_before_the_place(env);
            self.ask_at = Some(at.min(env.now + pause));
        }
    }

    /// It grows until this process gets the place: of many that ask one does.
    fn pause_before_the_place(&mut self, env: &mut Env<'_>) -> Duration {
        let pause = self.place_pause.mul_f64(env.random.fraction());
        self.place_pause = (self.place_pause * 2).min(LISTENING_PAUSE);
        pause
    }

    /// No wake-ups arrive any more: back to polling.
    pub(super) fn wake_ups_lost(&mut self, env: &mut Env<'_>) {
        let pause = env.jittered(LONGEST_BUSY_PAUSE);
        if self.ask_at.is_some_and(|at| at > env.now + pause) {
            self.ask_after(pause, env.now);
        }
    }

    /// The row was passed on to this lease with this token. Returns whether that is the one with the place.
    pub(super) fn passed_on(&mut self, lease_id: Uuid, fence_token: i64) -> bool {
        match &mut self.unentered {
            Some(Unentered::Next(place)) if place.lease_id == lease_id => {
                place.wake_up_token = place.wake_up_token.max(Some(fence_token));
                true
            }
            _ => false,
        }
    }

    /// The place and its token, if the row was passed on to it. Call this only while no request is on its
    /// way.
    pub(super) fn arrived(&self) -> Option<(Place, i64)> {
        let place = self.place()?;
        let token = place.wake_up_token?;
        (token > place.holder_token).then_some((place, token))
    }
}

/// Pause before the next request for a row that is locked, while the first caller has `waited` so long.
pub(super) fn locked_pause(waited: Duration) -> Duration {
    if waited < LOCKED_FOR_LONG {
        LOCKED_PAUSE
    } else {
        LONGEST_LOCKED_PAUSE
    }
}

fn no_answer() -> StoreError {
    let kind = crate::store::StoreErrorKind::Unreachable;
    StoreError::new(kind, "the database has not answered in the time given")
}
