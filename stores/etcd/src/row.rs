//! The keys that are stored: a lock's row, and one that says that somebody waits. Each has an etcd lease.

use std::time::{Duration, SystemTime};

use dblock_core::store::clock::{Timestamp, length};
use dblock_core::store::{Acquire, Holder, StoreError, StoreErrorKind, Successor, Transfer};
use dblock_core::{Key, LockRow};
use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::keys::Slot;

/// The tokens of one grant: its own, and those that it may keep free. The engine asks for a million at most.
const TOKENS: i64 = 1 << 21;

/// The tokens of one revision: those of a grant in either slot.
const TOKENS_OF_BOTH: i64 = 2 * TOKENS;

const MICRO: Duration = Duration::from_micros(1);

/// The value of a lock's key, in JSON, so that `etcdctl` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) owner: Uuid,
    pub(crate) holder: String,
    pub(crate) lease_id: Uuid,
    pub(crate) holds: u32,
    /// How far local hand-overs have gone above the token of the grant.
    pub(crate) handed_over: i64,
    pub(crate) spare_tokens: u32,
    /// The length of the etcd lease in seconds.
    pub(crate) ttl: i64,
    /// By the clock of the process that was granted the lock, in µs since the Unix epoch; for people.
    pub(crate) acquired_at: i64,
    /// It was written as a place, and nothing else has been written since.
    #[serde(default)]
    pub(crate) queued: bool,
    pub(crate) revoked: bool,
}

/// A row as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) row: Row,
    /// The etcd lease whose end deletes the key.
    pub(crate) lease: i64,
    pub(crate) mod_revision: i64,
    pub(crate) slot: Slot,
    pub(crate) create_revision: i64,
}

impl Row {
    /// For an etcd lease of this length. `queued`: as a place.
    pub(crate) fn new(lease_id: Uuid, ask: &Acquire, ttl: Duration, queued: bool) -> Self {
        Self {
            owner: ask.owner,
            holder: ask.holder.to_string(),
            lease_id,
            holds: 1,
            handed_over: 0,
            spare_tokens: ask.spare_tokens,
            ttl: seconds(ttl),
            acquired_at: now(),
            queued,
            revoked: false,
        }
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts, numbers and ids can be written as JSON")
    }
}

impl Stored {
    pub(crate) fn read(kv: &KeyValue, slot: Slot) -> Result<Self, StoreError> {
        let row = serde_json::from_slice(kv.value()).map_err(|error| {
            let message = format!(
                "the value of {:?} is no row of dblock: move what it is elsewhere, or give dblock another prefix ({error})",
                kv.key_str().unwrap_or("a key that is no text")
            );
            StoreError::new(StoreErrorKind::Schema, message)
        })?;
        Ok(Self {
            row,
            lease: kv.lease(),
            mod_revision: kv.mod_revision(),
            slot,
            create_revision: kv.create_revision(),
        })
    }

    pub(crate) fn fence_token(&self) -> i64 {
        self.first_token() + self.row.handed_over
    }

    fn first_token(&self) -> i64 {
        first_token(self.create_revision, self.slot)
    }

    /// Writes that the lock was passed on to this row.
    pub(crate) fn arrive(&mut self) {
        if std::mem::take(&mut self.row.queued) {
            self.row.acquired_at = now();
        }
    }

    /// Takes a local hand-over, unless a later one was written.
    pub(crate) fn hand_over(&mut self, to: &dblock_core::store::HandedOver) {
        if to.fence_token >= self.fence_token() {
            self.row.owner = to.owner;
            self.row.holder = to.holder.to_string();
            self.row.handed_over = to.fence_token - self.first_token();
        }
    }

    /// Gives the row to another lease, with a token above all that the present one may have given.
    pub(crate) fn transfer(&mut self, to: &Transfer) -> Result<(), StoreError> {
        let token = self.row.handed_over.max(self.row.spare_tokens.into()) + 1;
        let Ok(spare_tokens) = u32::try_from(token) else {
            return Err(no_tokens());
        };
        if token >= TOKENS {
            return Err(no_tokens());
        }
        self.arrive();
        self.row.owner = to.owner;
        self.row.holder = to.holder.to_string();
        self.row.lease_id = to.to;
        self.row.holds = 1;
        self.row.handed_over = token;
        // The ceiling, which counts from the token of the grant.
        self.row.spare_tokens = spare_tokens;
        self.row.ttl = seconds(to.ttl);
        self.row.acquired_at = now();
        Ok(())
    }

    pub(crate) fn told(&self) -> Holder {
        Holder::new(self.row.owner, self.row.holder.clone(), self.fence_token(), None)
    }

    /// The row for operators, with its successor. `left` is what etcd says is left of a lease, in whole
    /// seconds.
    pub(crate) fn lock_row(
        &self,
        key: Key,
        left: i64,
        wanted_until: Option<i64>,
        next: Option<(&Self, i64)>,
    ) -> LockRow {
        let now = Timestamp::from_micros(now());
        let lasts = |left: i64| length(left * 1_000_000).max(MICRO);
        let mut row = LockRow::new(key, now);
        row.owner = self.row.owner;
        row.reentrant_count = self.row.holds;
        row.lease_id = self.row.lease_id;
        row.fence_token = self.fence_token();
        row.fence_ceiling = self.first_token() + i64::from(self.row.spare_tokens);
        // When it was passed on nobody has written yet.
        row.acquired_at = if self.row.queued {
            now
        } else {
            Timestamp::from_micros(self.row.acquired_at)
        };
        row.holder.clone_from(&self.row.holder);
        row.revoked = self.row.revoked;
        // etcd still has the key, so it is held.
        row.expire_at = now + lasts(left);
        row.wanted_until = wanted_until.map_or(Timestamp::EPOCH, |until| {
            Timestamp::from_micros(until).max(now + MICRO)
        });
        if let Some((Self { row: next, .. }, left)) = next {
            let until = now + lasts(left);
            row.wanted_until = row.wanted_until.max(until);
            row.next = Some(Successor {
                lease_id: next.lease_id,
                owner: next.owner,
                holder: next.holder.clone(),
                ttl: length(next.ttl * 1_000_000),
                spare_tokens: next.spare_tokens,
                since: Timestamp::from_micros(next.acquired_at),
                until,
                limit: None,
            });
        }
        row
    }
}

/// The first token of a grant whose key was created at this revision. A key is deleted before it is created
/// again, and revisions grow with every change, so that this is above all that were given before, and above
/// what those kept free.
pub(crate) fn first_token(create_revision: i64, slot: Slot) -> i64 {
    let first = create_revision.saturating_mul(TOKENS_OF_BOTH);
    match slot {
        Slot::First => first,
        Slot::Second => first.saturating_add(TOKENS),
    }
}

/// The slot of this token's grant, and the revision at which its key was created. For a number that is no
/// token it is 1, at which no key was; 0 would be that of a key that is not there.
pub(crate) fn created_at(fence_token: i64) -> (Slot, i64) {
    let slot = if fence_token % TOKENS_OF_BOTH < TOKENS {
        Slot::First
    } else {
        Slot::Second
    };
    (slot, (fence_token / TOKENS_OF_BOTH).max(1))
}

/// Whether a grant may keep so many tokens free.
pub(crate) fn has_room_for(spare_tokens: u32) -> bool {
    i64::from(spare_tokens) < TOKENS
}

/// The length of a lease in etcd: whole seconds, and no less than was asked for.
pub(crate) fn seconds(ttl: Duration) -> i64 {
    let whole = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
    i64::try_from(whole).unwrap_or(i64::MAX).max(SHORTEST_TTL)
}

/// etcd makes every lease at least this long, in seconds, with its default election timeout of a second.
pub(crate) const SHORTEST_TTL: i64 = 2;

/// The id of the etcd lease that a grant begins with. The same for a request that is sent again.
pub(crate) fn etcd_lease(lease_id: Uuid) -> i64 {
    let (_, low) = lease_id.as_u64_pair();
    // Without the bits of the variant. The other 62 are random.
    i64::try_from(low & (u64::MAX >> 2)).unwrap_or(i64::MAX).max(1)
}

/// The id of the etcd lease of a place as successor. It is short, and that of a grant is not.
pub(crate) fn place_lease(lease_id: Uuid) -> i64 {
    etcd_lease(lease_id) ^ (1 << 61)
}

fn no_tokens() -> StoreError {
    let message =
        "the lock was handed on so often that its fence tokens are used up: release it, and take it again";
    StoreError::new(StoreErrorKind::Refused, message)
}

/// The id of the longer etcd lease to which a grant moves.
pub(crate) fn longer_lease(lease_id: Uuid, ttl: i64) -> i64 {
    etcd_lease(lease_id) ^ (ttl << 24) ^ (1 << 62)
}

/// This process's clock, in µs since the Unix epoch.
pub(crate) fn now() -> i64 {
    Timestamp::from(SystemTime::now()).as_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up() {
        let lengths = [60, 2_000, 2_001, 2_999, 30_000].map(|ms| seconds(Duration::from_millis(ms)));
        assert_eq!(lengths, [2, 2, 3, 3, 30]);
    }

    #[test]
    fn tokens_and_the_spare_ones_stay_below_those_of_the_next_grant() {
        let tokens = [(7, Slot::First), (7, Slot::Second), (8, Slot::First)];
        let [one, two, three] = tokens.map(|(revision, slot)| first_token(revision, slot));
        let spare = u32::try_from(TOKENS - 1).unwrap();
        assert!(has_room_for(spare) && !has_room_for(spare + 1));
        assert_eq!([one, two].map(|first| first + i64::from(spare) + 1), [two, three]);
        for (first, (revision, slot)) in [one, two, three].into_iter().zip(tokens) {
            assert_eq!(created_at(first), (slot, revision));
            assert_eq!(created_at(first + i64::from(spare)), (slot, revision));
        }
    }

    #[test]
    fn lease_ids_are_positive_and_apart() {
        for _ in 0..100 {
            let id = Uuid::now_v7();
            let ids = [
                etcd_lease(id),
                place_lease(id),
                longer_lease(id, 30),
                longer_lease(id, 60),
            ];
            assert!(ids.iter().all(|id| *id > 0), "{ids:?}");
            let apart = std::collections::HashSet::from(ids);
            assert_eq!(apart.len(), ids.len(), "{ids:?}");
        }
    }
}
