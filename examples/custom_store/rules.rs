//! The rules of [`Store::apply`](dblock::store::Store::apply), on rows in a map.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use dblock::Key;
use dblock::store::{Action, InspectFilter, LockRow, Occupant, Outcome, Purged, Request};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// All rows, by key. A `String` is ordered by its bytes, as `inspect` and `purge` want it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Table {
    rows: BTreeMap<String, Row>,
    /// The clock's last reading, in µs since the Unix epoch.
    now: i64,
}

/// A row. Times are µs on the table's clock, ids are numbers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Row {
    owner: u128,
    count: u32,
    expire_at: i64,
    lease_id: u128,
    fence_token: i64,
    fence_ceiling: i64,
    wanted_until: i64,
    acquired_at: i64,
    holder: String,
    revoked: bool,
}

impl Row {
    fn is_held(&self, now: i64) -> bool {
        self.count > 0 && self.expire_at > now
    }

    fn is_wanted(&self, now: i64) -> bool {
        self.wanted_until > now
    }

    fn remaining(&self, now: i64) -> Duration {
        Duration::from_micros(u64::try_from(self.expire_at - now).unwrap_or(0))
    }

    fn occupant(&self, now: i64) -> Occupant {
        Occupant {
            owner: Uuid::from_u128(self.owner),
            holder: self.holder.clone(),
            fence_token: self.fence_token,
            remaining: self.remaining(now),
        }
    }

    fn granted(&self, taken_over: Option<Occupant>, now: i64) -> Outcome {
        Outcome::Granted {
            fence_token: self.fence_token,
            remaining: self.remaining(now),
            taken_over,
            wanted: self.is_wanted(now),
        }
    }
}

impl Table {
    /// Sets the clock. It never falls, even when the host's does: a lease must not get longer by that.
    pub(super) fn tick(&mut self, wall_clock: i64) {
        self.now = self.now.max(wall_clock);
    }

    pub(super) fn apply(&mut self, request: &Request) -> Outcome {
        match &request.action {
            Action::Acquire { .. } => self.acquire(request),
            Action::Extend { .. } => self.extend(request),
            Action::Release => self.release(request),
        }
    }

    fn acquire(&mut self, request: &Request) -> Outcome {
        let Action::Acquire {
            owner,
            ttl,
            holder,
            wanted_for,
            spare_tokens,
            reserve: _,
        } = &request.action
        else {
            return Outcome::Lost;
        };
        let now = self.now;
        let lease_id = request.lease_id.as_u128();
        // A row that was never there is a free one that no lease has had.
        let row = self.rows.entry(request.key.as_str().to_owned()).or_default();
        if row.lease_id == lease_id {
            if !row.is_held(now) {
                // The lease is over before its grant was known. It must not come to life again.
                return Outcome::Lost;
            }
            // The reply was lost. The same grant once more.
            row.count = 1;
            return row.granted(None, now);
        }
        if row.is_held(now) {
            if let Some(wanted_for) = wanted_for {
                row.wanted_until = row.wanted_until.max(now + micros(*wanted_for));
            }
            return Outcome::Busy(row.occupant(now));
        }
        let former = (row.count > 0).then(|| row.occupant(now));
        let fence_token = (row.fence_ceiling + 1).max(now);
        *row = Row {
            owner: owner.as_u128(),
            count: 1,
            expire_at: now + micros(*ttl),
            lease_id,
            fence_token,
            fence_ceiling: fence_token + i64::from(*spare_tokens),
            wanted_until: row.wanted_until,
            acquired_at: now,
            holder: holder.to_string(),
            revoked: false,
        };
        row.granted(former, now)
    }

    fn extend(&mut self, request: &Request) -> Outcome {
        let Action::Extend {
            count,
            ttl,
            successor,
        } = &request.action
        else {
            return Outcome::Lost;
        };
        let now = self.now;
        let lease_id = request.lease_id.as_u128();
        let held = self.held(&request.key).filter(|row| row.lease_id == lease_id);
        let Some(row) = held else { return Outcome::Lost };
        row.count = *count;
        // One that was given up may be carried out late: it must not name a former owner again.
        if let Some(successor) = successor
            && successor.fence_token >= row.fence_token
        {
            row.owner = successor.owner.as_u128();
            row.holder = successor.holder.to_string();
            row.fence_token = successor.fence_token;
        }
        if !row.revoked {
            row.expire_at = row.expire_at.max(now + micros(*ttl));
        }
        Outcome::Extended {
            remaining: row.remaining(now),
            revoked: row.revoked,
            wanted: row.is_wanted(now),
        }
    }

    fn release(&mut self, request: &Request) -> Outcome {
        let now = self.now;
        let lease_id = request.lease_id.as_u128();
        let row = self.rows.get_mut(request.key.as_str());
        let Some(row) = row.filter(|row| row.lease_id == lease_id) else {
            return Outcome::Lost;
        };
        let freed = row.is_held(now);
        if row.count > 0 && !freed {
            // It has expired: whoever held it has lost it already.
            return Outcome::Lost;
        }
        row.count = 0;
        Outcome::Released {
            freed,
            wanted: row.is_wanted(now),
        }
    }

    pub(super) fn revoke(&mut self, key: &Key) -> bool {
        self.held(key).map(|row| row.revoked = true).is_some()
    }

    pub(super) fn force_release(&mut self, key: &Key) -> bool {
        let Some(row) = self.held(key) else { return false };
        row.count = 0;
        // What the former holder still sends finds nothing.
        row.lease_id = Uuid::now_v7().as_u128();
        true
    }

    fn held(&mut self, key: &Key) -> Option<&mut Row> {
        let now = self.now;
        self.rows.get_mut(key.as_str()).filter(|row| row.is_held(now))
    }

    pub(super) fn inspect(&self, filter: &InspectFilter) -> Vec<LockRow> {
        self.rows
            .iter()
            .filter(|(key, _)| key.starts_with(filter.key_prefix()))
            .filter(|(_, row)| row.is_held(self.now) || !filter.is_held_only())
            .take(usize::try_from(filter.max_rows()).unwrap_or(usize::MAX))
            .filter_map(|(key, row)| {
                Some(LockRow {
                    key: Key::new(None, key).ok()?,
                    owner: Uuid::from_u128(row.owner),
                    reentrant_count: row.count,
                    expire_at: row.expire_at,
                    lease_id: Uuid::from_u128(row.lease_id),
                    fence_token: row.fence_token,
                    fence_ceiling: row.fence_ceiling,
                    wanted_until: row.wanted_until,
                    acquired_at: row.acquired_at,
                    holder: row.holder.clone(),
                    revoked: row.revoked,
                    reserved: None,
                    now: self.now,
                })
            })
            .collect()
    }

    /// Takes the rows away whose every time lies `idle` or more in the past.
    pub(super) fn purge(&mut self, idle: Duration, after: Option<&Key>, limit: u32) -> Purged {
        let oldest = self.now - micros(idle);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let from = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_str()));
        let looked_at: Vec<String> = self
            .rows
            .range::<str, _>((from, Bound::Unbounded))
            .take(limit)
            .map(|(key, _)| key.clone())
            .collect();
        let before = self.rows.len();
        for key in &looked_at {
            let used = |row: &Row| row.expire_at.max(row.wanted_until).max(row.fence_ceiling);
            if self.rows.get(key).is_some_and(|row| used(row) <= oldest) {
                self.rows.remove(key);
            }
        }
        Purged {
            rows: (before - self.rows.len()) as u64,
            next: looked_at
                .last()
                .filter(|_| looked_at.len() == limit)
                .and_then(|key| Key::new(None, key).ok()),
        }
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
