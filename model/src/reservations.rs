//! Hand-over between processes: who waits reserves the next grant, and comes in as soon as it hears that the
//! holder has left, before any release is written. Then the row follows ("the claim").
//!
//! A process asks again and again with the same lease. What the holder says when it leaves is never forgotten
//! here: each process may hear it at any later moment, as often as it likes, or never. So it is lost, delayed,
//! repeated and reordered in all ways. Requests and their answers are slow; one that is given up is lost or
//! carried out at any later moment. Answers that change nothing when they are late (busy, released,
//! withdrawn, lost to an ask or a release) come at once.
//!
//! Bounds: a lease is [`TTL`] 3, a reservation [`RESERVE`] 2 ticks long, one token is in reserve. A run is one of
//! [`CLOCK`], [`CRASH`], [`LATE`] and [`THREE`].

use stateright::{Model, Property};

use crate::check::property::{EXCLUSION, FENCED, LENGTH, RELEASE, TOKENS};
use crate::guards::{Guard, Guards};
use crate::history::{Resource, Tokens, Turn};
use crate::store::{Action, LeaseId, Outcome, Process, Request, Row, Rules, Time, Token};
use crate::wire::{Asked, Fate, Late, local_deadline};

/// Length of a lease.
pub const TTL: Time = 3;
/// Length of a reservation.
pub const RESERVE: Time = 2;
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

const BOUNDS: Bounds = Bounds {
    leases: &[2, 1],
    last_tick: 3,
    late: 0,
    events: &[],
};

/// How much happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
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
    crashed: Option<Crash>,
    /// Asks that were given up, and until when their process answers for them.
    given_up: Vec<(LeaseId, Time)>,
    tokens: Tokens,
    resource: Resource,
    /// An owner came in by a reservation, left in order, and the lock was still held by the lease before it.
    kept_out: bool,
}

/// The process that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Crash(Process);

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

impl ReservationsModel {
    fn has(&self, guard: Guard) -> bool {
        self.guards.has(guard)
    }

    fn may(&self, event: Event) -> bool {
        self.bounds.events.contains(&event)
    }

    fn apply(&self, state: &mut State, request: Request) -> Outcome {
        let rules = Rules {
            guards: self.guards,
            ttl: TTL,
            block: BLOCK,
            reserve: RESERVE,
        };
        let now = state.store_now();
        let before = state.row.map(|row| row.lease);
        let outcome = rules.apply(&mut state.row, now, request);
        if let Some(row) = state.row.as_mut()
            && before != Some(row.lease)
        {
            let inside = state.sites.iter().filter_map(|site| site.inside);
            let mut inside = inside.filter(|inside| inside.lease == row.lease);
            row.turn = match (inside.next(), outcome) {
                // It got its turn when it came in.
                (Some(inside), _) => inside.turn,
                (None, Outcome::Granted(token, _)) => state.tokens.give(token),
                (None, _) => 0,
            };
        }
        outcome
    }

    /// When a promise of the store ends for the process.
    fn deadline(&self, sent_at: Time, remaining: Time) -> Time {
        local_deadline(sent_at, remaining, if self.may(Event::Jump) { MARGIN } else { 0 })
    }

    fn deadline_of_reservation(&self, asked: &Asked, now: Time, remaining: Time) -> Time {
        let since = if self.has(Guard::DeadlineFromSend) {
            asked.sent_at
        } else {
            now
        };
        if self.has(Guard::Margin) {
            self.deadline(since, remaining)
        } else {
            local_deadline(since, remaining, 0)
        }
    }

    fn hears(&self, state: &State, site: &Site, left: LeaseId) -> bool {
        let reservation = site.waits.and_then(|waits| waits.reservation);
        reservation.is_some_and(|reservation| {
            (reservation.behind == left || !self.has(Guard::LeftNamesTheLease))
                && (state.now < reservation.deadline || !self.has(Guard::LeftWhileReserved))
                && (site.asked.is_none() || !self.has(Guard::LeftWithNoAskOnItsWay))
        })
    }

    fn hear(&self, state: &mut State, process: Process) -> Option<()> {
        let site = &mut state.sites[process.index()];
        let waits = site.waits.take()?;
        let Reservation {
            behind,
            token,
            deadline,
        } = waits.reservation?;
        let deadline = if self.has(Guard::LeftWhileReserved) {
            deadline
        } else {
            state.now + RESERVE
        };
        let turn = match state.row.filter(|row| row.lease == waits.lease) {
            // Only without a guard: it was granted the lock, and does not know.
            Some(row) => row.turn,
            None => state.tokens.give(token),
        };
        site.inside = Some(Inside {
            lease: waits.lease,
            token,
            turn,
            deadline,
            behind: Some(behind),
            written: false,
            second: false,
            over: false,
        });
        state.resource.write(token, turn);
        Some(())
    }

    fn leave(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let site = &mut state.sites[process.index()];
        let inside = site.inside.as_mut()?;
        let in_time = now < inside.deadline;
        if in_time && !inside.written && self.has(Guard::ReleaseAfterClaim) {
            inside.over = true;
            return Some(());
        }
        let Inside {
            lease,
            behind,
            written,
            ..
        } = *inside;
        site.inside = None;
        if !in_time && !written && !self.has(Guard::EntryEndsAsking) {
            site.wait(lease);
            return Some(());
        }
        site.owe(Owed {
            lease,
            until: now,
            known: true,
            behind: behind.filter(|_| in_time),
        });
        if in_time {
            state.say_left(lease);
        }
        Some(())
    }

    fn answer(&self, state: &mut State, process: Process) -> Option<()> {
        let now = state.now;
        let asked = state.sites[process.index()].asked.take()?;
        let lease = asked.request.lease;
        match (asked.request.action, asked.answer?) {
            (Action::Acquire, Outcome::Granted(token, remaining)) => {
                let deadline = self.deadline(asked.sent_at, remaining);
                state.granted(lease, token, asked.turn, deadline);
            }
            (
                Action::Acquire,
                Outcome::Reserved {
                    behind,
                    token,
                    remaining,
                },
            ) => {
                let deadline = self.deadline_of_reservation(&asked, now, remaining);
                if let Some(waits) = &mut state.sites[process.index()].waits {
                    waits.reservation = Some(Reservation {
                        behind,
                        token,
                        deadline,
                    });
                }
            }
            (Action::Extend { .. }, Outcome::Extended(remaining)) => {
                let later = self.deadline(asked.sent_at, remaining);
                let inside = state.sites[process.index()].inside.as_mut()?;
                inside.written = true;
                if now < inside.deadline {
                    inside.deadline = inside.deadline.max(later);
                    if inside.over {
                        self.leave(state, process)?;
                    }
                }
            }
            (Action::Extend { .. }, _) => {
                let site = &mut state.sites[process.index()];
                let inside = site.inside.take();
                if inside.is_some_and(|inside| !inside.written) && !self.has(Guard::EntryEndsAsking) {
                    site.wait(lease);
                }
            }
            _ => {}
        }
        Some(())
    }

    /// The answer to a release.
    fn settle(&self, state: &mut State, process: Process, answer: Outcome) -> Option<()> {
        let asked = state.sites[process.index()].asked.take()?;
        let lease = asked.request.lease;
        let site = &mut state.sites[process.index()];
        let Some(index) = site.owed.iter().position(|owed| owed.lease == lease) else {
            // Only without a guard: it goes on to use the lease.
            return Some(());
        };
        let owed = site.owed[index];
        let settled = match answer {
            Outcome::Released => true,
            Outcome::Withdrawn if !self.has(Guard::WithdrawnIsNotTheEnd) => true,
            _ => owed.known || asked.sent_at >= owed.until,
        };
        if settled {
            site.owed.remove(index);
            let held = state.row.filter(|row| row.is_held(state.store_now()));
            let former = held.filter(|row| owed.behind == Some(row.lease));
            let crashed = former.is_some_and(|row| state.crashed == Some(Crash(row.lease.process)));
            state.kept_out |= crashed;
        }
        Some(())
    }

    fn give_up(&self, state: &mut State, process: Process) -> Option<()> {
        let until = state.now + TTL;
        let late = self.fate(state, process)? == Fate::Late;
        let site = &mut state.sites[process.index()];
        let asked = site.asked.take()?;
        if late {
            state.late.push(asked.request);
        }
        let lease = asked.request.lease;
        let waits = site.waits.is_some_and(|waits| waits.lease == lease);
        if asked.request.action == Action::Acquire && waits && self.has(Guard::UnknownAskEndsLease) {
            site.waits = None;
            site.owe(Owed {
                lease,
                until,
                known: false,
                behind: None,
            });
            state.given_up.push((lease, until));
            state.given_up.sort_unstable();
        }
        Some(())
    }

    fn fate(&self, state: &State, process: Process) -> Option<Fate> {
        let asked = state.sites[process.index()].asked.as_ref()?;
        let room = state.late.len() < self.bounds.late;
        Some(if asked.answer.is_none() && room {
            Fate::Late
        } else {
            Fate::Lost
        })
    }

    fn execute(&self, state: &mut State, process: Process) -> Option<()> {
        let request = state.sites[process.index()].asked?.request;
        let outcome = self.apply(state, request);
        let turn = state.row.map_or(0, |row| row.turn);
        let site = &mut state.sites[process.index()];
        match (request.action, outcome) {
            (Action::Release { .. }, _) => self.settle(state, process, outcome)?,
            (Action::Acquire, Outcome::Busy | Outcome::Lost) => {
                site.asked = None;
                if let Some(waits) = &mut site.waits {
                    waits.reservation = None;
                }
            }
            _ => {
                let asked = site.asked.as_mut()?;
                asked.answer = Some(outcome);
                asked.turn = turn;
            }
        }
        Some(())
    }

    fn steps_of(&self, state: &State, process: Process, steps: &mut Vec<Step>) {
        let site = &state.sites[process.index()];
        let mut may = |step, condition| {
            if condition {
                steps.push(step);
            }
        };
        let idle = site.asked.is_none();
        if let Some(asked) = &site.asked {
            may(Step::Execute(process), asked.answer.is_none());
            may(Step::Answer(process), asked.answer.is_some());
            if let Some(fate) = self.fate(state, process) {
                may(Step::GiveUp(process, fate), true);
            }
        }
        if let Some(inside) = site.inside {
            let in_time = state.now < inside.deadline;
            let runs = in_time && !inside.over;
            may(
                Step::Extend(process),
                idle && in_time && (!inside.written || self.may(Event::Renew)),
            );
            may(
                Step::HandOver(process),
                runs && self.may(Event::HandOver) && !inside.second,
            );
            may(
                Step::SayLeft(process),
                runs && !self.has(Guard::LeavesForGood) && !state.left.contains(&inside.lease),
            );
            let leaves = idle || !(inside.written || self.has(Guard::ReleaseAfterClaim));
            let leaves = leaves || (in_time && !inside.written);
            may(Step::Leave(process), leaves && (!inside.over || !in_time));
        } else {
            let fresh = site.waits.is_none() && site.used < self.bounds.leases[process.index()];
            may(Step::Ask(process), idle && (fresh || site.waits.is_some()));
        }
        for left in &state.left {
            may(Step::Hear(process, *left), self.hears(state, site, *left));
        }
        may(
            Step::Withdraw(process),
            self.may(Event::Withdraw) && idle && site.waits.is_some(),
        );
        for owed in &site.owed {
            may(Step::Release(owed.lease), idle);
        }
        let lives = site.inside.is_some() || site.asked.is_some() || site.waits.is_some();
        may(
            Step::Crash(process),
            self.may(Event::Crash) && state.crashed.is_none() && (lives || !site.owed.is_empty()),
        );
    }
}

impl Site {
    fn wait(&mut self, lease: LeaseId) {
        self.waits = Some(Waits {
            lease,
            reservation: None,
        });
    }

    fn owe(&mut self, owed: Owed) {
        self.owed.push(owed);
        self.owed.sort_unstable();
    }

    fn answers_for(&self, lease: LeaseId) -> bool {
        self.asked.is_some_and(|asked| asked.request.lease == lease)
            || self.waits.is_some_and(|waits| waits.lease == lease)
            || self.inside.is_some_and(|inside| inside.lease == lease)
            || self.owed.iter().any(|owed| owed.lease == lease)
    }
}

impl State {
    fn store_now(&self) -> Time {
        self.now + self.ahead
    }

    fn say_left(&mut self, lease: LeaseId) {
        if !self.left.contains(&lease) {
            self.left.push(lease);
            self.left.sort_unstable();
        }
    }

    fn send(&mut self, lease: LeaseId, action: Action) {
        let asked = Asked::new(Request { lease, action }, self.now);
        self.sites[lease.process.index()].asked = Some(asked);
    }

    fn ask(&mut self, process: Process) {
        let site = &mut self.sites[process.index()];
        let waits = site.waits.unwrap_or_else(|| {
            site.used += 1;
            let number = site.used;
            let lease = LeaseId { process, number };
            Waits {
                lease,
                reservation: None,
            }
        });
        site.waits = Some(waits);
        self.send(waits.lease, Action::Acquire);
    }

    fn hand_over(&mut self, process: Process) -> Option<()> {
        let inside = self.sites[process.index()].inside.as_mut()?;
        inside.token += 1;
        inside.second = true;
        inside.turn = self.tokens.give(inside.token);
        self.resource.write(inside.token, inside.turn);
        Some(())
    }

    fn granted(&mut self, lease: LeaseId, token: Token, turn: Turn, deadline: Time) {
        let now = self.now;
        let site = &mut self.sites[lease.process.index()];
        if let Some(inside) = &mut site.inside {
            // Only without a guard: it came in while it asked.
            inside.written = true;
            if now < inside.deadline {
                inside.deadline = inside.deadline.max(deadline);
            }
            return;
        }
        site.waits = None;
        if now >= deadline {
            site.owe(Owed {
                lease,
                until: now,
                known: true,
                behind: None,
            });
            return;
        }
        site.inside = Some(Inside {
            lease,
            token,
            turn,
            deadline,
            behind: None,
            written: true,
            second: false,
            over: false,
        });
        self.resource.write(token, turn);
    }

    /// Who is inside by the local deadline.
    fn inside(&self) -> impl Iterator<Item = Inside> {
        let inside = self.sites.iter().filter_map(|site| site.inside);
        inside.filter(|inside| !inside.over && self.now < inside.deadline)
    }

    /// Each body that runs, be it past its local deadline.
    fn running(&self) -> impl Iterator<Item = Inside> {
        let inside = self.sites.iter().filter_map(|site| site.inside);
        inside.filter(|inside| !inside.over)
    }

    fn has_the_row(&self, lease: LeaseId) -> bool {
        let now = self.store_now();
        self.row.is_some_and(|row| {
            let reserved = row.reservation(now).is_some_and(|next| next.lease == lease);
            (row.lease == lease && row.is_held(now)) || (row.lease != lease && reserved)
        })
    }

    /// Whether somebody answers for the lease, or nobody has to: its process died, or it was asked for by a
    /// request that came later than a ttl after it was given up.
    fn is_answered_for(&self, lease: LeaseId) -> bool {
        let late = |given_up: &(LeaseId, Time)| given_up.0 == lease && given_up.1 <= self.now;
        self.sites.iter().any(|site| site.answers_for(lease))
            || self.crashed == Some(Crash(lease.process))
            || self.given_up.iter().any(late)
    }

    /// Times that no longer matter are all the same.
    fn forget(&mut self) {
        let (now, store_now) = (self.now, self.store_now());
        if let Some(row) = &mut self.row {
            if !row.is_held(store_now) {
                row.expire_at = 0;
            }
            row.reserved = row.reservation(store_now);
        }
        let sites = self.sites.iter_mut();
        let inside = sites.filter_map(|site| site.inside.as_mut());
        let ends = inside.map(|inside| &mut inside.deadline);
        let ends = ends.chain(self.given_up.iter_mut().map(|(_, end)| end));
        ends.filter(|end| **end <= now).for_each(|end| *end = 0);
    }
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
                next.crashed = Some(Crash(process));
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
            Property::always(LENGTH, |_, state: &State| {
                let now = state.store_now();
                state.row.is_none_or(|row| {
                    let reserved = row.reserved.map_or(0, |next| next.until);
                    row.expire_at <= now + TTL && reserved <= now + RESERVE
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
