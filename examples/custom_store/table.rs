//! The rows, by key, as they stand in the file.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use dblock::store::clock::{Timestamp, length, micros};
use dblock::store::{Outcome, Purged, Request, StoreError, Successor, rules};
use dblock::{InspectFilter, Key, LockRow};
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
#[derive(Debug, Serialize, Deserialize)]
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
    next: Option<Next>,
}

/// The lease that gets the row when it is released.
#[derive(Debug, Serialize, Deserialize)]
struct Next {
    lease_id: u128,
    owner: u128,
    holder: String,
    ttl: i64,
    spare_tokens: u32,
    since: i64,
    until: i64,
}

impl Table {
    /// Sets the clock. It never falls, even when the host's does: a lease must not get longer by that.
    pub(super) fn tick(&mut self, wall_clock: i64) {
        self.now = self.now.max(wall_clock);
    }

    /// Nobody else has the table meanwhile, so the rules decide on the row itself.
    pub(super) fn apply(&mut self, request: &Request) -> Result<Outcome, StoreError> {
        let key = &request.key;
        let mut row = match self.rows.get(key.as_str()) {
            Some(row) => row.read(key.clone(), self.now),
            None => LockRow::new(key.clone(), Timestamp::from_micros(self.now)),
        };
        let carried_out = rules::carry_out(request, &mut row)?;
        if carried_out.changed {
            self.rows.insert(key.as_str().to_owned(), Row::of(row));
        }
        Ok(carried_out.outcome)
    }

    pub(super) fn revoke(&mut self, key: &Key) -> bool {
        self.held(key).map(|row| row.revoked = true).is_some()
    }

    pub(super) fn force_release(&mut self, key: &Key) -> bool {
        let Some(row) = self.held(key) else { return false };
        row.count = 0;
        row.next = None;
        // Requests that the former holder still sends find nothing.
        row.lease_id = Uuid::now_v7().as_u128();
        true
    }

    fn held(&mut self, key: &Key) -> Option<&mut Row> {
        let now = self.now;
        let row = self.rows.get_mut(key.as_str());
        row.filter(|row| row.count > 0 && row.expire_at > now)
    }

    pub(super) fn inspect(&self, filter: &InspectFilter) -> Vec<LockRow> {
        let rows = self.rows.iter();
        filter.select(rows.filter_map(|(key, row)| Some(row.read(Key::new(None, key).ok()?, self.now))))
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
        let last = looked_at.last().filter(|_| looked_at.len() == limit);
        let next = last.and_then(|key| Key::new(None, key).ok());
        Purged::new((before - self.rows.len()) as u64, next)
    }
}

impl Row {
    fn read(&self, key: Key, now: i64) -> LockRow {
        let mut row = LockRow::new(key, Timestamp::from_micros(now));
        row.owner = Uuid::from_u128(self.owner);
        row.reentrant_count = self.count;
        row.expire_at = Timestamp::from_micros(self.expire_at);
        row.lease_id = Uuid::from_u128(self.lease_id);
        row.fence_token = self.fence_token;
        row.fence_ceiling = self.fence_ceiling;
        row.wanted_until = Timestamp::from_micros(self.wanted_until);
        row.acquired_at = Timestamp::from_micros(self.acquired_at);
        row.holder.clone_from(&self.holder);
        row.revoked = self.revoked;
        row.next = self.next.as_ref().map(Next::read);
        row
    }

    fn of(row: LockRow) -> Self {
        Self {
            owner: row.owner.as_u128(),
            count: row.reentrant_count,
            expire_at: row.expire_at.as_micros(),
            lease_id: row.lease_id.as_u128(),
            fence_token: row.fence_token,
            fence_ceiling: row.fence_ceiling,
            wanted_until: row.wanted_until.as_micros(),
            acquired_at: row.acquired_at.as_micros(),
            holder: row.holder,
            revoked: row.revoked,
            next: row.next.map(Next::of),
        }
    }
}

impl Next {
    fn read(&self) -> Successor {
        Successor {
            lease_id: Uuid::from_u128(self.lease_id),
            owner: Uuid::from_u128(self.owner),
            holder: self.holder.clone(),
            ttl: length(self.ttl),
            spare_tokens: self.spare_tokens,
            since: Timestamp::from_micros(self.since),
            until: Timestamp::from_micros(self.until),
            limit: None,
        }
    }

    fn of(next: Successor) -> Self {
        Self {
            lease_id: next.lease_id.as_u128(),
            owner: next.owner.as_u128(),
            holder: next.holder,
            ttl: micros(next.ttl),
            spare_tokens: next.spare_tokens,
            since: next.since.as_micros(),
            until: next.until.as_micros(),
        }
    }
}
