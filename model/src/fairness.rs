//! Whether a waiter gets the lock beside processes that have callers without end. It asks once a tick and hears no
//! wake-ups.
//!
//! Here some things are forced, because a process that never takes its next step makes everyone wait: before the
//! clock goes on, the waiter has asked, a body that has run through a tick has ended, and a process that listens and got
//! the row has entered. Tokens are left out, so that the states are all that there are. Nothing is lost, and no
//! process crashes.

use stateright::{Model, Property};

use crate::guards::{Guard, Guards};
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Store, Time, Token};

/// Length of a lease.
const TTL: Time = 3;
/// The turn of a process: for so long it hands the lock over, or takes it again.
const TURN_LASTS: Time = 1;
/// Only where nobody queues, which the engine's processes do on every store. In the tick in which it backs off the waiter
/// may have asked already, so this covers one whole tick.
const BACK_OFF: Time = 2;
const LAST_TICK: Time = 8;

/// What a waiter is promised.
pub const WAITERS_ENTER: &str = "who waits enters soon";

/// The model.
#[derive(Debug, Clone)]
pub struct Fairness {
    /// The guards that stand.
    pub guards: Guards,
    /// How many busy processes there are beside the waiter. They listen if the store has wake-ups.
    pub busy: u8,
    /// The store has wake-ups: a busy process queues at once, and the waiter once it has waited for a second. Without
    /// them nobody queues, other than in the engine: for comparison.
    pub wake_ups: bool,
    /// The waiter waits at most so long.
    pub longest_wait: Time,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: Time,
    row: Option<Row>,
    busy: Vec<Busy>,
    waiter: Waiter,
}

/// What a busy process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Busy {
    /// Its lease has one of two numbers in turn.
    lease: LeaseId,
    /// It asks with the lease, since then.
    waits: Option<Time>,
    /// A body is inside, since then.
    inside: Option<Time>,
    /// When the turn ends.
    turn: Option<Time>,
    back_off_until: Time,
}

/// What the waiter does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Waiter {
    Away,
    /// Since then, and whether it has asked in this tick.
    Waits(Time, bool),
    /// Since then.
    Inside(Time),
    Gone,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A busy process asks.
    Ask(Process),
    /// A busy process hears that the row was passed on to it.
    Hear(Process),
    /// A body ends, and the next caller of the same process enters.
    HandOver(Process),
    /// A body ends, and its process releases the lock.
    Release(Process),
    /// The waiter asks.
    WaiterAsks,
    /// The waiter releases.
    WaiterReleases,
}

impl Fairness {
    fn apply(&self, state: &mut State, lease: LeaseId, action: Action) -> Outcome {
        let store = Store {
            guards: self.guards,
            ttl: TTL,
            spare: 0,
        };
        let outcome = store.apply(&mut state.row, state.now, Request { lease, action });
        if let Some(row) = &mut state.row {
            (row.token, row.ceiling) = (Token::default(), Token::default());
        }
        outcome
    }

    fn waiter(&self) -> LeaseId {
        LeaseId {
            process: Process(self.busy),
            number: 1,
        }
    }

    fn may_go_on(&self, busy: &Busy, now: Time) -> bool {
        !self.guards.has(Guard::TurnIsBounded) || busy.turn.is_none_or(|end| now < end)
    }

    fn ask(&self, state: &mut State, process: Process) {
        let now = state.now;
        let Busy { lease, waits, .. } = state.busy[process.index()];
        let since = waits.unwrap_or(now);
        let queue = self.wake_ups.then_some(now - since);
        let outcome = self.apply(state, lease, Action::Acquire { queue });
        let busy = &mut state.busy[process.index()];
        match outcome {
            Outcome::Granted(..) => busy.enter(now),
            Outcome::Lost => busy.renew(),
            _ => busy.waits = self.wake_ups.then_some(since),
        }
    }

    /// Leases are renewed.
    fn hand_over(&self, state: &mut State, process: Process) {
        let now = state.now;
        let busy = &mut state.busy[process.index()];
        busy.inside = Some(now);
        let lease = busy.lease;
        let (count, change, token) = (1, 0, Token::default());
        self.apply(state, lease, Action::Extend { count, change, token });
    }

    fn release(&self, state: &mut State, process: Process) {
        let now = state.now;
        let lease = state.busy[process.index()].lease;
        self.apply(state, lease, Action::Release { change: -1 });
        let busy = &mut state.busy[process.index()];
        busy.renew();
        if busy.turn.is_some_and(|end| now >= end) {
            busy.turn = None;
            if !self.wake_ups {
                let enough = self.guards.has(Guard::BacksOffForAPause);
                busy.back_off_until = now + if enough { BACK_OFF } else { BACK_OFF - 1 };
            }
        }
    }

    fn waiter_asks(&self, state: &mut State) {
        let now = state.now;
        let since = match state.waiter {
            Waiter::Waits(since, _) => since,
            _ => now,
        };
        let queues = self.wake_ups && now > since && self.guards.has(Guard::PollerQueues);
        let queue = queues.then_some(now - since);
        state.waiter = match self.apply(state, self.waiter(), Action::Acquire { queue }) {
            Outcome::Granted(..) => Waiter::Inside(now),
            _ => Waiter::Waits(since, true),
        };
    }
}

impl Busy {
    fn enter(&mut self, now: Time) {
        self.waits = None;
        self.inside = Some(now);
        self.turn = self.turn.or(Some(now + TURN_LASTS));
    }

    /// The lease is over.
    fn renew(&mut self) {
        (self.waits, self.inside) = (None, None);
        self.lease.number = 3 - self.lease.number;
    }
}

impl State {
    /// For how long the waiter has waited.
    fn waited(&self) -> Time {
        match self.waiter {
            Waiter::Waits(since, _) => self.now - since,
            _ => 0,
        }
    }

    fn was_passed(&self, busy: &Busy) -> bool {
        let held = self.row.filter(|row| row.is_held(self.now));
        busy.waits.is_some() && held.is_some_and(|row| row.lease == busy.lease)
    }
}

impl Model for Fairness {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let busy = |process| Busy {
            lease: LeaseId { process, number: 1 },
            waits: None,
            inside: None,
            turn: None,
            back_off_until: 0,
        };
        vec![State {
            now: 1,
            row: None,
            busy: (0..self.busy).map(Process).map(busy).collect(),
            waiter: Waiter::Away,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let now = state.now;
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let ran = |since: Time| since < now;
        let forced = match state.waiter {
            Waiter::Waits(_, asked) => !asked,
            Waiter::Inside(since) => ran(since),
            _ => false,
        };
        let mut busy = state.busy.iter();
        let forced = forced || busy.any(|busy| busy.inside.is_some_and(ran) || state.was_passed(busy));
        may(Step::Tick, !forced && now < LAST_TICK);
        for (process, busy) in (0..).map(Process).zip(&state.busy) {
            let passed = state.was_passed(busy);
            may(Step::Hear(process), passed);
            let idle = busy.inside.is_none() && !passed;
            may(Step::Ask(process), idle && now >= busy.back_off_until);
            let goes_on = busy.inside.is_some() && self.may_go_on(busy, now);
            may(Step::HandOver(process), goes_on);
            may(Step::Release(process), busy.inside.is_some());
        }
        let waits = matches!(state.waiter, Waiter::Away | Waiter::Waits(_, false));
        may(Step::WaiterAsks, waits);
        may(Step::WaiterReleases, matches!(state.waiter, Waiter::Inside(_)));
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        let now = next.now;
        match step {
            Step::Tick => {
                next.now += 1;
                if let Waiter::Waits(_, asked) = &mut next.waiter {
                    *asked = false;
                }
            }
            Step::Ask(process) => self.ask(&mut next, process),
            Step::Hear(process) => next.busy[process.index()].enter(now),
            Step::HandOver(process) => self.hand_over(&mut next, process),
            Step::Release(process) => self.release(&mut next, process),
            Step::WaiterAsks => self.waiter_asks(&mut next),
            Step::WaiterReleases => {
                self.apply(&mut next, self.waiter(), Action::Release { change: -1 });
                next.waiter = Waiter::Gone;
            }
        }
        if let Some(row) = &mut next.row {
            row.forget(next.now);
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WAITERS_ENTER, |model: &Self, state: &State| {
                state.waited() <= model.longest_wait
            }),
            Property::sometimes("it has to wait as long as that", |model: &Self, state: &State| {
                state.waited() == model.longest_wait
            }),
            Property::sometimes("it enters", |_, state: &State| state.waiter == Waiter::Gone),
        ]
    }
}
