//! Hand-over inside a process, with another process that wants the lock: the callers of P follow each other
//! within one lease, with tokens from a block that the acquire reserved, and the row follows behind. A caller
//! may check its token in a transaction of its own. The operator may force the lock free, once; a purge may
//! delete the row; P may crash in the middle of a streak.
//!
//! Bounds: [`TTL`] 2 without a margin in 5 ticks, three callers of P, one of Q, one token in reserve, one late
//! extend at a time. Acquires and releases are answered at once; those that are not are in the models of the
//! [retry](crate::retry) and of the [lease](crate::lease).

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, FENCED, LENGTH, RELEASE, TOKENS};
use crate::guards::{Guard, Guards};
use crate::history::{Resource, Turn};
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Rules, Time, Token};
use crate::wire::{Asked, Fate, Late};

/// Length of a lease.
pub const TTL: Time = 2;
const FIRST_TICK: Time = 1;
const LAST_TICK: Time = 5;
const CALLERS: u8 = 3;
const BLOCK: Token = 1;
/// More than the turns in one lease.
const LEASE_TURNS: Turn = 8;
const P: Process = Process(0);
const Q1: LeaseId = LeaseId {
    process: Process(1),
    number: 1,
};
/// The fresh lease that a force release writes.
const OPERATOR: LeaseId = LeaseId {
    process: Process(2),
    number: 0,
};

/// A transaction that has checked its token has the lock until it ends.
pub const CHECKED: &str = "nobody else is inside while a checked transaction is open";
/// The check finds the row up to date.
pub const PASSES: &str = "a fence check refuses nobody whose lease stands";

/// The model.
#[derive(Debug, Clone)]
pub struct HandOverModel {
    /// The guards that stand.
    pub guards: Guards,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: Time,
    row: Option<Row>,
    /// The turn of the owner whose open transaction locks the row.
    transaction: Option<Turn>,
    /// Callers of P that still want the lock.
    callers: u8,
    held: Option<Held>,
    asked: Option<Asked>,
    late: Late<1>,
    other: Other,
    forced: Option<LeaseId>,
    crashed: Option<LeaseId>,
    /// The leases granted so far, and the tokens given, in the order of the turns.
    leases: u8,
    given: Vec<(Turn, Token)>,
    fell: bool,
    resource: Resource,
    refused: bool,
}

/// The lease of P, and the body inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    lease: LeaseId,
    token: Token,
    turn: Turn,
    /// The last token of the block.
    block_end: Token,
    /// The token that the row has as far as P knows.
    row_token: Token,
    deadline: Time,
    /// The body called `verify_in`.
    checked: bool,
}

/// What Q does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Other {
    Wants,
    Inside {
        token: Token,
        turn: Turn,
        deadline: Time,
    },
    Gone,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// P takes the lock for its next caller.
    Acquire,
    /// P sends an extend: it renews the lease, and the row follows.
    Extend,
    /// The store carries it out.
    Execute,
    /// The answer arrives.
    Answer,
    /// P no longer waits for the answer.
    GiveUp(Fate),
    /// The store carries out an extend that nobody waits for.
    ExecuteLate(Request),
    /// The body inside returns, and the next caller of P comes in.
    HandOver,
    /// The body inside ends, and P releases the lock.
    Release,
    /// The body inside begins a transaction and checks its token in it.
    Check,
    /// The transaction ends.
    Commit,
    /// P dies, and another process takes its place.
    Crash,
    /// Q takes the lock.
    OtherAcquires,
    /// Q releases it.
    OtherReleases,
    /// The operator frees the lock.
    ForceRelease,
    /// The row is deleted.
    Purge,
}

impl HandOverModel {
    fn apply(&self, state: &mut State, lease: LeaseId, action: Action) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: TTL,
            block: BLOCK,
            reserve: 0,
        };
        let outcome = rules.apply(&mut state.row, state.now, Request { lease, action });
        if let Outcome::Granted(token, _) = outcome {
            state.leases += 1;
            state.let_in(state.leases * LEASE_TURNS, token, lease);
        }
        outcome
    }

    fn acquire(&self, state: &mut State) {
        let number = CALLERS - state.callers + 1;
        let lease = LeaseId { process: P, number };
        if let Outcome::Granted(token, remaining) = self.apply(state, lease, Action::Acquire) {
            state.callers -= 1;
            state.held = Some(Held {
                lease,
                token,
                turn: state.leases * LEASE_TURNS,
                block_end: token + BLOCK,
                row_token: token,
                deadline: state.now + remaining,
                checked: false,
            });
        }
    }

    fn may_hand_over(&self, state: &State, held: Held) -> bool {
        let has = |guard| self.guards.has(guard);
        state.callers > 0
            && (state.now < held.deadline || !has(Guard::HandOverWithinLease))
            && (held.token < held.block_end || !has(Guard::HandOverWithinBlock))
            && (!held.checked || !has(Guard::NoHandOverAfterCheck))
    }

    fn may_check(&self, state: &State, held: Held) -> bool {
        let flushed = held.row_token == held.token || !self.guards.has(Guard::FlushBeforeCheck);
        state.transaction.is_none() && flushed
    }

    fn may_purge(&self, state: &State) -> bool {
        let below = |row: Row| row.ceiling < state.now || !self.guards.has(Guard::PurgeBelowClock);
        state.row.is_some_and(|row| row.count == 0 && below(row))
    }
}

impl State {
    /// An owner comes in.
    fn let_in(&mut self, turn: Turn, token: Token, lease: LeaseId) {
        let highest = self.given.iter().map(|(_, token)| *token).max();
        // Who was freed by force may not know yet, and hand over.
        self.fell |= self.forced != Some(lease) && highest.is_some_and(|highest| token <= highest);
        self.given.push((turn, token));
        self.given.sort_unstable();
        self.resource.write(token, turn);
    }

    fn hand_over(&mut self) -> Option<()> {
        let held = self.held.as_mut()?;
        held.token += 1;
        held.turn += 1;
        held.checked = false;
        self.callers -= 1;
        let Held {
            turn, token, lease, ..
        } = *held;
        self.let_in(turn, token, lease);
        Some(())
    }

    fn answer(&mut self) -> Option<()> {
        let asked = self.asked.take()?;
        let held = self.held.as_mut()?;
        match (asked.request.action, asked.answer?) {
            (Action::Extend { token, .. }, Outcome::Extended(remaining)) => {
                held.row_token = token;
                if self.now < held.deadline {
                    held.deadline = held.deadline.max(asked.sent_at + remaining);
                }
            }
            _ => self.held = None,
        }
        Some(())
    }

    fn check(&mut self) -> Option<()> {
        let now = self.now;
        let held = self.held.as_mut()?;
        held.checked = true;
        let row = self.row.filter(|row| row.is_held(now) && row.lease == held.lease);
        if row.is_some_and(|row| row.token == held.token) {
            self.transaction = Some(held.turn);
        } else {
            self.refused |= row.is_some() && now < held.deadline;
            self.held = None;
        }
        Some(())
    }

    /// The owners that are inside by their local deadline: turn and lease.
    fn inside(&self) -> impl Iterator<Item = (Turn, LeaseId)> {
        let held = self.held.filter(|held| self.now < held.deadline);
        let ours = held.map(|held| (held.turn, held.lease));
        let theirs = match self.other {
            Other::Inside { turn, deadline, .. } if self.now < deadline => Some((turn, Q1)),
            _ => None,
        };
        let inside = ours.into_iter().chain(theirs);
        inside.filter(|(_, lease)| self.forced != Some(*lease))
    }

    /// The token and turn of each body that runs, be it past its local deadline.
    fn running(&self) -> impl Iterator<Item = (Token, Turn)> {
        let ours = self.held.map(|held| (held.token, held.turn));
        let theirs = match self.other {
            Other::Inside { token, turn, .. } => Some((token, turn)),
            _ => None,
        };
        ours.into_iter().chain(theirs)
    }

    fn is_answered_for(&self) -> bool {
        self.row.filter(|row| row.is_held(self.now)).is_none_or(|row| {
            self.held.is_some_and(|held| held.lease == row.lease)
                || self.crashed == Some(row.lease)
                || (row.lease == Q1 && matches!(self.other, Other::Inside { .. }))
        })
    }

    /// Times that no longer matter are all the same.
    fn forget(&mut self) {
        if let Some(row) = &mut self.row
            && !row.is_held(self.now)
        {
            row.expire_at = 0;
        }
        let ours = self.held.as_mut().map(|held| &mut held.deadline);
        let theirs = match &mut self.other {
            Other::Inside { deadline, .. } => Some(deadline),
            _ => None,
        };
        let deadlines = ours.into_iter().chain(theirs);
        deadlines
            .filter(|deadline| **deadline <= self.now)
            .for_each(|deadline| *deadline = 0);
    }
}

impl Model for HandOverModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: FIRST_TICK,
            row: None,
            transaction: None,
            callers: CALLERS,
            held: None,
            asked: None,
            late: Late::default(),
            other: Other::Wants,
            forced: None,
            crashed: None,
            leases: 0,
            given: Vec::new(),
            fell: false,
            resource: Resource::default(),
            refused: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        // A row that is locked is skipped, and asked again later.
        let locked = state.transaction.is_some() && self.guards.has(Guard::CheckLocksRow);
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        may(Step::Tick, state.now < LAST_TICK);
        may(Step::Commit, state.transaction.is_some());
        if let Some(asked) = &state.asked {
            let answered = asked.answer.is_some();
            may(Step::Answer, answered);
            may(Step::Execute, !answered && !locked);
            may(Step::GiveUp(state.late.fate(asked)), true);
        }
        if let Some(held) = state.held {
            let idle = state.asked.is_none();
            may(Step::Extend, idle && state.now < held.deadline);
            may(Step::Release, idle && !locked);
            may(Step::HandOver, self.may_hand_over(state, held));
            may(Step::Check, self.may_check(state, held));
            may(Step::Crash, state.crashed.is_none());
        } else {
            may(
                Step::Acquire,
                state.callers > 0 && state.asked.is_none() && !locked,
            );
        }
        for (_, request) in state.late.each() {
            may(Step::ExecuteLate(request), !locked);
        }
        let held = state.row.is_some_and(|row| row.is_held(state.now));
        may(
            Step::OtherAcquires,
            state.other == Other::Wants && !held && !locked,
        );
        may(
            Step::OtherReleases,
            matches!(state.other, Other::Inside { .. }) && !locked,
        );
        may(Step::ForceRelease, state.forced.is_none() && held && !locked);
        may(Step::Purge, self.may_purge(state) && !locked);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Acquire => self.acquire(&mut next),
            Step::Extend => {
                let Held { lease, token, .. } = next.held?;
                let action = Action::Extend {
                    count: 1,
                    change: 0,
                    token,
                };
                next.asked = Some(Asked::new(Request { lease, action }, next.now));
            }
            Step::Execute => {
                let Request { lease, action } = next.asked?.request;
                let outcome = self.apply(&mut next, lease, action);
                next.asked.as_mut()?.answer = Some(outcome);
            }
            Step::Answer => next.answer()?,
            Step::GiveUp(_) => {
                let asked = next.asked.take()?;
                next.late.abandon(&asked);
            }
            Step::ExecuteLate(_) => {
                let Request { lease, action } = next.late.take(0);
                self.apply(&mut next, lease, action);
            }
            Step::HandOver => next.hand_over()?,
            Step::Release => {
                let lease = next.held.take()?.lease;
                self.apply(&mut next, lease, Action::Release { change: -1 });
            }
            Step::Check => next.check()?,
            Step::Commit => next.transaction = None,
            Step::Crash => {
                next.crashed = next.held.take().map(|held| held.lease);
                if let Some(asked) = next.asked.take() {
                    next.late.abandon(&asked);
                }
            }
            Step::OtherAcquires => {
                let Outcome::Granted(token, remaining) = self.apply(&mut next, Q1, Action::Acquire) else {
                    return None;
                };
                next.other = Other::Inside {
                    token,
                    turn: next.leases * LEASE_TURNS,
                    deadline: next.now + remaining,
                };
            }
            Step::OtherReleases => {
                self.apply(&mut next, Q1, Action::Release { change: -1 });
                next.other = Other::Gone;
            }
            Step::ForceRelease => {
                let row = next.row.as_mut()?;
                next.forced = Some(row.lease);
                row.count = 0;
                row.lease = OPERATOR;
            }
            Step::Purge => next.row = None,
        }
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.inside().count() <= 1),
            Property::always(TOKENS, |_, state: &State| {
                !state.fell && state.given.is_sorted_by(|a, b| a.1 < b.1)
            }),
            Property::always(FENCED, |_, state: &State| {
                let mut running = state.running();
                running.all(|(token, turn)| state.resource.keeps_order(token, turn))
            }),
            Property::always(CHECKED, |_, state: &State| {
                let open = state.transaction;
                open.is_none_or(|open| state.inside().all(|(turn, _)| turn == open))
            }),
            Property::always(PASSES, |_, state: &State| !state.refused),
            Property::always(RELEASE, |_, state: &State| state.is_answered_for()),
            Property::always(LENGTH, |_, state: &State| {
                state.row.is_none_or(|row| row.expire_at <= state.now + TTL)
            }),
            Property::sometimes(
                "a caller who was handed the lock checks its token",
                |_, state: &State| state.transaction.is_some_and(|turn| turn % LEASE_TURNS > 0),
            ),
            Property::sometimes(
                "Q takes over from a streak that ended in a crash",
                |_, state: &State| {
                    let last = state.given.last().map(|(turn, _)| turn % LEASE_TURNS);
                    state.crashed.is_some() && last == Some(0) && state.given.len() == 3
                },
            ),
            Property::sometimes("a stale write is refused", |_, state: &State| {
                state.running().any(|(token, _)| state.resource.refuses(token))
            }),
        ]
    }
}
