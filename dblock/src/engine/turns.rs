//! Turns: how long a process keeps a key that others want, how it stands back for them, and which of them asks
//! next.

use std::time::Duration;

use tokio::time::Instant;

/// A process has the key for at most so long in a row, over hand-overs and leases, while others want it, and
/// for at most so many leases. Then it stands back, so that another one gets in.
const LONGEST_TURN: Duration = Duration::from_millis(100);
const MOST_LEASES: u32 = 16;
/// Where the others are woken up at once, turns are short and so is standing back; else it must last longer
/// than the others' pause between two looks.
const LONGEST_TURN_LISTENING: Duration = Duration::from_millis(10);
const STAND_BACK: Duration = Duration::from_millis(130);
const STAND_BACK_LISTENING: Duration = Duration::from_millis(5);

/// Pause before the key is asked for when it goes to another process that has it reserved: it can be reserved
/// again when that one has written that it is inside. Who has waited for longer asks earlier.
const AFTER_ANOTHER: Duration = Duration::from_millis(2);
const LAST_COMERS_LAST: Duration = Duration::from_millis(6);

/// How long a busy answer says in the row that somebody waits. Longer than any pause, and than a slow
/// statement or two.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Turns {
    turn: Option<Turn>,
    /// Another process is known to want the key.
    contended_until: Instant,
    /// The store is not asked before this, so that another process gets in.
    stand_back_until: Instant,
    /// How often the key has gone from one other process to the next one since this process had it.
    passed_by: u32,
    /// The release that is about to be heard of is for another process.
    not_for_us: bool,
}

/// The time in which the key keeps coming back to this process.
#[derive(Debug)]
struct Turn {
    since: Instant,
    leases: u32,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            turn: None,
            contended_until: now,
            stand_back_until: now,
            passed_by: 0,
            not_for_us: false,
        }
    }

    pub(super) fn stand_back_until(&self) -> Instant {
        self.stand_back_until
    }

    /// A turn goes on when the next caller comes soon, and standing back holds for it too.
    pub(super) fn remember_until(&self) -> Instant {
        let turn_end = self.turn.as_ref().map(|turn| turn.since + LONGEST_TURN);
        turn_end.map_or(self.stand_back_until, |end| end.max(self.stand_back_until))
    }

    /// Another process is known to want the key.
    pub(super) fn is_contended(&self, now: Instant) -> bool {
        now < self.contended_until
    }

    /// Somebody leaves the key to another process. `waiting`: while this one waited.
    pub(super) fn passed_by(&mut self, waiting: bool) {
        self.not_for_us = true;
        self.passed_by = self.passed_by.saturating_add(waiting.into());
    }

    /// How long to leave a key alone that somebody has released: not at all, unless it was left to another process.
    pub(super) fn pause_for_another(&mut self) -> Duration {
        if !std::mem::take(&mut self.not_for_us) {
            return Duration::ZERO;
        }
        let turns = self.passed_by.saturating_add(1);
        AFTER_ANOTHER + jittered(LAST_COMERS_LAST / turns.saturating_pow(2))
    }

    /// Another process has the key.
    pub(super) fn another_has_it(&mut self) {
        self.turn = None;
        self.not_for_us = false;
    }

    /// The lock came to this process. Returns until when it may be handed on here.
    pub(super) fn granted(&mut self, wanted: bool, listening: bool, now: Instant) -> Instant {
        if wanted {
            self.contended_until = now + WANTED_FOR;
        }
        self.passed_by = 0;
        self.not_for_us = false;
        let length = self.length(listening, now);
        let turn = self.turn.get_or_insert(Turn {
            since: now,
            leases: 0,
        });
        turn.leases += 1;
        turn.since + length
    }

    /// The lease goes on. Returns until when it may be handed on here: as long as nobody else wants the key.
    pub(super) fn extended(&mut self, wanted: bool, listening: bool, now: Instant) -> Instant {
        if !wanted {
            return now + LONGEST_TURN;
        }
        self.contended_until = now + WANTED_FOR;
        let since = self.turn.as_ref().map_or(now, |turn| turn.since);
        since + self.length(listening, now)
    }

    /// The lease of this process is over. `wanted`: somebody in another process may wait for the key.
    pub(super) fn released(&mut self, wanted: bool, listening: bool, now: Instant) {
        if !wanted {
            self.turn = None;
            return;
        }
        self.contended_until = now + WANTED_FOR;
        let length = self.length(listening, now);
        let is_over = |turn: &mut Turn| turn.leases >= MOST_LEASES || now - turn.since >= length;
        if let Some(turn) = self.turn.take_if(is_over) {
            let back = if listening {
                STAND_BACK_LISTENING
            } else {
                STAND_BACK
            };
            tracing::trace!(leases = turn.leases, length = ?(now - turn.since), "standing back");
            self.stand_back_until = now + back;
        }
    }

    fn length(&self, listening: bool, now: Instant) -> Duration {
        if listening && self.is_contended(now) {
            LONGEST_TURN_LISTENING
        } else {
            LONGEST_TURN
        }
    }
}

/// Between three quarters and five quarters of `pause`, so that processes do not ask in step.
pub(super) fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.75 + fastrand::f64() / 2.0)
}
