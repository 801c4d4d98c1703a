//! Acquires of unknown outcome: their process gives up the connection, releases what it may have got, and
//! asks with a fresh lease.
//!
//! A process answers for a lease while it waits for a request of it, is inside, or owes a release. What is
//! held is held for a process that answers for it, with two exceptions, in which the grant ends by itself
//! after a ttl: an acquire that is carried out later than a ttl after it was given up; and a copy of an
//! acquire that is carried out when the first one was already, and the row carries another lease: the first
//! was answered with busy, or another lease came after it. No connection to a database
//! makes such a copy; a store would by retrying acquires, and must not.
//!
//! Bounds: [`TTL`] 2 without a margin in 4 ticks, two leases of P and one of Q, no renewals. The requests of
//! P are late or lost, at most two at a time, one of which may be a copy that the network makes of an acquire;
//! those of Q are slow, but their answers come at once. Late releases are in the model of the [lease](crate::lease).

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, LENGTH, RELEASE, TOKENS};
use crate::guards::{Guard, Guards};
use crate::history::Tokens;
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Rules, Time};
use crate::wire::{Asked, Fate, Late, local_deadline};

/// Length of a lease.
pub const TTL: Time = 2;
const FIRST_TICK: Time = 1;
const LAST_TICK: Time = 4;
const LEASES: [u8; 2] = [2, 1];
const TROUBLED: Process = Process(0);

/// The model.
#[derive(Debug, Clone)]
pub struct RetryModel {
    /// The guards that stand.
    pub guards: Guards,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: Time,
    row: Option<Row>,
    sites: [Site; 2],
    late: Late<2>,
    /// The lease whose acquire the network copied, and whether it was carried out once.
    copied: Option<(LeaseId, bool)>,
    tokens: Tokens,
    /// The row is held by one of the two exceptions.
    excused: bool,
    /// Acquires that were given up, and until when their process answers for them.
    given_up: Vec<(LeaseId, Time)>,
}

/// What one process knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Site {
    /// How many leases it asked for.
    used: u8,
    asked: Option<Asked>,
    /// The lease and its local deadline.
    inside: Option<(LeaseId, Time)>,
    owed: Vec<Owed>,
}

/// A release that is to be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owed {
    lease: LeaseId,
    until: Time,
    /// Whether the acquire is known to have been carried out.
    known: bool,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A process sends an acquire.
    Ask(Process),
    /// A body ends.
    Leave(Process),
    /// A process sends a release that it owes.
    Release(LeaseId),
    /// The store carries the request out.
    Execute(Process),
    /// The answer arrives.
    Answer(Process),
    /// A process no longer waits for the answer.
    GiveUp(Process, Fate),
    /// The network makes a copy of the request.
    Copy(Process),
    /// The store carries out a request that nobody waits for.
    ExecuteLate(usize, Request),
    /// The row is deleted. With all guards this happens only when no request is on its way any more.
    Purge,
}

impl RetryModel {
    fn apply(&self, state: &mut State, request: Request) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: TTL,
            block: 0,
            reserve: 0,
        };
        let before = state.row;
        let outcome = rules.apply(&mut state.row, state.now, request);
        let repeated = before.is_some_and(|row| row.lease == request.lease && row.is_held(state.now));
        if let (Outcome::Granted(token, _), false) = (outcome, repeated) {
            state.tokens.give(token);
            let another = before.is_some_and(|row| row.lease != request.lease);
            let second = state.copied == Some((request.lease, true));
            let given_up_for_long =
                |(lease, until): &(LeaseId, Time)| *lease == request.lease && *until <= state.now;
            state.excused = (second && another) || state.given_up.iter().any(given_up_for_long);
        }
        if let Some((lease, carried_out)) = &mut state.copied {
            *carried_out |= *lease == request.lease;
        }
        outcome
    }

    fn answer(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let site = &mut state.sites[process.index()];
        let asked = site.asked.take()?;
        let lease = asked.request.lease;
        match (asked.request.action, asked.answer?) {
            (Action::Acquire, Outcome::Granted(_, remaining)) => {
                let end = local_deadline(asked.sent_at, remaining, 0);
                if now < end {
                    site.inside = Some((lease, end));
                } else {
                    site.owe(lease, end, true);
                }
            }
            (Action::Release { .. }, answer) => {
                let resent = self.guards.has(Guard::OrphanReleaseIsResent);
                let after = if self.guards.has(Guard::LastReleaseAfterTtl) {
                    asked.sent_at
                } else {
                    now
                };
                site.owed.retain(|owed| {
                    let settled = answer == Outcome::Released || owed.known || !resent || after >= owed.until;
                    owed.lease != lease || !settled
                });
            }
            _ => {}
        }
        Some(())
    }

    fn give_up(&self, state: &mut State, process: Process) -> Option<()> {
        let until = state.now + TTL;
        let site = &mut state.sites[process.index()];
        let asked = site.asked.take()?;
        let lease = asked.request.lease;
        state.late.abandon(&asked);
        if asked.request.action == Action::Acquire {
            state.given_up.push((lease, until));
            state.given_up.sort_unstable();
            if self.guards.has(Guard::OrphanIsReleased) {
                site.owe(lease, until, false);
            }
        }
        Some(())
    }
}

impl Site {
    fn owe(&mut self, lease: LeaseId, until: Time, known: bool) {
        self.owed.push(Owed { lease, until, known });
        self.owed.sort_unstable_by_key(|owed| owed.lease);
    }

    fn answers_for(&self, lease: LeaseId) -> bool {
        self.asked.is_some_and(|asked| asked.request.lease == lease)
            || self.inside.is_some_and(|(inside, _)| inside == lease)
            || self.owed.iter().any(|owed| owed.lease == lease)
    }
}

impl State {
    fn ask(&mut self, process: Process, lease: LeaseId, action: Action) {
        let asked = Asked::new(Request { lease, action }, self.now);
        self.sites[process.index()].asked = Some(asked);
    }

    fn answers_for(&self, lease: LeaseId) -> bool {
        self.sites.iter().any(|site| site.answers_for(lease))
    }

    /// Whether the row is not held, or somebody answers for it, or nobody has to.
    fn is_answered_for(&self) -> bool {
        let Some(row) = self.row.filter(|row| row.is_held(self.now)) else {
            return true;
        };
        self.excused || self.answers_for(row.lease)
    }

    /// Times that no longer matter are all the same.
    fn forget(&mut self) {
        let now = self.now;
        if let Some(row) = &mut self.row
            && !row.is_held(now)
        {
            row.expire_at = 0;
            self.excused = false;
        }
        let inside = self.sites.iter_mut().filter_map(|site| site.inside.as_mut());
        let ends = inside.chain(&mut self.given_up).map(|(_, end)| end);
        ends.filter(|end| **end <= now).for_each(|end| *end = 0);
    }
}

impl Model for RetryModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: FIRST_TICK,
            row: None,
            sites: [Site::default(), Site::default()],
            late: Late::default(),
            copied: None,
            tokens: Tokens::default(),
            excused: false,
            given_up: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < LAST_TICK {
            steps.push(Step::Tick);
        }
        for process in Process::ALL {
            let site = &state.sites[process.index()];
            if site.inside.is_some() {
                steps.push(Step::Leave(process));
            }
            if let Some(asked) = &site.asked {
                let answered = asked.answer.is_some();
                steps.push(if answered {
                    Step::Answer(process)
                } else {
                    Step::Execute(process)
                });
                if process == TROUBLED {
                    let acquire = asked.request.action == Action::Acquire;
                    if acquire || answered {
                        steps.push(Step::GiveUp(process, state.late.fate(asked)));
                    }
                    if acquire && !answered && state.copied.is_none() && state.late.has_room() {
                        steps.push(Step::Copy(process));
                    }
                }
            } else {
                steps.extend(site.owed.iter().map(|owed| Step::Release(owed.lease)));
                if site.inside.is_none() && site.used < LEASES[process.index()] {
                    steps.push(Step::Ask(process));
                }
            }
        }
        if !self.guards.has(Guard::PurgeOnlyIdle) && state.row.is_some_and(|row| row.count == 0) {
            steps.push(Step::Purge);
        }
        for (index, request) in state.late.each() {
            steps.push(Step::ExecuteLate(index, request));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Ask(process) => {
                let site = &mut next.sites[process.index()];
                site.used += 1;
                let number = site.used;
                next.ask(process, LeaseId { process, number }, Action::Acquire);
            }
            Step::Leave(process) => {
                let site = &mut next.sites[process.index()];
                let (lease, end) = site.inside.take()?;
                site.owe(lease, end, true);
            }
            Step::Release(lease) => next.ask(lease.process, lease, Action::Release { change: -1 }),
            Step::Execute(process) => {
                let request = next.sites[process.index()].asked?.request;
                let outcome = self.apply(&mut next, request);
                let asked = &mut next.sites[process.index()].asked;
                if outcome == Outcome::Busy {
                    *asked = None;
                } else if let Some(asked) = asked {
                    asked.answer = Some(outcome);
                    if process != TROUBLED {
                        self.answer(&mut next, process)?;
                    }
                }
            }
            Step::Answer(process) => self.answer(&mut next, process)?,
            Step::GiveUp(process, _) => self.give_up(&mut next, process)?,
            Step::Copy(process) => {
                let request = next.sites[process.index()].asked?.request;
                next.copied = Some((request.lease, false));
                next.late.push(request);
            }
            Step::ExecuteLate(index, _) => {
                let request = next.late.take(index);
                self.apply(&mut next, request);
            }
            Step::Purge => next.row = None,
        }
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| {
                let inside = state.sites.iter().filter_map(|site| site.inside);
                inside.filter(|(_, end)| state.now < *end).count() <= 1
            }),
            Property::always(TOKENS, |_, state: &State| state.tokens.grow()),
            Property::always(RELEASE, |_, state: &State| state.is_answered_for()),
            Property::always(LENGTH, |_, state: &State| {
                state.row.is_none_or(|row| row.expire_at <= state.now + TTL)
            }),
            Property::sometimes(
                "a grant is released that its process never heard of",
                |_, state: &State| {
                    let free = state.row.filter(|row| row.count == 0);
                    free.is_some_and(|row| {
                        let given_up = state.given_up.iter().any(|(lease, _)| *lease == row.lease);
                        given_up && !state.answers_for(row.lease)
                    })
                },
            ),
        ]
    }
}
