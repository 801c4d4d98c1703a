//! A *take*: a transaction of a caller's writes the row of a free key. The row is locked until the transaction
//! ends. Its commit leaves a free row, whose last owner was the caller, and its rollback leaves what was there.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::store::LockRow;
use crate::store::clock::length;

/// What a take writes.
#[derive(Debug, Clone)]
pub struct Take {
    /// A fresh lease.
    pub lease_id: Uuid,
    /// The call chain that takes the key.
    pub owner: Uuid,
    /// Its host, process and function.
    pub holder: Arc<str>,
    /// What the transaction's other statements see.
    pub sees: Sees,
}

/// What the statements of a transaction see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sees {
    /// Each sees what was committed before it.
    Newest,
    /// All see what the first one saw.
    FirstSeen,
}

/// What a take has done. `T` is what is known of a key that was taken: here the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took<T = i64> {
    /// The transaction has locked the row and written it.
    Taken(T),
    /// There is no row, or a read of it would lock it. Nothing is locked.
    Absent,
    /// The row names an owner, and nothing is locked. An expired owner counts too. Its expiry wrote nothing,
    /// so the transaction cannot notice an old snapshot.
    Held,
    /// The clock has not passed the row's ceiling, and does so after this time. Nothing is locked.
    Ahead(Duration),
    /// Somebody else has the row locked.
    Skipped,
    /// The transaction has locked the row and found it changed, so it wrote nothing. The transaction must end
    /// now, because the holder's requests find the row locked.
    Locked,
}

impl<T> Took<T> {
    /// For how long no other try is of use.
    pub fn ahead(&self) -> Duration {
        match self {
            Self::Ahead(ahead) => *ahead,
            _ => Duration::ZERO,
        }
    }

    /// The same with something else that is known of a key that was taken.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Took<U> {
        match self {
            Self::Taken(known) => Took::Taken(change(known)),
            Self::Absent => Took::Absent,
            Self::Held => Took::Held,
            Self::Ahead(ahead) => Took::Ahead(ahead),
            Self::Skipped => Took::Skipped,
            Self::Locked => Took::Locked,
        }
    }
}

/// Takes a key. `seen` is its row as a read without a lock shows it, in the transaction's snapshot. `lock`
/// locks the committed row, reads it, and then reads the clock. It returns `None` if others have the row
/// locked. Where it is not called, nothing is locked.
///
/// [`Store::apply`](crate::store::Store::apply) has the rules of all other writes.
pub fn take<'r>(ask: &Take, seen: Option<&LockRow>, lock: impl FnOnce() -> Option<&'r mut LockRow>) -> Took {
    let Some(seen) = seen else {
        return Took::Absent;
    };
    if seen.reentrant_count > 0 {
        return Took::Held;
    }
    if let Some(ahead) = ahead(seen) {
        return Took::Ahead(ahead);
    }
    let Some(row) = lock() else {
        return Took::Skipped;
    };
    // Equal tokens alone prove nothing: a clock that was set back gives one twice.
    let same = (row.lease_id, row.fence_token) == (seen.lease_id, seen.fence_token);
    let stale = ask.sees == Sees::FirstSeen && !same;
    if stale || row.reentrant_count > 0 || ahead(row).is_some() {
        return Took::Locked;
    }
    let fence_token = row.now.as_micros();
    row.lease_id = ask.lease_id;
    row.owner = ask.owner;
    ask.holder.as_ref().clone_into(&mut row.holder);
    row.fence_token = fence_token;
    row.fence_ceiling = fence_token;
    row.acquired_at = row.now;
    row.expire_at = row.now;
    row.revoked = false;
    row.next = None;
    Took::Taken(fence_token)
}

/// How long until the clock passes the row's ceiling. `None` if it has.
fn ahead(row: &LockRow) -> Option<Duration> {
    let (ceiling, now) = (row.fence_ceiling, row.now.as_micros());
    (ceiling >= now).then(|| length(ceiling.saturating_sub(now).saturating_add(1)))
}
