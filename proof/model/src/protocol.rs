//! The protocol: processes that take a lock, renew it, hand it over and release it, and one row.
//!
//! Nothing is forced to happen: that a process does not take its next step while the clock goes on is a pause
//! of it, or of its thread, or of the network. Requests and answers are slow. A request that its process no
//! longer waits for is lost or carried out at any later moment, after others that were sent after it. A
//! wake-up is heard at any later moment, as often as one likes, or never. Answers that change nothing when
//! they are late (busy, released, withdrawn) come at once.
//!
//! A process answers for a lease while it waits with it, is inside, or owes a release. The row is held, and
//! names a successor, only for a lease that a process answers for, with two exceptions, which end by
//! themselves: an acquire that is carried out later than a ttl after it was given up; and a copy of an
//! acquire that is carried out after the first one, when the row carries another lease since. No connection
//! to a database makes such a copy; a store would by retrying acquires, and must not.

mod answers;
pub mod bounds;
mod execute;
mod process;
mod state;
mod steps;

use std::fmt;

use stateright::{Model, Property};

use crate::guards::{Guard, Guards};
use crate::store::{LeaseId, Process, Request, Row, Store, Time};
use bounds::{Bounds, Event};
pub use state::{Fate, State};
use state::{Inside, Told};

/// By how much the local deadline is earlier than the store's, where clocks differ.
pub const MARGIN: Time = 1;
/// How many holds a body has at most.
const MOST_HOLDS: u8 = 3;

/// Counted by the local deadline, and under the conditions that the documentation names.
pub const EXCLUSION: &str = "at most one owner is inside";
/// Stronger: neither the lock nor a hold is ever taken from who is inside.
pub const KEPT: &str = "who is inside has the row";
/// In the order in which owners were let in. So a resource that refuses smaller tokens takes no write out of
/// order.
pub const TOKENS: &str = "fence tokens grow and are never reused";
/// The row is not held by a lease that nobody answers for.
pub const RELEASE: &str = "what is held is held for somebody";
/// A waiter that gave up, for instance.
pub const NEXT: &str = "who is next is somebody who waits";
/// So what nobody extends ends.
pub const LENGTH: &str =
    "no lease is longer than a ttl from now, and nobody is next for longer than asked for";
/// "Lost is sticky": not by renewal, and even if nobody took it over.
pub const ENDED: &str = "a lease that has expired does nothing any more";
/// But for as long as it was next when it died.
pub const DEAD: &str = "nothing is passed on to the dead";
/// A free key can be had, and one's own too.
pub const IN_VAIN: &str = "no waiter is kept out by a lease of its own";
/// A transaction that has checked its token has the lock until it ends.
pub const CHECKED: &str = "nobody else is inside while a checked transaction is open";
/// The check finds the row up to date.
pub const PASSES: &str = "a fence check refuses nobody whose lease stands";

/// The model.
#[derive(Debug, Clone)]
pub struct Protocol {
    /// The guards that stand.
    pub guards: Guards,
    /// How much happens.
    pub bounds: Bounds,
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// The store's clock jumps ahead.
    Jump(Time),
    /// A process asks for a waiting caller, again or for the first time.
    Ask(Process),
    /// A process hears that the row was passed on to this lease.
    Hear(LeaseId, Heard),
    /// The caller waits no longer, and the process withdraws.
    Withdraw(Process),
    /// A process sends an extend: it renews the lease, and the row follows.
    Extend(Process),
    /// A nested body begins.
    Nest(Process),
    /// The body inside returns, and the next caller of the same process enters.
    HandOver(Process),
    /// A body begins a transaction and checks its token in it.
    Check(Process),
    /// That transaction ends.
    EndCheck,
    /// A body ends: it returns, or it is dropped.
    Leave(Process),
    /// A process sends a release that it owes.
    Release(LeaseId),
    /// The store carries the request out.
    Execute(Process),
    /// The store carries the request out, but its transaction lasts.
    Begin(Process),
    /// It commits.
    Commit,
    /// The answer arrives.
    Answer(Process),
    /// A process no longer waits for the answer.
    GiveUp(Process, Fate),
    /// The network makes a copy of an acquire.
    Copy(Process),
    /// The store carries out a request that nobody waits for.
    ExecuteLate(usize, Request),
    /// A process dies, and another takes its place.
    Crash(Process),
    /// The operator frees the lock.
    ForceRelease,
    /// The row is deleted.
    Purge,
}

/// Which wake-up it is, and what it does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Heard(Told, process::Hears);

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {:?}: {:?}", self.0.token, self.1)
    }
}

impl Protocol {
    fn has(&self, guard: Guard) -> bool {
        self.guards.has(guard)
    }

    fn may(&self, event: Event) -> bool {
        self.bounds.events.contains(&event)
    }

    fn is_calm(&self, process: Process) -> bool {
        self.bounds.calm && process != Process(0)
    }

    fn store(&self) -> Store {
        Store {
            guards: self.guards,
            ttl: self.bounds.ttl,
            spare: self.bounds.spare,
        }
    }

    /// The owners that are inside, by the local deadline. A forced release is the documented exception: an
    /// owner that was inside then does not count, unless a later renewal confirms the lease.
    fn inside<'a>(&'a self, state: &'a State) -> impl Iterator<Item = &'a Inside> {
        let inside = state.sites.iter().filter_map(|site| site.inside.as_ref());
        inside.filter(|inside| {
            self.is_inside(inside, state.now) && state.forced != state::Forced::Lease(inside.lease)
        })
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds.leases.len())]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.steps(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, step)?;
        next.forget();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model: &Self, state: &State| {
                model.inside(state).count() <= 1
            }),
            Property::always(KEPT, |model: &Self, state: &State| {
                let held = state.held();
                model
                    .inside(state)
                    .all(|inside| held.is_some_and(|row| row.lease == inside.lease))
            }),
            Property::always(TOKENS, |_, state: &State| state.keeps(TOKENS)),
            Property::always(RELEASE, |_, state: &State| {
                state.held().is_none_or(|row| state.is_answered_for(row.lease))
            }),
            Property::always(NEXT, |_, state: &State| {
                let next = state.row.and_then(|row| row.successor(state.store_now()));
                let held_by = state.row.map(|row| row.lease);
                next.is_none_or(|next| Some(next.lease) != held_by && state.is_answered_for(next.lease))
            }),
            Property::always(LENGTH, |model: &Self, state: &State| {
                let now = state.store_now();
                state.row.is_none_or(|row| {
                    let next = row.next.map_or(0, |next| next.until);
                    row.expire_at <= now + model.bounds.ttl && next <= now + crate::store::QUEUED_FOR
                })
            }),
            Property::always(ENDED, |_, state: &State| state.keeps(ENDED)),
            Property::always(DEAD, |_, state: &State| state.keeps(DEAD)),
            Property::always(IN_VAIN, |_, state: &State| state.keeps(IN_VAIN)),
            Property::always(CHECKED, |model: &Self, state: &State| {
                state.checked.is_none_or(|checked| {
                    model
                        .inside(state)
                        .all(|inside| (inside.lease, inside.token) == checked)
                })
            }),
            Property::always(PASSES, |_, state: &State| state.keeps(PASSES)),
            Property::sometimes(
                "a lease that was given up is released",
                |model: &Self, state: &State| {
                    let given_up = |row: Row| {
                        state
                            .history
                            .given_up
                            .iter()
                            .any(|(lease, _)| *lease == row.lease)
                    };
                    let free = state.row.filter(|row| row.count == 0);
                    !model.may(Event::UnknownAsk)
                        || free.is_some_and(|row| given_up(row) && !state.is_answered_for(row.lease))
                },
            ),
            Property::sometimes(
                "two bodies run, one of them past its local deadline",
                |_, state: &State| {
                    state.now == 1 || state.sites.iter().filter(|site| site.inside.is_some()).count() > 1
                },
            ),
            Property::sometimes(
                "the row has an old number of holds",
                |model: &Self, state: &State| {
                    let row = state.row.filter(|_| state.sites[0].asked.is_none());
                    !model.may(Event::Nest)
                        || row.zip(state.sites[0].inside).is_some_and(|(row, inside)| {
                            inside.holds == inside.row_holds && row.count != inside.holds
                        })
                },
            ),
            Property::sometimes(
                "a caller who was handed the lock checks its token",
                |model: &Self, state: &State| {
                    let handed_over =
                        |inside: &Inside| state.checked == Some((inside.lease, inside.last_token));
                    !model.may(Event::Check) || model.inside(state).any(handed_over)
                },
            ),
            Property::sometimes(
                "somebody to whom the row was passed on is inside",
                |model: &Self, state: &State| {
                    let passed_on =
                        |inside: &Inside| state.told.iter().any(|told| told.token == inside.token);
                    !model.bounds.queue || model.inside(state).any(passed_on)
                },
            ),
            Property::sometimes(
                "what was passed on has ended, and nobody heard",
                |model: &Self, state: &State| {
                    let expired = state.row.filter(|row| row.is_expired(state.store_now()));
                    !model.bounds.queue
                        || expired.is_some_and(|row| state.told.iter().any(|told| told.token == row.token))
                },
            ),
        ]
    }
}
