//! Rows as people and error messages see them.

use std::time::Duration;

use uuid::Uuid;

use super::clock::Timestamp;
use crate::key::Key;

/// The holder of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The call chain that holds it.
    pub owner: Uuid,
    /// Its host, process and function, for people.
    pub name: String,
    /// Its token.
    pub fence_token: i64,
    /// How long its lease still runs. The lock may stay busy for longer, because the lease may be renewed.
    /// Zero when the lease has expired. `None` when the store cannot tell: see
    /// [`Capabilities::clock`](crate::store::Capabilities::clock).
    pub remaining: Option<Duration>,
}

impl Holder {
    /// For stores: a holder with all its fields.
    pub fn new(
        owner: Uuid,
        name: impl Into<String>,
        fence_token: i64,
        remaining: impl Into<Option<Duration>>,
    ) -> Self {
        Self {
            owner,
            name: name.into(),
            fence_token,
            remaining: remaining.into(),
        }
    }
}

/// A row of the lock table. Times are those of the store's clock. A store [without a
/// clock](crate::store::Capabilities::clock) takes them from the clocks of the processes that wrote and read
/// the row, and estimates `expire_at`. Such times are for people only.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockRow {
    /// The key. A manager gives it as it was typed, and a store with the manager's namespace.
    pub key: Key,
    /// The call chain that holds or last held it.
    pub owner: Uuid,
    /// How many holds the owner has; 0 is free.
    pub reentrant_count: u32,
    /// When the lease ends.
    pub expire_at: Timestamp,
    /// The lease that holds or last held it.
    pub lease_id: Uuid,
    /// The last token given.
    pub fence_token: i64,
    /// The largest token that any owner may have been given.
    pub fence_ceiling: i64,
    /// Until this time somebody waits for the key; [`Timestamp::EPOCH`] when nobody has waited.
    pub wanted_until: Timestamp,
    /// When the lease was granted.
    pub acquired_at: Timestamp,
    /// Host, process and function that hold or last held it.
    pub holder: String,
    /// An operator has revoked the lease.
    pub revoked: bool,
    /// The lease that the release passes the row on to, if it is still live by then.
    pub next: Option<Successor>,
    /// The clock when the row was read.
    pub now: Timestamp,
}

/// The lease of another process that a row names as next. It means nothing when the row is free or expired,
/// or when `until` has passed.
///
/// A store writes and reads all of it. So a store that would drop a new field of a later version does not
/// compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// The lease.
    pub lease_id: Uuid,
    /// The call chain that waits.
    pub owner: Uuid,
    /// Its host, process and function.
    pub holder: String,
    /// How long the lease will run once the row is passed on to it.
    pub ttl: Duration,
    /// How many tokens to keep free above the lease's own.
    pub spare_tokens: u32,
    /// Since when it waits.
    pub since: Timestamp,
    /// Until when it is live.
    pub until: Timestamp,
}

impl LockRow {
    /// For stores: the row to use for a key that has none, on a clock that reads `now`. It is free, with no
    /// lease, and no token given yet. A store that has a row sets the other columns.
    pub fn new(key: Key, now: Timestamp) -> Self {
        Self {
            key,
            owner: Uuid::nil(),
            reentrant_count: 0,
            expire_at: Timestamp::EPOCH,
            lease_id: Uuid::nil(),
            fence_token: 0,
            fence_ceiling: 0,
            wanted_until: Timestamp::EPOCH,
            acquired_at: Timestamp::EPOCH,
            holder: String::new(),
            revoked: false,
            next: None,
            now,
        }
    }

    /// An owner holds the lock: the count is above 0 and the lease has not expired.
    pub fn is_held(&self) -> bool {
        self.reentrant_count > 0 && self.expire_at > self.now
    }

    /// An owner holds the lock and somebody waits for it.
    pub fn is_wanted(&self) -> bool {
        self.is_held() && (self.wanted_until > self.now || self.live_successor().is_some())
    }

    /// The owner that gets the lock when the present one releases it; `None` if nobody is next.
    pub fn live_successor(&self) -> Option<&Successor> {
        self.next
            .as_ref()
            .filter(|next| self.is_held() && next.until > self.now)
    }
}
