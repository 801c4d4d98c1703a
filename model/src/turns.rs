//! Whether a second process gets its turn: P has callers without end and hands the lock over among them, Q
//! asks every now and then.
//!
//! Here some things are forced, because a process that never takes its next step makes everyone wait: before
//! the clock goes on, Q has asked once, and a body that has run for a tick has ended. All counters are
//! relative, so time has no end, and the states are all that there are.
//!
//! Bounds: a streak of at most [`LONGEST_STREAK`] 3 ticks, of 1 when it is known that another process wants the
//! key. Nothing is lost, and no process crashes.

use stateright::{Model, Property};

use crate::guards::{Guard, Guards};
use crate::store::Time;

/// How long a process hands the lock over, when it does not know that another one waits.
pub const LONGEST_STREAK: Time = 3;
const SHORT_STREAK: Time = 1;
/// In the tick in which P stands back Q may have asked already, so this covers one whole tick.
const STAND_BACK: Time = 2;
/// How long a busy answer says in the row that somebody waits.
const WANTED_FOR: Time = 2;
/// Q waits at most so long.
pub const LONGEST_WAIT: Time = 4;

/// What a waiter is promised.
pub const TURN: &str = "who waits gets in soon";

/// The model.
#[derive(Debug, Clone)]
pub struct TurnsModel {
    /// The guards that stand.
    pub guards: Guards,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// The body of P that is inside, and whether it has run for a tick.
    inside: Option<bool>,
    /// P knows that the key is wanted.
    knows: bool,
    /// How long ago P took the lock for the first of several leases in a row.
    streak: Option<Time>,
    /// P asks for no caller that long.
    stand_back: Time,
    other: Other,
    /// How long the row says that the key is wanted.
    wanted: Time,
}

/// What Q does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Other {
    /// For so many ticks, and whether it has asked in this one.
    Waits(Time, bool),
    /// And whether it has been for a tick.
    Inside(bool),
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// P takes the lock.
    Acquire,
    /// A body of P ends, and the next caller comes in.
    HandOver,
    /// A body of P ends, and P releases the lock.
    Release,
    /// Q asks for the lock.
    OtherAsks,
    /// Q releases it.
    OtherReleases,
}

impl TurnsModel {
    fn streak_is_over(&self, state: &State) -> bool {
        let longest = if state.knows { SHORT_STREAK } else { LONGEST_STREAK };
        state.streak.is_some_and(|streak| streak >= longest) && self.guards.has(Guard::StreakIsBounded)
    }

    fn tick(state: &mut State) {
        if let Some(old) = &mut state.inside {
            *old = true;
            // The row follows, and the answer says whether the key is wanted.
            state.knows = state.wanted > 0;
        }
        state.streak = state.streak.map(|streak| LONGEST_STREAK.min(streak + 1));
        state.stand_back = state.stand_back.saturating_sub(1);
        state.wanted = state.wanted.saturating_sub(1);
        state.other = match state.other {
            Other::Waits(since, _) => Other::Waits(since.min(LONGEST_WAIT) + 1, false),
            Other::Inside(_) => Other::Inside(true),
        };
    }

    fn release(&self, state: &mut State) {
        state.knows = state.wanted > 0;
        state.inside = None;
        if !state.knows {
            state.streak = None;
        } else if self.streak_is_over(state) {
            state.streak = None;
            state.stand_back = if self.guards.has(Guard::StandsBackForAPause) {
                STAND_BACK
            } else {
                STAND_BACK - 1
            };
        }
    }
}

impl State {
    fn is_free(&self) -> bool {
        self.inside.is_none() && !matches!(self.other, Other::Inside(_))
    }
}

impl Model for TurnsModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            inside: None,
            knows: false,
            streak: None,
            stand_back: 0,
            other: Other::Waits(0, false),
            wanted: 0,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let forced =
            state.inside == Some(true) || matches!(state.other, Other::Waits(_, false) | Other::Inside(true));
        may(Step::Tick, !forced);
        may(Step::Acquire, state.is_free() && state.stand_back == 0);
        may(
            Step::HandOver,
            state.inside.is_some() && !self.streak_is_over(state),
        );
        may(Step::Release, state.inside.is_some());
        may(Step::OtherAsks, matches!(state.other, Other::Waits(_, false)));
        may(Step::OtherReleases, matches!(state.other, Other::Inside(_)));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => Self::tick(&mut next),
            Step::Acquire => {
                next.inside = Some(false);
                next.knows = next.wanted > 0;
                next.streak = next.streak.or(Some(0));
            }
            Step::HandOver => next.inside = Some(false),
            Step::Release => self.release(&mut next),
            Step::OtherAsks if next.is_free() => next.other = Other::Inside(false),
            Step::OtherAsks => {
                let Other::Waits(since, _) = next.other else {
                    return None;
                };
                next.other = Other::Waits(since, true);
                next.wanted = WANTED_FOR;
            }
            Step::OtherReleases => next.other = Other::Waits(0, true),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                TURN,
                |_, state: &State| !matches!(state.other, Other::Waits(since, _) if since > LONGEST_WAIT),
            ),
            Property::sometimes("Q has to wait as long as that", |_, state: &State| {
                matches!(state.other, Other::Waits(LONGEST_WAIT, _))
            }),
            Property::sometimes("a streak is as long as it may be", |_, state: &State| {
                state.streak == Some(LONGEST_STREAK)
            }),
        ]
    }
}
