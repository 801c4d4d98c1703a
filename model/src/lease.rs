//! Renewal, expiry and takeover: two processes, one body each, and clocks.
//!
//! The clocks of the processes run at the pace of true time, the store's too, but for a jump. A run has one of
//! three kinds of [`Trouble`] besides late and lost requests and answers. A forced release is the documented
//! exception to exclusion, so the owner who was inside counts again only if a later renewal confirms it.
//!
//! Bounds: [`TTL`] 3 and [`MARGIN`] 1 in 6 ticks, two leases of P and one of Q, one late request at a time.
//! Answers that change nothing when they are late (busy, released) come at once.

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, FENCED, LENGTH, TOKENS};
use crate::guards::{Guard, Guards};
use crate::history::{Resource, Tokens, Turn};
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Rules, Time, Token};
use crate::wire::{Asked, Fate, Late, local_deadline};

/// Length of a lease.
pub const TTL: Time = 3;
/// By how much the local deadline is earlier than the store's.
pub const MARGIN: Time = 1;
/// Time ends here.
pub const LAST_TICK: Time = 6;
const LEASES: [u8; 2] = [2, 1];
const FIRST_TICK: Time = 1;

/// "Lost is sticky": not by renewal, and even if nobody took it over.
pub const ENDED: &str = "a lease that has expired is never revived";

/// The model.
#[derive(Debug, Clone)]
pub struct LeaseModel {
    /// The guards that stand.
    pub guards: Guards,
    /// What else happens.
    pub trouble: Trouble,
}

/// What happens besides pauses, and late and lost requests and answers; once in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// The store's clock jumps ahead by so much. The documented condition is: not by more than the margin.
    Jump(Time),
    /// P dies, and another process takes its place.
    Crash,
    /// The operator forces the lock free.
    ForceRelease,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: Time,
    /// The store's clock is this much ahead.
    ahead: Time,
    row: Option<Row>,
    sites: [Site; 2],
    late: Late<1>,
    crashed: bool,
    forced: Forced,
    tokens: Tokens,
    resource: Resource,
    revived: bool,
}

/// The operator's doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Forced {
    Not,
    /// This lease. It does not count until it is confirmed once more.
    Lease(LeaseId),
    Before,
}

/// What one process knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Site {
    /// How many leases it asked for.
    used: u8,
    asked: Option<Asked>,
    inside: Option<Inside>,
}

/// A body that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Inside {
    lease: LeaseId,
    token: Token,
    turn: Turn,
    deadline: Time,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The store's clock jumps ahead.
    Jump(Time),
    /// A process sends an acquire.
    Ask(Process),
    /// A process sends a renewal.
    Renew(Process),
    /// A body ends: it returns, or it is dropped at the local deadline. Its process sends a release.
    Release(Process),
    /// The store carries the request out.
    Execute(Process),
    /// The answer arrives.
    Answer(Process),
    /// A process no longer waits for the answer.
    GiveUp(Process, Fate),
    /// The store carries out a request that nobody waits for.
    ExecuteLate(usize, Request),
    /// A process dies, and another takes its place.
    Crash(Process),
    /// The operator frees the lock.
    ForceRelease,
}

impl LeaseModel {
    /// Whether a body thinks that it is inside.
    fn is_inside(&self, inside: Inside, now: Time) -> bool {
        now < inside.deadline || !self.guards.has(Guard::LocalDeadline)
    }

    fn apply(&self, state: &mut State, request: Request) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: TTL,
            block: 0,
            reserve: 0,
        };
        let store_now = state.now + state.ahead;
        let before = state.row;
        let outcome = rules.apply(&mut state.row, store_now, request);
        let expired = before.filter(|row| row.is_expired(store_now));
        match outcome {
            Outcome::Granted(token, _) => {
                let repeated = before.is_some_and(|row| row.lease == request.lease);
                if let Some(row) = state.row.as_mut().filter(|_| !repeated) {
                    row.turn = state.tokens.give(token);
                }
            }
            Outcome::Extended(_) => {
                state.revived |= expired.is_some();
                if state.forced == Forced::Lease(request.lease) {
                    state.forced = Forced::Before;
                }
            }
            _ => {}
        }
        outcome
    }

    fn answer(&self, state: &mut State, process: Process) {
        let now = state.now;
        let site = &mut state.sites[process.index()];
        let Some(Asked {
            request,
            sent_at,
            answer: Some(answer),
            turn,
        }) = site.asked.take()
        else {
            return;
        };
        let since = if self.guards.has(Guard::DeadlineFromSend) {
            sent_at
        } else {
            now
        };
        let margin = if self.guards.has(Guard::Margin) { MARGIN } else { 0 };
        match (request.action, answer) {
            (Action::Acquire, Outcome::Granted(token, remaining)) => {
                site.inside = Some(Inside {
                    lease: request.lease,
                    token,
                    turn,
                    deadline: local_deadline(since, remaining, margin),
                });
                state.resource.write(token, turn);
            }
            (Action::Extend { .. }, Outcome::Extended(remaining)) => {
                let later = local_deadline(since, remaining, margin);
                // A lease that has ended stays ended.
                if let Some(inside) = &mut site.inside
                    && self.is_inside(*inside, now)
                {
                    inside.deadline = inside.deadline.max(later);
                }
            }
            (Action::Extend { .. }, _) => site.inside = None,
            _ => {}
        }
    }
}

impl State {
    /// Times that no longer matter are all the same.
    fn forget(&mut self) {
        let store_now = self.now + self.ahead;
        if let Some(row) = &mut self.row
            && !row.is_held(store_now)
        {
            row.expire_at = 0;
        }
        for site in &mut self.sites {
            if let Some(inside) = &mut site.inside
                && inside.deadline <= self.now
            {
                inside.deadline = 0;
            }
        }
    }

    fn ask(&mut self, process: Process, lease: LeaseId, action: Action) {
        let asked = Asked::new(Request { lease, action }, self.now);
        self.sites[process.index()].asked = Some(asked);
    }
}

impl Model for LeaseModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: FIRST_TICK,
            ahead: 0,
            row: None,
            sites: [Site::default(), Site::default()],
            late: Late::default(),
            crashed: false,
            forced: Forced::Not,
            tokens: Tokens::default(),
            resource: Resource::default(),
            revived: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < LAST_TICK {
            steps.push(Step::Tick);
        }
        if let Trouble::Jump(length) = self.trouble
            && state.ahead < length
        {
            steps.push(Step::Jump(length));
        }
        if self.trouble == Trouble::ForceRelease
            && state.forced == Forced::Not
            && state.row.is_some_and(|row| row.is_held(state.now + state.ahead))
        {
            steps.push(Step::ForceRelease);
        }
        for process in Process::ALL {
            let site = &state.sites[process.index()];
            match &site.asked {
                Some(asked) if asked.answer.is_none() => steps.push(Step::Execute(process)),
                Some(_) => steps.push(Step::Answer(process)),
                None => match site.inside {
                    Some(inside) => {
                        steps.push(Step::Release(process));
                        if self.is_inside(inside, state.now) {
                            steps.push(Step::Renew(process));
                        }
                    }
                    None if site.used < LEASES[process.index()] => steps.push(Step::Ask(process)),
                    None => {}
                },
            }
            if let Some(asked) = &site.asked {
                steps.push(Step::GiveUp(process, state.late.fate(asked)));
            }
            let lives = site.inside.is_some() || site.asked.is_some();
            let may_crash = self.trouble == Trouble::Crash && process == Process::ALL[0];
            if may_crash && !state.crashed && lives {
                steps.push(Step::Crash(process));
            }
        }
        for (index, request) in state.late.each() {
            steps.push(Step::ExecuteLate(index, request));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Jump(length) => next.ahead += length,
            Step::Ask(process) => {
                let site = &mut next.sites[process.index()];
                site.used += 1;
                let number = site.used;
                next.ask(process, LeaseId { process, number }, Action::Acquire);
            }
            Step::Renew(process) => {
                let inside = next.sites[process.index()].inside?;
                let action = Action::Extend {
                    count: 1,
                    change: 0,
                    token: inside.token,
                };
                next.ask(process, inside.lease, action);
            }
            Step::Release(process) => {
                let lease = next.sites[process.index()].inside.take()?.lease;
                next.ask(process, lease, Action::Release { change: -1 });
            }
            Step::Execute(process) => {
                let request = next.sites[process.index()].asked?.request;
                let outcome = self.apply(&mut next, request);
                let asked = &mut next.sites[process.index()].asked;
                if let Action::Release { .. } = request.action {
                    *asked = None;
                } else if let (Action::Acquire, Outcome::Busy | Outcome::Lost) = (request.action, outcome) {
                    *asked = None;
                } else if let Some(asked) = asked {
                    asked.answer = Some(outcome);
                    asked.turn = next.row.map_or(0, |row| row.turn);
                }
            }
            Step::Answer(process) => self.answer(&mut next, process),
            Step::GiveUp(process, _) => {
                let asked = next.sites[process.index()].asked.take()?;
                next.late.abandon(&asked);
            }
            Step::ExecuteLate(index, _) => {
                let request = next.late.take(index);
                self.apply(&mut next, request);
            }
            Step::Crash(process) => {
                let site = &mut next.sites[process.index()];
                let used = site.used;
                let asked = std::mem::take(site).asked;
                site.used = used;
                next.crashed = true;
                if let Some(asked) = asked {
                    next.late.abandon(&asked);
                }
            }
            Step::ForceRelease => {
                let row = next.row.as_mut()?;
                next.forced = Forced::Lease(row.lease);
                row.count = 0;
                row.lease = OPERATOR;
            }
        }
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model: &Self, state: &State| {
                let inside = state.sites.iter().filter_map(|site| site.inside);
                let counts = |inside: &Inside| {
                    model.is_inside(*inside, state.now) && state.forced != Forced::Lease(inside.lease)
                };
                inside.filter(counts).count() <= 1
            }),
            Property::always(TOKENS, |_, state: &State| state.tokens.grow()),
            Property::always(FENCED, |_, state: &State| {
                let mut inside = state.sites.iter().filter_map(|site| site.inside);
                inside.all(|inside| state.resource.keeps_order(inside.token, inside.turn))
            }),
            Property::always(ENDED, |_, state: &State| !state.revived),
            Property::always(LENGTH, |_, state: &State| {
                state
                    .row
                    .is_none_or(|row| row.expire_at <= state.now + state.ahead + TTL)
            }),
            Property::sometimes("a stale write is refused", |_, state: &State| {
                let mut inside = state.sites.iter().filter_map(|site| site.inside);
                inside.any(|inside| state.resource.refuses(inside.token))
            }),
            Property::sometimes(
                "two bodies run, one of them past its local deadline",
                |_, state: &State| {
                    state.sites.iter().all(|site| site.inside.is_some()) && state.forced == Forced::Not
                },
            ),
        ]
    }
}

/// The fresh lease that a force release writes.
const OPERATOR: LeaseId = LeaseId {
    process: Process(2),
    number: 0,
};
