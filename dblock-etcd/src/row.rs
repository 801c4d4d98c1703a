//! The keys that are stored: a lock's row, and one that says that somebody waits. Each has an etcd lease.

use std::time::{Duration, SystemTime};

use dblock::store::clock::micros;
use dblock::store::{Acquire, Holder, StoreError, StoreErrorKind};
use dblock::{Key, LockRow};
use etcd_client::KeyValue;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The tokens of one grant: its own, and those that it may keep free. The engine asks for a million at most.
const TOKENS: i64 = 1 << 21;

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
    pub(crate) revoked: bool,
}

/// A row as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) row: Row,
    /// The etcd lease whose end deletes the key.
    pub(crate) lease: i64,
    pub(crate) mod_revision: i64,
    create_revision: i64,
}

impl Row {
    pub(crate) fn new(lease_id: Uuid, ask: &Acquire) -> Self {
        Self {
            owner: ask.owner,
            holder: ask.holder.to_string(),
            lease_id,
            holds: 1,
            handed_over: 0,
            spare_tokens: ask.spare_tokens,
            ttl: seconds(ask.ttl),
            acquired_at: now(),
            revoked: false,
        }
    }

    pub(crate) fn to_value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts, numbers and ids can be written as JSON")
    }
}

impl Stored {
    pub(crate) fn read(kv: &KeyValue) -> Result<Self, StoreError> {
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
            create_revision: kv.create_revision(),
        })
    }

    pub(crate) fn fence_token(&self) -> i64 {
        first_token(self.create_revision) + self.row.handed_over
    }

    /// Takes a local hand-over, unless a later one was written.
    pub(crate) fn hand_over(&mut self, to: &dblock::store::HandedOver) {
        if to.fence_token >= self.fence_token() {
            self.row.owner = to.owner;
            self.row.holder = to.holder.to_string();
            self.row.handed_over = to.fence_token - first_token(self.create_revision);
        }
    }

    pub(crate) fn told(&self) -> Holder {
        Holder::new(self.row.owner, self.row.holder.clone(), self.fence_token(), None)
    }

    /// The row for operators. `left` is what etcd says is left of the lease, in whole seconds.
    pub(crate) fn lock_row(&self, key: Key, left: i64, wanted_until: Option<i64>) -> LockRow {
        let now = now();
        let mut row = LockRow::new(key, now);
        row.owner = self.row.owner;
        row.reentrant_count = self.row.holds;
        row.lease_id = self.row.lease_id;
        row.fence_token = self.fence_token();
        row.fence_ceiling = first_token(self.create_revision) + i64::from(self.row.spare_tokens);
        row.acquired_at = self.row.acquired_at;
        row.holder.clone_from(&self.row.holder);
        row.revoked = self.row.revoked;
        // etcd still has the key, so it is held.
        row.expire_at = now + (left * 1_000_000).max(1);
        row.wanted_until = wanted_until.map_or(0, |until| until.max(now + 1));
        row
    }
}

/// The first token of a grant whose key was created at this revision. A key is deleted before it is created again, and
/// revisions grow with every change, so that this is above all that were given before, and above what those kept free.
pub(crate) fn first_token(create_revision: i64) -> i64 {
    create_revision.saturating_mul(TOKENS)
}

/// The revision at which the key of this token's grant was created. For a number that is no token it is 1, at which no key
/// was; 0 would be that of a key that is not there.
pub(crate) fn created_at(fence_token: i64) -> i64 {
    (fence_token / TOKENS).max(1)
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

/// The id of the longer etcd lease to which a grant moves.
pub(crate) fn longer_lease(lease_id: Uuid, ttl: i64) -> i64 {
    etcd_lease(lease_id) ^ (ttl << 24) ^ (1 << 62)
}

/// This process's clock, in µs since the Unix epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    micros(since.unwrap_or_default())
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
        let (first, next) = (first_token(7), first_token(8));
        let spare = u32::try_from(TOKENS - 1).unwrap();
        assert!(has_room_for(spare) && !has_room_for(spare + 1));
        assert_eq!(first + i64::from(spare) + 1, next);
        assert_eq!(
            (created_at(first), created_at(next - 1), created_at(next)),
            (7, 7, 8)
        );
    }

    #[test]
    fn lease_ids_are_positive_and_apart() {
        for _ in 0..100 {
            let id = Uuid::now_v7();
            let ids = [etcd_lease(id), longer_lease(id, 30), longer_lease(id, 60)];
            assert!(ids.iter().all(|id| *id > 0), "{ids:?}");
            assert!(
                ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2],
                "{ids:?}"
            );
        }
    }
}
