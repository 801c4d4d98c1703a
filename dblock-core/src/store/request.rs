//! The requests of the engine to a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::record::RecordChange;
use super::row::LeaseEnd;
use crate::key::Key;

/// One request for one row.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The row.
    pub key: Key,
    /// The lease that is asked for, or that the request acts for. Every write after the grant is conditioned
    /// on it.
    pub lease_id: Uuid,
    /// The action.
    pub action: Action,
    /// The change of the key's record, in the same transaction. An `Acquire` makes it if the answer is
    /// `Granted`. A `Release` makes it if the row's `lease_id` is this lease, even an expired one. The fence
    /// token [`RecordEntry::OF_THE_LEASE`](super::RecordEntry::OF_THE_LEASE) stands for the token of that
    /// lease. An `Extend` has none, and neither has a request to a store that keeps no
    /// [`records`](super::Store::records).
    pub record: Option<Arc<RecordChange>>,
}

/// With the end of the lease only: that of a transfer may be the secret of a ticket.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("key", &self.key)
            .field("lease_id", &LeaseEnd(self.lease_id))
            .field("action", &self.action)
            .field("record", &self.record)
            .finish()
    }
}

impl Request {
    /// A request to carry out `action` on the row of `key` for `lease_id`.
    pub fn new(key: Key, lease_id: Uuid, action: Action) -> Self {
        Self {
            key,
            lease_id,
            action,
            record: None,
        }
    }

    /// The same request, which also changes the record of its key.
    #[must_use]
    pub fn with_record(mut self, change: impl Into<Arc<RecordChange>>) -> Self {
        self.record = Some(change.into());
        self
    }
}

/// A waiting lease replaces the successor if it has waited longer by this time. The time is short, so that
/// processes enter in about the order in which they came, however often each of them asks. It is not zero, so
/// that they do not keep replacing each other.
pub const QUEUE_AHEAD: Duration = Duration::from_millis(100);

/// The longest lease that a release passes on. The successor extends it to its whole ttl.
pub const NEXT_TTL: Duration = Duration::from_secs(3);

/// The action of a [`Request`]. [`Store::apply`](super::Store::apply) has the rules. A store answers an
/// action that it does not know with [`StoreErrorKind::Unsupported`](super::StoreErrorKind::Unsupported).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Take the lock for a fresh `lease_id`.
    Acquire(Acquire),
    /// Write the number of holds and extend the lease: renewal, re-entry, the end of a nested hold, and a
    /// local hand-over.
    Extend(Extend),
    /// End the lease: pass the row on to its successor, or free it.
    Release,
    /// End the lease, and give the row to another lease: into a ticket, or out of it.
    Transfer(Transfer),
}

/// The kinds of requests. Each has a lane of its own where the store takes that many calls at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[doc(hidden)]
pub enum Kind {
    Extend,
    Release,
    Acquire,
}

impl Kind {
    #[inline]
    pub fn of(action: &Action) -> Self {
        match action {
            Action::Extend(_) => Self::Extend,
            Action::Release | Action::Transfer(_) => Self::Release,
            Action::Acquire(_) => Self::Acquire,
        }
    }
}

/// The payload of [`Action::Acquire`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquire {
    /// The call chain that asks.
    pub owner: Uuid,
    /// Length of the lease.
    pub ttl: Duration,
    /// Host, process and function, for people. At most 255 bytes.
    pub holder: Arc<str>,
    /// For a busy key: how long the row says that somebody waits. `None` writes nothing.
    pub wanted_for: Option<Duration>,
    /// For a busy key: the lease becomes the successor for `wanted_for`. The value is how long the caller has
    /// waited so far. `None` asks for no place.
    pub queue: Option<Duration>,
    /// How many tokens to keep free above the lease's own, for local hand-overs.
    pub spare_tokens: u32,
    /// Asks for a shared hold: others may have one too, while fewer than this are inside. [`u32::MAX`] sets no
    /// limit. `None` asks for the lock alone. Only for a store that [shares](super::Capabilities::shares).
    pub limit: Option<u32>,
}

impl Acquire {
    /// An acquire that does not wait and keeps no tokens free.
    pub fn new(owner: Uuid, ttl: Duration, holder: impl Into<Arc<str>>) -> Self {
        Self {
            owner,
            ttl,
            holder: holder.into(),
            wanted_for: None,
            queue: None,
            spare_tokens: 0,
            limit: None,
        }
    }
}

/// The payload of [`Action::Transfer`]. The row goes to another lease, and is held all the time.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transfer {
    /// The fresh lease that gets the row.
    pub to: Uuid,
    /// The call chain that has the lock then.
    pub owner: Uuid,
    /// Length of the fresh lease.
    pub ttl: Duration,
    /// As in [`Acquire`].
    pub holder: Arc<str>,
}

impl Transfer {
    /// Passes the row on to the lease `to` of this owner.
    pub fn new(to: Uuid, owner: Uuid, ttl: Duration, holder: impl Into<Arc<str>>) -> Self {
        Self {
            to,
            owner,
            ttl,
            holder: holder.into(),
        }
    }
}

/// With the end of the lease only, which may be the secret of a ticket.
impl fmt::Debug for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("to", &LeaseEnd(self.to))
            .field("owner", &self.owner)
            .field("ttl", &self.ttl)
            .field("holder", &self.holder)
            .finish()
    }
}

/// The payload of [`Action::Extend`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extend {
    /// The number of holds. Absolute, so that a repeated request counts nothing twice. 0 after the last hold,
    /// when `hold_min` alone keeps the row busy. The row then stays held with a count of 1. Its end becomes
    /// now + `ttl`, even if that is sooner.
    pub count: u32,
    /// Length of the lease from now.
    pub ttl: Duration,
    /// The owner that the row is to name, if it names another one: the lease was handed over locally, or passed on to
    /// this process, since the row was last written.
    pub handed_over: Option<HandedOver>,
    /// The lease is a shared hold. Then `count` says how many call chains of the process are inside.
    pub share: Option<Share>,
}

impl Extend {
    /// An extension for the owner that the row names.
    pub fn new(count: u32, ttl: Duration) -> Self {
        Self {
            count,
            ttl,
            handed_over: None,
            share: None,
        }
    }
}

/// What an [`Extend`] says of a shared hold.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Share {
    /// Numbers the extensions of the lease. One whose number is not larger than that of the hold arrives late, or a second
    /// time, and changes nothing. 0 before the first caller has entered: while the hold's own number is 0, such a one counts.
    pub number: u64,
    /// Others want to enter. The count in the answer says how many may.
    pub enter: Option<Enter>,
}

impl Share {
    /// The extension with this number.
    pub fn new(number: u64, enter: Option<Enter>) -> Self {
        Self { number, enter }
    }
}

/// Call chains that want to enter a shared hold that their process has. They may if nobody waits who came earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enter {
    /// How many they are.
    pub count: u32,
    /// They enter while fewer than this are inside.
    pub limit: u32,
    /// How long the first of them has waited so far.
    pub waited: Duration,
    /// If not all of them may enter, because of other processes: how long the row says that somebody waits.
    pub wanted_for: Duration,
}

impl Enter {
    /// So many, with this limit, after this wait. The row does not say that they wait.
    pub fn new(count: u32, limit: u32, waited: Duration) -> Self {
        Self {
            count,
            limit,
            waited,
            wanted_for: Duration::ZERO,
        }
    }
}

/// The owner of a lease after a local hand-over.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandedOver {
    /// The call chain that has the lock now.
    pub owner: Uuid,
    /// As in [`Acquire`].
    pub holder: Arc<str>,
    /// Its token: one of those that the acquire kept free, or one above all of them. A store that [raises
    /// tokens](super::Capabilities::raises_tokens) then keeps as many tokens free above it as before.
    pub fence_token: i64,
}

impl HandedOver {
    /// A local hand-over to `owner`, with a token that the acquire kept free.
    pub fn new(owner: Uuid, holder: impl Into<Arc<str>>, fence_token: i64) -> Self {
        Self {
            owner,
            holder: holder.into(),
            fence_token,
        }
    }
}
