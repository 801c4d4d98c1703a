//! The store: the row and what a request does to it. The rules are dblock's own, [`rules::carry_out`]; here
//! the row is only made small, so that it can be compared and hashed, and single rules are taken away for a
//! test.

mod convert;
mod weaken;

use std::fmt;

use dblock_core::LockRow;
use dblock_core::store::{self, HandedOver, rules};
use uuid::Uuid;

use crate::guards::{Guard, Guards};
pub(crate) use convert::micros;
use convert::{TICK_MICROS, key, length, moment, ticks};

/// Ticks of a clock.
pub type Time = u8;

/// For how many ticks an acquire makes its lease the successor.
pub const QUEUED_FOR: Time = 2;

/// A fence token: µs, printed as ticks and what is above them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub i64);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.0 / TICK_MICROS, self.0 % TICK_MICROS)
    }
}

/// A process: P, Q or R. O is the operator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process(pub u8);

impl Process {
    /// For a list with an entry per process.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["P", "Q", "R", "O"][self.index()])
    }
}

/// A lease: the first of P is P1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    /// Its owner.
    pub process: Process,
    /// Counts the process' leases, from 1.
    pub number: u8,
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.process, self.number)
    }
}

/// The fresh lease that a force release writes.
const OPERATOR: LeaseId = LeaseId {
    process: Process(3),
    number: 1,
};

/// A request on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// The lease that is asked for or acted for.
    pub lease: LeaseId,
    /// The action.
    pub action: Action,
}

/// The action of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Takes the lock, or queues.
    Acquire {
        /// How long the caller has waited, if the lease is to become the successor of a lock that is busy.
        queue: Option<Time>,
    },
    /// Writes the number of holds and the token, and lengthens the lease.
    Extend {
        /// The number of holds.
        count: u8,
        /// By how much it differs from the number that the row is thought to have.
        change: i8,
        /// The token of the owner that is inside.
        token: Token,
    },
    /// Ends the lease.
    Release {
        /// As for `Extend`.
        change: i8,
    },
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Acquire { queue } => {
                write!(f, "acquire {:?}", self.lease)?;
                queue.map_or(Ok(()), |waited| write!(f, " or queue, waited {waited}"))
            }
            Action::Extend { count, token, .. } => {
                write!(f, "extend {:?} with count {count}, token {token:?}", self.lease)
            }
            Action::Release { .. } => write!(f, "release {:?}", self.lease),
        }
    }
}

/// The answer to a request, with lengths in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The lock is taken, with this token and for so long.
    Granted(Token, Time),
    /// The lease ends after so long.
    Extended(Time),
    /// The lease is over.
    Released,
    /// Somebody else holds the lock; or the row was locked, and nobody knows.
    Busy,
    /// Somebody else holds the lock with this token. This lease is the successor, and will then have so long.
    Queued(Token, Time),
    /// The lease was next, and is no longer.
    Withdrawn,
    /// The row does not carry this lease any more, or the lease has expired.
    Lost,
}

/// The row of the one key. `None` in its place: it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    /// The last lease.
    pub lease: LeaseId,
    /// The number of holds; 0 when free.
    pub count: u8,
    /// When the lease ends, on the store's clock.
    pub expire_at: Time,
    /// The token of the owner that is inside, as far as the row knows.
    pub token: Token,
    /// The largest token that anyone may have.
    pub ceiling: Token,
    /// The successor.
    pub next: Option<Next>,
}

/// The lease that a release passes the row on to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Next {
    /// The lease.
    pub lease: LeaseId,
    /// How long it will have.
    pub ttl: Time,
    /// How many tokens above its own.
    pub spare: u8,
    /// Since when it waits.
    pub since: Time,
    /// Until when it is live.
    pub until: Time,
}

impl Row {
    /// Whether somebody holds the lock.
    pub fn is_held(&self, now: Time) -> bool {
        self.count > 0 && self.expire_at > now
    }

    /// Whether a lease ended without a release.
    pub fn is_expired(&self, now: Time) -> bool {
        self.count > 0 && self.expire_at <= now
    }

    /// The live successor of a lock that is held.
    pub fn successor(&self, now: Time) -> Option<Next> {
        self.next.filter(|next| self.is_held(now) && next.until > now)
    }

    /// Times that no longer matter are all the same.
    pub fn forget(&mut self, now: Time) {
        if !self.is_held(now) {
            self.expire_at = 0;
        }
        if let Some(next) = self.next.as_mut().filter(|next| next.until <= now) {
            (next.since, next.until) = (0, 0);
        }
    }

    /// The operator frees the lock, as [`store::Store::force_release`] says.
    pub fn force_release(&mut self) {
        (self.count, self.lease, self.next) = (0, OPERATOR, None);
    }
}

/// The settings that the requests of a run have in common.
#[derive(Debug, Clone, Copy)]
pub struct Store {
    /// The guards that stand.
    pub guards: Guards,
    /// Length of a lease.
    pub ttl: Time,
    /// How many more tokens an acquire asks for.
    pub spare: u8,
}

impl Store {
    /// How long a passed-on lease is.
    pub fn next_ttl(self) -> Time {
        ticks(i64::try_from(length(self.ttl).min(store::NEXT_TTL).as_micros()).unwrap_or(i64::MAX))
    }

    /// Carries a request out at `now` on the store's clock.
    ///
    /// # Panics
    /// When the rules refuse it, which they don't while there are tokens.
    pub fn apply(self, row: &mut Option<Row>, now: Time, request: Request) -> Outcome {
        let before = *row;
        let mut real = before.map_or_else(|| LockRow::new(key(), moment(now)), |row| row.at(now));
        let mut asked = store::Request::new(real.key.clone(), request.lease.into(), self.action(request));
        if let Some(before) = &before {
            self.weaken(before, now, request, &mut real, &mut asked);
        }
        let carried_out = rules::carry_out(&asked, &mut real).expect("there are tokens");
        let outcome = Outcome::from(carried_out.outcome);
        if !carried_out.changed {
            return outcome;
        }
        let mut after = Row::from(&real);
        self.weaken_after(before, request, &mut after);
        *row = Some(after);
        match outcome {
            Outcome::Granted(_, remaining) => Outcome::Granted(after.token, remaining),
            other => other,
        }
    }

    fn action(self, request: Request) -> store::Action {
        let spare = if self.guards.has(Guard::CeilingCoversSpareTokens) {
            self.spare
        } else {
            0
        };
        match request.action {
            Action::Acquire { queue } => {
                let mut acquire = store::Acquire::new(Uuid::nil(), length(self.ttl), "");
                acquire.spare_tokens = spare.into();
                acquire.queue = queue.map(length);
                acquire.wanted_for = queue.map(|_| length(QUEUED_FOR));
                store::Action::Acquire(acquire)
            }
            Action::Extend { count, token, .. } => {
                let mut extend = store::Extend::new(count.into(), length(self.ttl));
                extend.handed_over = Some(HandedOver::new(Uuid::nil(), "", token.0));
                store::Action::Extend(extend)
            }
            Action::Release { .. } => store::Action::Release,
        }
    }
}
