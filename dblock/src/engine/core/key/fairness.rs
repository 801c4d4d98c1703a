//! Fairness between processes: how long a process may hand the lock over locally while others want it, and which
//! waiting process asks for the next place first.

use std::time::Duration;

use crate::engine::core::env::Env;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::time::Time;

/// A turn: how long a process may hand the lock over locally.
const LONGEST_TURN: Duration = Duration::from_millis(100);

/// The turn of a process that hears wake-ups, while the key is wanted.
const LONGEST_TURN_LISTENING: Duration = Duration::from_millis(10);

/// Pause before a process asks for a key that was passed on to another one: the successor's place is free again. A
/// process that was passed over more often asks earlier.
const AFTER_ANOTHER: Duration = Duration::from_millis(6);

/// How long a busy answer says in the row that somebody waits, and how long a successor stays live. Longer than any
/// pause between two asks, and than a slow statement or two.
pub(super) const WANTED_FOR: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(super) struct Fairness {
    /// Since when the lease of this process is handed over here while others want the key.
    turn_since: Option<Time>,
    /// How often another process got the key while callers of this one waited.
    passed_over: u32,
}

impl Fairness {
    /// The lock came to this process. Returns until when it may be handed over here.
    pub(super) fn granted(&mut self, wanted: bool, env: &Env<'_>) -> Time {
        self.passed_over = 0;
        self.turn_since = None;
        self.extended(wanted, env)
    }

    /// The lease goes on. Returns until when it may be handed over here: for a whole turn after this answer
    /// while nobody else wants the key, and for what is left of the turn otherwise.
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

    /// The key has gone to another process. Returns how long to leave it alone.
    pub(super) fn passed_over(&mut self, env: &mut Env<'_>) -> Duration {
        self.passed_over = self.passed_over.saturating_add(1);
        env.jittered(AFTER_ANOTHER / self.passed_over.saturating_pow(2))
    }
}
