//! States that a run must have been in. Where one never came, the run has tested nothing of what it leads to, and says so.

use dblock_core::store::Outcome;
use uuid::Uuid;

use crate::caller::State;
use crate::show::whose;
use crate::world::World;

/// Such a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sometimes {
    PassedOnToTheDead,
    LateWakeUp,
    AbandonedGranted,
    AnswerLost,
    CarriedOutTooLate,
    RowSkipped,
    HandedOver,
    SharedBeside,
    AtTheLimit,
    TakenBesideWaiters,
    RolledBackBesideWaiters,
    CommitForgotten,
    FreedUnderItsHolder,
    TicketOutlivesItsGiver,
    LostInside,
    Quiet,
}

impl Sometimes {
    /// All of them, in words.
    const ALL: [(Self, &str); 16] = [
        (
            Self::PassedOnToTheDead,
            "a lock is passed on to a process that is gone",
        ),
        (Self::LateWakeUp, "a wake-up arrives for a lease that has ended"),
        (
            Self::AbandonedGranted,
            "a lock is granted to a caller that has gone",
        ),
        (
            Self::AnswerLost,
            "a statement is committed, and its answer is lost",
        ),
        (
            Self::CarriedOutTooLate,
            "a statement is carried out after its sender has given it up",
        ),
        (Self::RowSkipped, "a request skips a row that is locked"),
        (Self::HandedOver, "a lock is handed over within its process"),
        (Self::SharedBeside, "two processes share a lock"),
        (Self::AtTheLimit, "as many are inside as a limit lets in"),
        (
            Self::TakenBesideWaiters,
            "a transaction takes a key that others wait for",
        ),
        (Self::RolledBackBesideWaiters, "such a transaction is rolled back"),
        (Self::CommitForgotten, "a server that crashes forgets a commit"),
        (
            Self::FreedUnderItsHolder,
            "an operator frees a lock under its holder",
        ),
        (
            Self::TicketOutlivesItsGiver,
            "a ticket is adopted after its giver's process has died",
        ),
        (Self::LostInside, "a lease is lost under a body"),
        (
            Self::Quiet,
            "one who shares a key enters or leaves, and nothing else follows",
        ),
    ];
}

/// In how many schedules each state came.
#[derive(Debug, Default)]
pub(crate) struct Tally([u64; Sometimes::ALL.len()]);

impl Tally {
    pub(crate) fn add(&mut self, came: Came) {
        for (place, count) in self.0.iter_mut().enumerate() {
            *count += u64::from(came.0 >> place & 1);
        }
    }

    /// Each state with its count.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Sometimes::ALL
            .iter()
            .zip(self.0)
            .map(|((_, words), count)| (*words, count))
    }
}

/// The states of one schedule.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Came(u32);

impl Came {
    pub(crate) fn note(&mut self, state: Sometimes) {
        self.0 |= 1 << state as u32;
    }
}

impl World {
    /// A lock has been passed on to this lease.
    pub(crate) fn sees_passed_on(&mut self, lease: Uuid) {
        let (process, incarnation) = whose(lease);
        let its = self.processes.get(process);
        if its.is_some_and(|its| !its.alive || its.incarnation != incarnation) {
            self.came.note(Sometimes::PassedOnToTheDead);
        }
    }

    /// A process hears of its request for a key.
    pub(crate) fn sees_answer(&mut self, process: usize, key: usize, outcome: &Outcome) {
        match outcome {
            Outcome::Granted { .. } if !self.has_caller(process, key) => {
                self.came.note(Sometimes::AbandonedGranted);
            }
            Outcome::Skipped => self.came.note(Sometimes::RowSkipped),
            _ => {}
        }
    }

    /// A caller of a process enters.
    pub(crate) fn sees_entry(&mut self, process: usize, key: usize, shares: bool) {
        let is_beside = |number: &usize| {
            let caller = &self.callers[*number];
            let own = caller.ownership.as_ref();
            let shares = own.is_some_and(|own| own.call.options.limit.is_some());
            caller.key == key && caller.process != process && shares && self.is_inside(*number)
        };
        if shares && self.live.iter().any(is_beside) {
            self.came.note(Sometimes::SharedBeside);
        }
    }

    /// A transaction that has taken the key ends, or takes it.
    pub(crate) fn sees_take(&mut self, key: usize, state: Sometimes) {
        if self.has_waiter(key) {
            self.came.note(state);
        }
    }

    fn has_waiter(&self, key: usize) -> bool {
        let mut callers = self.live.iter().map(|number| &self.callers[*number]);
        callers.any(|caller| caller.key == key && caller.state == State::Waiting)
    }

    fn has_caller(&self, process: usize, key: usize) -> bool {
        let mut callers = self.live.iter().map(|number| &self.callers[*number]);
        callers.any(|caller| (caller.process, caller.key) == (process, key))
    }
}
