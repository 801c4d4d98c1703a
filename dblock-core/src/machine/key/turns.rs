//! Turns to take the key. The callers of this process try one at a time, each in its own transaction.
//!
//! A *take* writes the row in the caller's transaction, where the key is free. The transaction keeps the row
//! locked until it ends, and its end frees the key. While its caller is inside, no request is sent. If the
//! caller leaves before the end is known, a release asks for it. A turn only keeps the other callers of this
//! process away. The store alone decides who gets the key.
//!
//! # Fairness between processes
//! The end of a transaction tells nobody, so other processes poll. A process that has taken the key again and
//! again stands back. It then gives no turn and asks for no lease, for longer than the others pause. It does so
//! sooner where it has found the row locked, because then there are others.

use std::time::Duration;

use uuid::Uuid;

use crate::machine::env::Time;
use crate::machine::out::Turn;

/// How long a caller may try. Then the others go on.
const LONGEST_TRY: Duration = Duration::from_millis(2500);

/// How long takes may follow each other before the process stands back, and for how long it does. This costs
/// a process that is alone 2.5 % of its time.
const TAKES_FOR: Duration = Duration::from_millis(400);
/// As `TAKES_FOR`, where others take the key too.
const TAKES_BESIDE_OTHERS_FOR: Duration = Duration::from_millis(50);
const STANDS_BACK_FOR: Duration = Duration::from_millis(10);

/// How long the machine of a key is kept after a take, if nobody asks for the key. No shorter, because whoever takes
/// the key every few milliseconds would wake the driver each time.
const REMEMBERED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum State {
    Nobody,
    /// The turn of a caller that came at `since`.
    Out {
        turn: Turn,
        since: Time,
        until: Time,
    },
    /// The caller has taken the key with this lease.
    Took(Uuid),
}

/// Takes that followed each other with gaps shorter than `STANDS_BACK_FOR`, perhaps after a lease that ended with its
/// transaction.
#[derive(Debug)]
struct Series {
    since: Time,
    /// When the last one was over.
    until: Time,
    beside_others: bool,
}

impl Series {
    /// Whether the process stands back when it ends at this time.
    fn is_long(&self, until: Time) -> bool {
        let longest = if self.beside_others {
            TAKES_BESIDE_OTHERS_FOR
        } else {
            TAKES_FOR
        };
        until.since(self.since) > longest
    }
}

#[derive(Debug)]
pub(super) struct Turns {
    state: State,
    series: Option<Series>,
    none_before: Option<Time>,
}

impl Turns {
    pub(super) fn new() -> Self {
        Self {
            state: State::Nobody,
            series: None,
            none_before: None,
        }
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, now: Time) {
        if matches!(self.state, State::Out { until, .. } if until <= now) {
            self.state = State::Nobody;
        }
        let forgotten = |series: &mut Series| series.until + STANDS_BACK_FOR <= now;
        if matches!(self.state, State::Nobody) && self.series.as_mut().is_some_and(forgotten) {
            self.series = None;
        }
        if self.none_before.is_some_and(|at| at <= now) {
            self.none_before = None;
        }
    }

    /// When time changes something.
    pub(super) fn next_look(&self) -> Option<Time> {
        let over = match self.state {
            State::Out { until, .. } => return Some(until),
            State::Took(_) => return None,
            State::Nobody => self.series.as_ref().map(|series| series.until)?,
        };
        let back = self.stands_back();
        Some(over + if back { STANDS_BACK_FOR } else { REMEMBERED_FOR })
    }

    /// A caller of this process tries to take the key.
    pub(super) fn is_out(&self) -> bool {
        matches!(self.state, State::Out { .. })
    }

    /// The process leaves the key to others.
    pub(super) fn stands_back(&self) -> bool {
        let long = |series: &Series| series.is_long(series.until);
        matches!(self.state, State::Nobody) && self.series.as_ref().is_some_and(long)
    }

    /// Another turn may be given.
    pub(super) fn may_give(&self) -> bool {
        matches!(self.state, State::Nobody) && !self.stands_back() && self.none_before.is_none()
    }

    /// Not idle while there is a series: its length must be remembered.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Nobody) && self.series.is_none()
    }

    /// Gives a turn to a caller that came at `since`. `beside_others`: other processes take the key too.
    pub(super) fn give(&mut self, turn: Turn, since: Time, beside_others: bool, now: Time) {
        let until = now + LONGEST_TRY;
        self.state = State::Out { turn, since, until };
        let series = self.series.get_or_insert(Series {
            since: now,
            until: now,
            beside_others,
        });
        series.beside_others = beside_others;
    }

    /// Ends the turn of the caller with this number.
    pub(super) fn end(&mut self, number: u64) {
        if matches!(self.state, State::Out { turn, .. } if turn.number == number) {
            self.state = State::Nobody;
        }
    }

    /// Ends the turn of whoever has it. A later `took` is refused.
    pub(super) fn end_any(&mut self) {
        if self.is_out() {
            self.state = State::Nobody;
        }
    }

    /// The key was taken with this turn. Returns since when the caller waited, if the turn was not over. The
    /// turn's lease id tells it from every other turn, also of a machine that was forgotten.
    pub(super) fn took(&mut self, taken: Turn) -> Option<Time> {
        match self.state {
            State::Out { turn, since, .. } if turn == taken => {
                self.state = State::Took(taken.lease_id);
                Some(since)
            }
            _ => None,
        }
    }

    /// A lease of this process is over. `kept_since`: a transaction kept the row locked, and others take the key too.
    pub(super) fn lease_over(&mut self, lease_id: Uuid, kept_since: Option<Time>, now: Time) {
        if matches!(self.state, State::Took(took) if took == lease_id) {
            self.state = State::Nobody;
            if let Some(series) = &mut self.series {
                series.until = now;
            }
        } else if let Some(since) = kept_since {
            self.series = Some(Series {
                since,
                until: now,
                beside_others: true,
            });
        }
    }

    /// Gives no turn before then.
    pub(super) fn give_none_before(&mut self, then: Time) {
        self.none_before = self.none_before.max(Some(then));
    }
}
