//! The row and what a request does to it: the table of rules on `dblock::store::Store::apply`, with a small
//! number in the place of each time, token and UUID.

use std::fmt;

use crate::guards::{Guard, Guards};
use crate::history::Turn;

/// Ticks of a clock.
pub type Time = u8;

/// A fence token.
pub type Token = u8;

/// A process: P or Q.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process(pub u8);

impl Process {
    /// Both.
    pub const ALL: [Self; 2] = [Self(0), Self(1)];

    /// For a list with an entry per process.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == 0 { "P" } else { "Q" })
    }
}

/// A lease: the first of P is P1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    /// Whose it is.
    pub process: Process,
    /// Counts the process' leases.
    pub number: u8,
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.process, self.number)
    }
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Action {
    /// Takes the lock.
    Acquire,
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

/// A request on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Request {
    /// The lease that is asked for or acted for.
    pub lease: LeaseId,
    /// What to do.
    pub action: Action,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Acquire => write!(f, "acquire {:?}", self.lease),
            Action::Extend { count, token, .. } => {
                write!(f, "extend {:?} with count {count}, token {token}", self.lease)
            }
            Action::Release { .. } => write!(f, "release {:?}", self.lease),
        }
    }
}

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The lock is taken, with this token and for so many ticks.
    Granted(Token, Time),
    /// The lease ends in so many ticks.
    Extended(Time),
    /// The lease is over.
    Released,
    /// Somebody else holds the lock.
    Busy,
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
    /// When its owner was let in. History only, and written by the model.
    pub turn: Turn,
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
}

/// What the store goes by.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// The guards that stand.
    pub guards: Guards,
    /// Length of a lease.
    pub ttl: Time,
    /// How many more tokens an acquire reserves.
    pub block: Token,
}

impl Rules {
    /// Carries a request out at `now` on the store's clock.
    pub fn apply(self, row: &mut Option<Row>, now: Time, request: Request) -> Outcome {
        let lease = request.lease;
        match request.action {
            Action::Acquire => self.acquire(row, now, lease),
            Action::Extend { count, change, token } => {
                let Some(row) = row.as_mut().filter(|row| self.extends(**row, now, lease)) else {
                    return Outcome::Lost;
                };
                row.count = self.count(row.count, count, change);
                row.expire_at = row.expire_at.max(now + self.ttl);
                if token > row.token || !self.guards.has(Guard::ExtendKeepsLaterToken) {
                    row.token = token;
                }
                Outcome::Extended(row.expire_at - now)
            }
            Action::Release { change } => match row {
                Some(row) if row.is_held(now) && self.releases(*row, lease) => {
                    row.count = self.count(row.count, 0, change);
                    Outcome::Released
                }
                Some(row) if row.count == 0 && row.lease == lease => Outcome::Released,
                _ => Outcome::Lost,
            },
        }
    }

    fn acquire(self, row: &mut Option<Row>, now: Time, lease: LeaseId) -> Outcome {
        if let Some(row) = row {
            let its_own = row.lease == lease;
            if row.is_held(now) {
                if its_own && self.guards.has(Guard::RepeatedAcquireIsSameGrant) {
                    row.count = 1;
                    return Outcome::Granted(row.token, row.expire_at - now);
                }
                return Outcome::Busy;
            }
            let refused = row.is_expired(now) || self.guards.has(Guard::FreeRowRefusesItsLease);
            if its_own && refused {
                return Outcome::Lost;
            }
        }
        let above = row.filter(|_| self.guards.has(Guard::TokenAboveCeiling));
        let above = above.map_or(0, |row| row.ceiling + 1);
        let clock = if self.guards.has(Guard::TokenFromClock) {
            now
        } else {
            1
        };
        let token = above.max(clock);
        let block = if self.guards.has(Guard::CeilingCoversBlock) {
            self.block
        } else {
            0
        };
        *row = Some(Row {
            lease,
            count: 1,
            expire_at: now + self.ttl,
            token,
            ceiling: token + block,
            turn: 0,
        });
        Outcome::Granted(token, self.ttl)
    }

    fn extends(self, row: Row, now: Time, lease: LeaseId) -> bool {
        let its_own = row.lease == lease || !self.guards.has(Guard::ExtendChecksLease);
        let in_time = row.expire_at > now || !self.guards.has(Guard::ExtendChecksExpiry);
        row.count > 0 && its_own && in_time
    }

    fn releases(self, row: Row, lease: LeaseId) -> bool {
        if self.guards.has(Guard::ReleaseChecksLease) {
            row.lease == lease
        } else {
            row.lease.process == lease.process
        }
    }

    fn count(self, old: u8, count: u8, change: i8) -> u8 {
        if self.guards.has(Guard::AbsoluteCounts) {
            count
        } else {
            old.saturating_add_signed(change)
        }
    }
}
