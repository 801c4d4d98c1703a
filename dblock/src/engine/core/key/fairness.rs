//! Fairness between processes: how long a process may hand the lock over locally while others want it, and
//! which waiting process asks first for the next place as successor.

use std::time::Duration;

use crate::engine::core::env::Env;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::time::Time;

/// Longest turn: how long a process may hand the lock over locally.
const LONGEST_TURN: Duration = Duration::from_millis(100);

/// Longest turn of a process that receives wake-ups, while others want the key.
const LONGEST_TURN_LISTENING: Duration = Duration::from_millis(10);

/// Back-off after the key was passed on to another process, when the place as successor is free again. A
/// process that was passed over more often backs off for less time.
const AFTER_ANOTHER: Duration = Duration::from_millis(6);

/// How long the row says after a busy answer that somebody waits, and how long a successor stays live. Longer
/// than any pause between two asks plus a slow statement or two.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Fairness {
    /// When the turn began: since then this process hands the lock over locally while others want the key.
    turn_since: Option<Time>,
    /// How often the key was passed on to another process while callers of this one waited.
    passed_over: u32,
}

impl Fairness {
    /// The lock came to this process. Returns until when it may be handed over locally.
    pub(super) fn granted(&mut self, wanted: bool, env: &Env<'_>) -> Time {
        self.passed_over = 0;
        self.turn_since = None;
        self.extended(wanted, env)
    }

    /// The lease was extended. Returns until when it may be handed over locally: for a whole turn after this
    /// answer if nobody else wants the key, else for the rest of the turn.
    pub(super) fn extended(&mut self, wanted: bool, env: &Env<'_>) -> Time {
        if !wanted || flawed(Flaw::TurnsNeverEnd) {
            self.turn_since = None;
            return env.now + LONGEST_TURN;
        }
        let length = if env.listening {
            LONGEST_TURN_LISTENING
        } else {
            LONGEST_TURN
        };
        *self.turn_since.get_or_insert(env.now) + length
    }

    /// The key was passed on to another process. Returns how long to back off.
    pub(super) fn passed_over(&mut self, env: &mut Env<'_>) -> Duration {
        self.passed_over = self.passed_over.saturating_add(1);
        env.jittered(AFTER_ANOTHER / self.passed_over.saturating_pow(2))
    }
}
