//! The row and what a request does to it: the table of rules on `dblock::store::Store::apply`, with a small
//! number in the place of each time, token and UUID.

use std::fmt;

use crate::guards::{Guard, Guards};
use crate::history::Turn;

/// Ticks of a clock.
pub type Time = u8;

/// A fence token.
pub type Token = u8;

/// A process: P, Q or R.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process(pub u8);

impl Process {
    /// P and Q. Most models have no third.
    pub const ALL: [Self; 2] = [Self(0), Self(1)];

    /// For a list with an entry per process.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["P", "Q", "R"][self.index()])
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
    /// Somebody else holds the lock, and this lease is next.
    Reserved {
        /// The lease that holds the lock.
        behind: LeaseId,
        /// The token that the reserved lease will have.
        token: Token,
        /// The reservation ends in so many ticks.
        remaining: Time,
    },
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
    /// When its owner was let in. History only, and written by the model.
    pub turn: Turn,
    /// Who is next.
    pub reserved: Option<Reserved>,
}

/// The promise of the next grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reserved {
    /// For this lease.
    pub lease: LeaseId,
    /// Until then, on the store's clock.
    pub until: Time,
    /// With this token.
    pub token: Token,
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

    /// The reservation that stands.
    pub fn reservation(&self, now: Time) -> Option<Reserved> {
        self.reserved.filter(|reserved| reserved.until > now)
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
    /// How long a busy answer reserves the next grant. With 0 there are no reservations.
    pub reserve: Time,
}

impl Rules {
    /// Carries a request out at `now` on the store's clock.
    pub fn apply(self, row: &mut Option<Row>, now: Time, request: Request) -> Outcome {
        let lease = request.lease;
        match request.action {
            Action::Acquire => self.acquire(row, now, lease),
            Action::Extend { count, change, token } => {
                let Some(row) = row.as_mut() else {
                    return Outcome::Lost;
                };
                if self.claims(*row, now, lease) {
                    return self.claim(row, now, lease, token);
                }
                if !self.extends(*row, now, lease) {
                    return Outcome::Lost;
                }
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
                Some(row) if row.reservation(now).is_some_and(|next| next.lease == lease) => {
                    row.reserved = None;
                    Outcome::Withdrawn
                }
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
                return self.busy(row, now, lease);
            }
            let refused = row.is_expired(now) || self.guards.has(Guard::FreeRowRefusesItsLease);
            if its_own && refused {
                return Outcome::Lost;
            }
            let others = row.reservation(now).is_some_and(|next| next.lease != lease);
            if others && self.guards.has(Guard::ReservationKeepsOthersOut) {
                return Outcome::Busy;
            }
        }
        let next = row.and_then(|row| row.reservation(now));
        let next = next.filter(|next| next.lease == lease);
        let token = next.map_or_else(|| self.token(*row, now), |next| next.token);
        let ceiling = row.map_or(0, |row| row.ceiling).max(token + self.block());
        let kept = row.and_then(|row| row.reserved);
        *row = Some(Row {
            lease,
            count: 1,
            expire_at: now + self.ttl,
            token,
            ceiling,
            turn: 0,
            reserved: kept.filter(|_| !self.guards.has(Guard::GrantEndsReservation)),
        });
        Outcome::Granted(token, self.ttl)
    }

    /// A token for whoever comes after all that were given so far.
    fn token(self, row: Option<Row>, now: Time) -> Token {
        let above = row.filter(|_| self.guards.has(Guard::TokenAboveCeiling));
        let above = above.map_or(0, |row| row.ceiling + 1);
        let clock = if self.guards.has(Guard::TokenFromClock) {
            now
        } else {
            1
        };
        above.max(clock)
    }

    fn block(self) -> Token {
        if self.guards.has(Guard::CeilingCoversBlock) {
            self.block
        } else {
            0
        }
    }

    /// The answer to an acquire that finds the lock held.
    fn busy(self, row: &mut Row, now: Time, lease: LeaseId) -> Outcome {
        let reserved = row.reservation(now);
        let of_another =
            reserved.is_some_and(|next| next.lease != lease) && self.guards.has(Guard::OneReservation);
        if self.reserve == 0 || of_another {
            return Outcome::Busy;
        }
        let token = match reserved {
            Some(next) if next.lease == lease => next.token,
            _ => {
                let token = self.token(Some(*row), now);
                if self.guards.has(Guard::ReservationRaisesCeiling) {
                    row.ceiling = token + self.block();
                }
                token
            }
        };
        row.reserved = Some(Reserved {
            lease,
            until: now + self.reserve,
            token,
        });
        Outcome::Reserved {
            behind: row.lease,
            token,
            remaining: self.reserve,
        }
    }

    fn claims(self, row: Row, now: Time, lease: LeaseId) -> bool {
        let reserved = row.reservation(now).is_some_and(|next| next.lease == lease);
        let reserved = reserved || !self.guards.has(Guard::ClaimNeedsReservation);
        self.reserve > 0 && row.lease != lease && reserved
    }

    /// Who is next has come in, and the row follows.
    fn claim(self, row: &mut Row, now: Time, lease: LeaseId, token: Token) -> Outcome {
        row.lease = lease;
        row.count = 1;
        row.expire_at = now + self.ttl;
        if self.guards.has(Guard::ClaimKeepsThePromise) {
            let promised = row.reserved.map_or(0, |next| next.until);
            row.expire_at = row.expire_at.max(promised);
        }
        row.token = token;
        row.ceiling = row.ceiling.max(token);
        if self.guards.has(Guard::GrantEndsReservation) {
            row.reserved = None;
        }
        Outcome::Extended(row.expire_at - now)
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
