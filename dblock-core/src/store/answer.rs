//! The answers of a store, and the wake-ups that it reports by itself.

use std::time::Duration;

use uuid::Uuid;

use super::row::Holder;
use crate::key::Key;

/// A wake-up, as a store reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WakeUp {
    /// The store listens: from here on it reports releases, as [`Store::listen`](super::Store::listen) says.
    Listening,
    /// The key has been freed while others waited for it.
    Released(Key),
    /// The key has been passed on.
    #[non_exhaustive]
    PassedOn {
        /// The key.
        key: Key,
        /// The lease that has it now.
        lease_id: Uuid,
        /// The token of that lease.
        fence_token: i64,
    },
    /// A shared lock has room for others, or nobody any more who came before them, and somebody waits.
    #[non_exhaustive]
    MayEnter {
        /// The key.
        key: Key,
        /// How many are inside: a caller with a larger limit may enter.
        inside: u32,
        /// The lease that comes first, if there is one, and for how long it has waited.
        next: Option<(Uuid, Duration)>,
    },
}

impl WakeUp {
    /// [`PassedOn`](Self::PassedOn): `key` was passed on to `lease_id`.
    pub fn passed_on(key: Key, lease_id: Uuid, fence_token: i64) -> Self {
        Self::PassedOn {
            key,
            lease_id,
            fence_token,
        }
    }

    /// [`MayEnter`](Self::MayEnter): `inside` share `key`, and `next` has waited for so long.
    pub fn may_enter(key: Key, inside: u32, next: Option<(Uuid, Duration)>) -> Self {
        Self::MayEnter { key, inside, next }
    }
}

/// The result of one step of [`Store::purge`](super::Store::purge).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Purged {
    /// How many rows were deleted.
    pub rows: u64,
    /// The last key looked at, if there may be more behind it.
    pub next: Option<Key>,
}

impl Purged {
    /// `rows` were deleted. The next step begins after `next`, if there may be more.
    pub fn new(rows: u64, next: Option<Key>) -> Self {
        Self { rows, next }
    }
}

/// The answer to a [`Request`](super::Request).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// `Acquire`: the lock is taken.
    #[non_exhaustive]
    Granted {
        /// Larger than every token given for the key before.
        fence_token: i64,
        /// `expire_at - now`.
        remaining: Duration,
        /// The holder of the expired lease, if there was one.
        taken_over: Option<Holder>,
        /// Somebody waits for the key: `wanted_until > now`.
        wanted: bool,
        /// Whether the store has made the change of the record that came with the request. It may always omit
        /// the change: the lock is granted all the same, and the engine then writes the record separately.
        recorded: bool,
    },
    /// `Extend`: the count is written.
    #[non_exhaustive]
    Extended {
        /// `expire_at - now`.
        remaining: Duration,
        /// The lease was revoked and was not extended.
        revoked: bool,
        /// Somebody waits for the key: `wanted_until > now`.
        wanted: bool,
        /// The count in the row: of a shared hold, how many call chains of the process are inside.
        count: u32,
        /// Time until the first hold of another process ends, if not all may enter that the request asked for.
        room_in: Option<Duration>,
    },
    /// `Release`: the lease is over.
    Released(Released),
    /// `Release`: the lease was the successor, and no longer is.
    Withdrawn,
    /// `Acquire`: another owner holds the lock.
    Busy(Holder),
    /// `Acquire`: another owner holds the lock, and the request's lease is the live successor.
    #[non_exhaustive]
    Queued {
        /// The holder. Its token tells this place as successor from earlier places of the same lease.
        holder: Holder,
        /// How long the lease will run once the row is passed on to it.
        next_ttl: Duration,
    },
    /// The row no longer names this lease, or the lease has expired.
    Lost,
    /// Somebody else's transaction has the row locked. Ask again soon.
    Skipped,
}

/// What a `Release` has done with the row of its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Released {
    /// Nothing: the lease was released before. A repeated request is answered so.
    Before,
    /// The row is free.
    Freed,
    /// The row is held by the successor.
    PassedOn,
}

/// For stores: the answers that have fields. What is not given is `false` or `None`, and the count is 1.
impl Outcome {
    /// [`Granted`](Self::Granted).
    pub fn granted(fence_token: i64, remaining: Duration) -> Self {
        Self::Granted {
            fence_token,
            remaining,
            taken_over: None,
            wanted: false,
            recorded: false,
        }
    }

    /// [`Extended`](Self::Extended).
    pub fn extended(remaining: Duration) -> Self {
        Self::Extended {
            remaining,
            revoked: false,
            wanted: false,
            count: 1,
            room_in: None,
        }
    }

    /// The same grant, with the holder of the lease that had expired.
    #[must_use]
    pub fn with_taken_over(mut self, former: Option<Holder>) -> Self {
        if let Self::Granted { taken_over, .. } = &mut self {
            *taken_over = former;
        }
        self
    }

    /// The same grant or extension, with whether somebody waits for the key.
    #[must_use]
    pub fn with_wanted(mut self, waits: bool) -> Self {
        if let Self::Granted { wanted, .. } | Self::Extended { wanted, .. } = &mut self {
            *wanted = waits;
        }
        self
    }

    /// The same extension, with whether the lease was revoked.
    #[must_use]
    pub fn with_revoked(mut self, is_revoked: bool) -> Self {
        if let Self::Extended { revoked, .. } = &mut self {
            *revoked = is_revoked;
        }
        self
    }

    /// The same extension, with the count in the row.
    #[must_use]
    pub fn with_count(mut self, in_row: u32) -> Self {
        if let Self::Extended { count, .. } = &mut self {
            *count = in_row;
        }
        self
    }

    /// The same extension, with the time until there may be room.
    #[must_use]
    pub fn with_room_in(mut self, time: Option<Duration>) -> Self {
        if let Self::Extended { room_in, .. } = &mut self {
            *room_in = time;
        }
        self
    }

    /// The same answer, with whether the change of the record was made if it is a grant.
    #[must_use]
    pub fn with_recorded(mut self, written: bool) -> Self {
        if let Self::Granted { recorded, .. } = &mut self {
            *recorded = written;
        }
        self
    }

    /// [`Queued`](Self::Queued) behind `holder`.
    pub fn queued(holder: Holder, next_ttl: Duration) -> Self {
        Self::Queued { holder, next_ttl }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_gets_the_fields_that_it_has() {
        let second = Duration::from_secs(1);
        let former = Some(Holder::new(Uuid::nil(), "h", 3, second));
        let all = |outcome: Outcome| {
            outcome
                .with_taken_over(former.clone())
                .with_wanted(true)
                .with_revoked(true)
                .with_count(3)
                .with_room_in(Some(second))
                .with_recorded(true)
        };
        let granted = Outcome::Granted {
            fence_token: 7,
            remaining: second,
            taken_over: former.clone(),
            wanted: true,
            recorded: true,
        };
        assert_eq!(all(Outcome::granted(7, second)), granted);
        let extended = Outcome::Extended {
            remaining: second,
            revoked: true,
            wanted: true,
            count: 3,
            room_in: Some(second),
        };
        assert_eq!(all(Outcome::extended(second)), extended);
        assert_eq!(all(Outcome::Lost), Outcome::Lost);
    }

    #[test]
    fn what_is_not_given_is_none() {
        let second = Duration::from_secs(1);
        let plain = Outcome::Granted {
            fence_token: 7,
            remaining: second,
            taken_over: None,
            wanted: false,
            recorded: false,
        };
        assert_eq!(Outcome::granted(7, second), plain);
        let plain = Outcome::Extended {
            remaining: second,
            revoked: false,
            wanted: false,
            count: 1,
            room_in: None,
        };
        assert_eq!(Outcome::extended(second), plain);
        let next = Some(Key::new(None, "k").unwrap());
        assert_eq!(Purged::new(3, next.clone()), Purged { rows: 3, next });
    }
}
