//! Re-entry: the number of holds is written by requests that are late, lost or repeated, while another process
//! wants the lock.
//!
//! Time stands still: no lease expires, so a row that stays held is held for ever, and a row that is free
//! while somebody is inside lets the other process in at once.
//!
//! Bounds: up to [`MOST_HOLDS`] 3, two leases of P and one of Q, two late requests at a time. The acquires
//! and the requests of Q are answered at once; acquires of unknown outcome are in [`retry`](crate::retry).

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, RELEASE, TOKENS};
use crate::guards::Guards;
use crate::history::Tokens;
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Rules, Time};
use crate::wire::{Asked, Fate, Late};

/// How many holds P has at most.
pub const MOST_HOLDS: u8 = 3;
const LEASES: u8 = 2;
const NOW: Time = 1;
const P: Process = Process(0);
const Q1: LeaseId = LeaseId {
    process: Process(1),
    number: 1,
};

/// A re-entry that the row does not undo.
pub const KEPT: &str = "the row is held while somebody is inside";

/// The model.
#[derive(Debug, Clone)]
pub struct CountsModel {
    /// The guards that stand.
    pub guards: Guards,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    row: Option<Row>,
    /// How many leases P asked for.
    used: u8,
    held: Option<Held>,
    asked: Option<Asked>,
    late: Late<2>,
    other: Other,
    tokens: Tokens,
}

/// The lease of P.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    lease: LeaseId,
    /// Bodies inside. With none the row is yet to be released.
    holds: u8,
    /// The number that the row has as far as P knows.
    row_count: u8,
}

/// What Q does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Other {
    Wants,
    Inside,
    Gone,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// P tries to take the lock.
    Acquire,
    /// A nested body of P begins.
    Enter,
    /// A body of P ends.
    Leave,
    /// P writes the number of holds, or releases when there is none.
    Send,
    /// The store carries the request out.
    Execute,
    /// The answer arrives.
    Answer,
    /// P no longer waits for the answer. It will send again what is missing.
    GiveUp(Fate),
    /// The store carries out a request that nobody waits for.
    ExecuteLate(usize, Request),
    /// Q tries to take the lock.
    OtherAcquires,
    /// Q releases it.
    OtherReleases,
}

impl CountsModel {
    fn apply(&self, state: &mut State, request: Request) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: 1,
            block: 0,
            reserve: 0,
        };
        let outcome = rules.apply(&mut state.row, NOW, request);
        if let Outcome::Granted(token, _) = outcome {
            state.tokens.give(token);
        }
        outcome
    }
}

impl Held {
    /// What the row does not have yet.
    fn missing(self) -> Option<Request> {
        let change = self.holds.cast_signed() - self.row_count.cast_signed();
        let action = match self.holds {
            0 => Action::Release { change },
            count if count != self.row_count => Action::Extend {
                count,
                change,
                token: 0,
            },
            _ => return None,
        };
        Some(Request {
            lease: self.lease,
            action,
        })
    }
}

impl State {
    fn answer(&mut self) -> Option<()> {
        let asked = self.asked.take()?;
        match (asked.request.action, asked.answer?) {
            (Action::Extend { count, .. }, Outcome::Extended(_)) => self.held.as_mut()?.row_count = count,
            _ => self.held = None,
        }
        Some(())
    }
}

impl Model for CountsModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            row: None,
            used: 0,
            held: None,
            asked: None,
            late: Late::default(),
            other: Other::Wants,
            tokens: Tokens::default(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        match state.other {
            Other::Wants => steps.push(Step::OtherAcquires),
            Other::Inside => steps.push(Step::OtherReleases),
            Other::Gone => {}
        }
        match &state.held {
            Some(held) => {
                if held.holds > 0 {
                    steps.push(Step::Leave);
                    if held.holds < MOST_HOLDS {
                        steps.push(Step::Enter);
                    }
                }
                if state.asked.is_none() && held.missing().is_some() {
                    steps.push(Step::Send);
                }
            }
            None if state.used < LEASES => steps.push(Step::Acquire),
            None => {}
        }
        if let Some(asked) = &state.asked {
            steps.push(if asked.answer.is_some() {
                Step::Answer
            } else {
                Step::Execute
            });
            steps.push(Step::GiveUp(state.late.fate(asked)));
        }
        for (index, request) in state.late.each() {
            steps.push(Step::ExecuteLate(index, request));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Acquire => {
                let lease = LeaseId {
                    process: P,
                    number: next.used + 1,
                };
                let action = Action::Acquire;
                if let Outcome::Granted(..) = self.apply(&mut next, Request { lease, action }) {
                    next.used += 1;
                    next.held = Some(Held {
                        lease,
                        holds: 1,
                        row_count: 1,
                    });
                }
            }
            Step::Enter => next.held.as_mut()?.holds += 1,
            Step::Leave => next.held.as_mut()?.holds -= 1,
            Step::Send => next.asked = Some(Asked::new(next.held?.missing()?, NOW)),
            Step::Execute => {
                let request = next.asked?.request;
                let outcome = self.apply(&mut next, request);
                next.asked.as_mut()?.answer = Some(outcome);
            }
            Step::Answer => next.answer()?,
            Step::GiveUp(_) => {
                let asked = next.asked.take()?;
                next.late.abandon(&asked);
            }
            Step::ExecuteLate(index, _) => {
                let request = next.late.take(index);
                self.apply(&mut next, request);
            }
            Step::OtherAcquires => {
                let action = Action::Acquire;
                if let Outcome::Granted(..) = self.apply(&mut next, Request { lease: Q1, action }) {
                    next.other = Other::Inside;
                }
            }
            Step::OtherReleases => {
                let action = Action::Release { change: -1 };
                self.apply(&mut next, Request { lease: Q1, action });
                next.other = Other::Gone;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                let inside = state.held.is_some_and(|held| held.holds > 0);
                !(inside && state.other == Other::Inside)
            }),
            Property::always(KEPT, |_, state: &State| {
                let held = |lease| {
                    let row = state.row.filter(|row| row.is_held(NOW));
                    row.is_some_and(|row| row.lease == lease)
                };
                let inside = state.held.filter(|held| held.holds > 0);
                inside.is_none_or(|inside| held(inside.lease)) && (state.other != Other::Inside || held(Q1))
            }),
            Property::always(RELEASE, |_, state: &State| {
                let held = state.row.filter(|row| row.is_held(NOW));
                held.is_none_or(|row| {
                    state.held.is_some_and(|held| held.lease == row.lease)
                        || (row.lease == Q1 && state.other == Other::Inside)
                })
            }),
            Property::always(TOKENS, |_, state: &State| state.tokens.grow()),
            Property::sometimes("the row has an old number of holds", |_, state: &State| {
                let row = state.row.filter(|_| state.asked.is_none());
                let synced = state.held.filter(|held| held.holds == held.row_count);
                row.zip(synced).is_some_and(|(row, held)| row.count != held.holds)
            }),
            Property::sometimes("Q had its turn between two leases of P", |_, state: &State| {
                state.used == LEASES && state.tokens.turns() == 3
            }),
        ]
    }
}
