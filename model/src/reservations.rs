//! Hand-over between processes: who waits reserves the next grant, and comes in as soon as it hears that the
//! holder has left, before any release is written. Then the row follows ("the claim").
//!
//! A process asks again and again with the same lease. What the holder says when it leaves is never forgotten
//! here: each process may hear it at any later moment, as often as it likes, or never. So it is lost, delayed,
//! repeated and reordered in all ways. Requests and their answers are slow; one that is given up is lost or
//! carried out at any later moment. Answers that change nothing when they are late (busy, released,
//! withdrawn, lost to an ask or a release) come at once.
//!
//! Bounds: one token is in reserve. A run is one of [`CLOCK`], [`CRASH`], [`LATE`] and [`THREE`], where a lease is
//! longer than a reservation, and [`SHORT`], where it is shorter.

mod process;
mod state;

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, FENCED, RELEASE, TOKENS};
use crate::guards::{Guard, Guards};
use crate::history::{Resource, Tokens, Turn};
use crate::store::{Action, LeaseId, Process, Request, Row, Time, Token};
use crate::wire::{Asked, Fate, Late};

/// By how much the local deadline of both is earlier than the store's, where clocks differ.
pub const MARGIN: Time = 1;
const FIRST_TICK: Time = 1;
const BLOCK: Token = 1;
/// Room for more than [`Bounds::late`], to try.
const MOST_LATE: usize = 2;

/// Stronger than exclusion: neither the lock nor the promise is ever taken from who is inside.
pub const KEPT: &str = "who is inside has the row or its reservation";
/// A reservation keeps everybody else out, so somebody must be going to use it.
pub const RESERVED: &str = "what is reserved is reserved for somebody";
/// Even if the holder crashed before its release.
pub const FREED: &str = "who leaves in order leaves the key free";

/// So what nobody extends ends. A claim lengthens the lease to what was reserved.
const ENDS: &str = "no lease is longer than a ttl or a reservation from now";

/// The model.
#[derive(Debug, Clone)]
pub struct ReservationsModel {
    /// The guards that stand.
    pub guards: Guards,
    /// How much happens.
    pub bounds: Bounds,
}

/// Clocks that differ.
pub const CLOCK: Bounds = Bounds {
    events: &[Event::Jump],
    ..BOUNDS
};

/// Crashes, and callers who go away.
pub const CRASH: Bounds = Bounds {
    events: &[Event::Crash, Event::Withdraw],
    ..BOUNDS
};

/// Late requests, in two leases with all that may happen to them.
pub const LATE: Bounds = Bounds {
    leases: &[1, 1],
    late: 1,
    events: &[Event::HandOver, Event::Renew, Event::Withdraw],
    ..BOUNDS
};

/// A third process.
pub const THREE: Bounds = Bounds {
    leases: &[1, 1, 1],
    ..BOUNDS
};

/// Leases that are shorter than a reservation.
pub const SHORT: Bounds = Bounds {
    ttl: 2,
    reserve: 3,
    last_tick: 4,
    ..CRASH
};

const BOUNDS: Bounds = Bounds {
    ttl: 3,
    reserve: 2,
    leases: &[2, 1],
    last_tick: 3,
    late: 0,
    events: &[],
};

/// How much happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Length of a lease.
    pub ttl: Time,
    /// Length of a reservation.
    pub reserve: Time,
    /// How many leases each process asks for.
    pub leases: &'static [u8],
    /// Time ends here.
    pub last_tick: Time,
    /// How many requests are late at a time, 2 at most.
    pub late: usize,
    /// What else.
    pub events: &'static [Event],
}

/// What may happen besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The store's clock jumps ahead by the margin, once.
    Jump,
    /// A process dies, once.
    Crash,
    /// The lock is handed over inside a process too, once a lease.
    HandOver,
    /// Leases are renewed; else an extend is sent for the claim only.
    Renew,
    /// Callers stop waiting.
    Withdraw,
}

/// All that there is at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    now: Time,
    /// The store's clock is this much ahead.
    ahead: Time,
    row: Option<Row>,
    sites: Vec<Site>,
    late: Late<MOST_LATE>,
    /// The leases that were said to be left.
    left: Vec<LeaseId>,
    /// The process that died.
    crashed: Option<Process>,
    /// Asks that were given up, and until when their process answers for them.
    given_up: Vec<(LeaseId, Time)>,
    tokens: Tokens,
    resource: Resource,
    /// An owner came in by a reservation, left in order, and the lock was still held by the lease before it.
    kept_out: bool,
}

/// What one process knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Site {
    /// How many leases it asked for.
    used: u8,
    waits: Option<Waits>,
    inside: Option<Inside>,
    asked: Option<Asked>,
    owed: Vec<Owed>,
}

/// A caller waits, and the process asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Waits {
    lease: LeaseId,
    reservation: Option<Reservation>,
}

/// What the last answer promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Reservation {
    behind: LeaseId,
    token: Token,
    deadline: Time,
}

/// A body that runs, or has ended and awaits the answer to the claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Inside {
    lease: LeaseId,
    token: Token,
    turn: Turn,
    deadline: Time,
    /// Came in by the reservation, behind this lease.
    behind: Option<LeaseId>,
    /// The row is known to carry the lease.
    written: bool,
    /// The lock was handed over inside the process.
    second: bool,
    /// The body has ended, and the next holder of the row will be told.
    over: bool,
}

/// A release that is to be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Owed {
    lease: LeaseId,
    until: Time,
    /// No ask of this lease is on its way.
    known: bool,
    /// The owner came in behind this lease, and left in order.
    behind: Option<LeaseId>,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The store's clock jumps ahead by the margin.
    Jump,
    /// A process asks for a waiting caller, again or for the first time.
    Ask(Process),
    /// A process hears that nobody is inside with the lease any more, and lets its caller in.
    Hear(Process, LeaseId),
    /// The caller waits no longer, and the process withdraws.
    Withdraw(Process),
    /// A process sends an extend: it renews the lease, or claims the row.
    Extend(Process),
    /// The body inside returns, and the next caller of the same process comes in.
    HandOver(Process),
    /// The body inside ends. If that was in order, the process says so.
    Leave(Process),
    /// A process says that a lease is left, and it is not.
    SayLeft(Process),
    /// A process sends a release that it owes.
    Release(LeaseId),
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
}

impl Model for ReservationsModel {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: FIRST_TICK,
            ahead: 0,
            row: None,
            sites: vec![Site::default(); self.bounds.leases.len()],
            late: Late::default(),
            left: Vec::new(),
            crashed: None,
            given_up: Vec::new(),
            tokens: Tokens::default(),
            resource: Resource::default(),
            kept_out: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < self.bounds.last_tick {
            steps.push(Step::Tick);
        }
        if self.may(Event::Jump) && state.ahead == 0 {
            steps.push(Step::Jump);
        }
        for process in (0..).map(Process).take(state.sites.len()) {
            self.steps_of(state, process, steps);
        }
        for (index, request) in state.late.each() {
            steps.push(Step::ExecuteLate(index, request));
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        match step {
            Step::Tick => next.now += 1,
            Step::Jump => next.ahead += MARGIN,
            Step::Ask(process) => next.ask(process),
            Step::Hear(process, _) => self.hear(&mut next, process)?,
            Step::Withdraw(process) => {
                let site = &mut next.sites[process.index()];
                let lease = site.waits?.lease;
                if self.has(Guard::WithdrawalEndsLease) {
                    site.waits = None;
                    site.owe(Owed {
                        lease,
                        until: next.now,
                        known: true,
                        behind: None,
                    });
                } else {
                    next.send(lease, Action::Release { change: -1 });
                }
            }
            Step::Extend(process) => {
                let Inside { lease, token, .. } = next.sites[process.index()].inside?;
                let action = Action::Extend {
                    count: 1,
                    change: 0,
                    token,
                };
                next.send(lease, action);
            }
            Step::HandOver(process) => next.hand_over(process)?,
            Step::Leave(process) => self.leave(&mut next, process)?,
            Step::SayLeft(process) => {
                let lease = next.sites[process.index()].inside?.lease;
                next.say_left(lease);
            }
            Step::Release(lease) => next.send(lease, Action::Release { change: -1 }),
            Step::Execute(process) => self.execute(&mut next, process)?,
            Step::Answer(process) => self.answer(&mut next, process)?,
            Step::GiveUp(process, _) => self.give_up(&mut next, process)?,
            Step::ExecuteLate(index, _) => {
                let request = next.late.take(index);
                self.apply(&mut next, request);
            }
            Step::Crash(process) => {
                let fate = self.fate(&next, process);
                let site = &mut next.sites[process.index()];
                let used = site.used;
                let asked = std::mem::take(site).asked;
                site.used = used;
                if let (Some(asked), Some(Fate::Late)) = (asked, fate) {
                    next.late.push(asked.request);
                }
                next.crashed = Some(process);
            }
        }
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| state.inside().count() <= 1),
            Property::always(KEPT, |_, state: &State| {
                state.inside().all(|inside| state.has_the_row(inside.lease))
            }),
            Property::always(TOKENS, |_, state: &State| state.tokens.grow()),
            Property::always(FENCED, |_, state: &State| {
                let mut running = state.running();
                running.all(|inside| state.resource.keeps_order(inside.token, inside.turn))
            }),
            Property::always(RELEASE, |_, state: &State| {
                let held = state.row.filter(|row| row.is_held(state.store_now()));
                held.is_none_or(|row| state.is_answered_for(row.lease))
            }),
            Property::always(RESERVED, |_, state: &State| {
                let reserved = state.row.and_then(|row| row.reservation(state.store_now()));
                reserved.is_none_or(|next| {
                    let used = state.row.is_some_and(|row| row.lease == next.lease);
                    !used && state.is_answered_for(next.lease)
                })
            }),
            Property::always(ENDS, |model: &Self, state: &State| {
                let now = state.store_now();
                let Bounds { ttl, reserve, .. } = model.bounds;
                state.row.is_none_or(|row| {
                    let reserved = row.reserved.map_or(0, |next| next.until);
                    row.expire_at <= now + ttl.max(reserve) && reserved <= now + reserve
                })
            }),
            Property::always(FREED, |_, state: &State| !state.kept_out),
            Property::sometimes(
                "somebody comes in while the row is still the former holder's",
                |_, state: &State| {
                    let held = state.row.filter(|row| row.is_held(state.store_now()));
                    held.is_some_and(|row| state.inside().any(|inside| inside.lease != row.lease))
                },
            ),
            Property::sometimes("the claim comes before the release", |_, state: &State| {
                state.inside().any(|inside| {
                    let behind = inside.behind.filter(|_| inside.written);
                    behind.is_some_and(|behind| state.sites.iter().any(|site| site.answers_for(behind)))
                })
            }),
            Property::sometimes(
                "a reservation lapses while a body runs that came in by it",
                |_, state: &State| {
                    let mut running = state.running();
                    running.any(|inside| !inside.written && !state.has_the_row(inside.lease))
                },
            ),
            Property::sometimes(
                "the lock goes to the next twice",
                |model: &Self, state: &State| {
                    let leases: u8 = model.bounds.leases.iter().sum();
                    let others = |inside: &Inside| {
                        let mut left = state.left.iter();
                        left.any(|left| Some(*left) != inside.behind && *left != inside.lease)
                    };
                    let twice = |inside: Inside| inside.behind.is_some() && inside.written && others(&inside);
                    leases < 3 || state.inside().any(twice)
                },
            ),
        ]
    }
}
