//! The rules of [`Store::apply`](crate::store::Store::apply) in plain Rust: the reference for the other stores.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::time::Duration;

use uuid::Uuid;

use crate::key::Key;
use crate::store::clock::{micros, until};
use crate::store::{Action, LockRow, Occupant, Outcome, Purged, Request, Successor};

#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) rows: BTreeMap<Key, LockRow>,
    /// The clock's last reading, so that it never falls, not even between runtimes.
    pub(super) now: i64,
}

impl Table {
    pub(super) fn apply(&mut self, request: &Request) -> Outcome {
        let Request {
            key,
            lease_id,
            action,
        } = request;
        match action {
            Action::Acquire {
                owner,
                ttl,
                holder,
                wanted_for,
                spare_tokens,
            } => {
                let grant = Grant {
                    lease_id: *lease_id,
                    owner: *owner,
                    ttl: *ttl,
                    holder,
                    spare_tokens: *spare_tokens,
                };
                self.acquire(key, &grant, *wanted_for)
            }
            Action::Extend {
                count,
                ttl,
                successor,
            } => self.extend(key, *lease_id, *count, *ttl, successor.as_ref()),
            Action::Release => self.release(key, *lease_id),
        }
    }

    fn acquire(&mut self, key: &Key, grant: &Grant<'_>, wanted_for: Option<Duration>) -> Outcome {
        let now = self.now;
        let row = match self.rows.entry(key.clone()) {
            Entry::Vacant(place) => {
                let row = place.insert(grant.first_row(key, now));
                return granted(row, now, None);
            }
            Entry::Occupied(place) => place.into_mut(),
        };
        let same = row.lease_id == grant.lease_id;
        match State::of(row, now) {
            // A repeated request, whose first reply was lost.
            State::Held if same => {
                row.reentrant_count = 1;
                granted(row, now, None)
            }
            // A late request of a lease that is over: it must not come to life again.
            State::Free | State::Expired if same => Outcome::Lost,
            State::Held => {
                if let Some(wanted_for) = wanted_for {
                    row.wanted_until = row.wanted_until.max(now.saturating_add(micros(wanted_for)));
                }
                Outcome::Busy(occupant(row, now))
            }
            State::Free => {
                grant.give(row, now);
                granted(row, now, None)
            }
            State::Expired => {
                let former = occupant(row, now);
                grant.give(row, now);
                granted(row, now, Some(former))
            }
        }
    }

    fn extend(
        &mut self,
        key: &Key,
        lease_id: Uuid,
        count: u32,
        ttl: Duration,
        successor: Option<&Successor>,
    ) -> Outcome {
        let now = self.now;
        let Some(row) = self.held(key).filter(|row| row.lease_id == lease_id) else {
            return Outcome::Lost;
        };
        row.reentrant_count = count;
        if let Some(successor) = successor {
            row.owner = successor.owner;
            row.holder = successor.holder.to_string();
            row.fence_token = successor.fence_token;
        }
        if !row.revoked {
            row.expire_at = row.expire_at.max(now.saturating_add(micros(ttl)));
        }
        Outcome::Extended {
            remaining: until(row.expire_at, now),
            revoked: row.revoked,
            wanted: row.wanted_until > now,
        }
    }

    fn release(&mut self, key: &Key, lease_id: Uuid) -> Outcome {
        let now = self.now;
        let Some(row) = self.rows.get_mut(key).filter(|row| row.lease_id == lease_id) else {
            return Outcome::Lost;
        };
        let freed = match State::of(row, now) {
            State::Held => true,
            State::Free => false,
            State::Expired => return Outcome::Lost,
        };
        row.reentrant_count = 0;
        Outcome::Released {
            freed,
            wanted: row.wanted_until > now,
        }
    }

    pub(super) fn purge(&mut self, idle: Duration, after: Option<&Key>, limit: u32) -> Purged {
        let before = self.now.saturating_sub(micros(idle));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let looked_at = self.rows.range((from, Bound::Unbounded)).take(limit);
        let looked_at: Vec<_> = looked_at
            .map(|(key, row)| {
                let last_used = row.expire_at.max(row.wanted_until).max(row.fence_ceiling);
                (key.clone(), last_used <= before)
            })
            .collect();
        let mut purged = Purged::default();
        for (key, _) in looked_at.iter().filter(|(_, idle)| *idle) {
            self.rows.remove(key);
            purged.rows += 1;
        }
        if looked_at.len() == limit {
            purged.next = looked_at.into_iter().next_back().map(|(key, _)| key);
        }
        purged
    }

    pub(super) fn held(&mut self, key: &Key) -> Option<&mut LockRow> {
        let now = self.now;
        self.rows
            .get_mut(key)
            .filter(|row| State::of(row, now) == State::Held)
    }
}

#[derive(PartialEq, Eq)]
enum State {
    Free,
    Held,
    Expired,
}

impl State {
    fn of(row: &LockRow, now: i64) -> Self {
        match row.reentrant_count {
            0 => Self::Free,
            _ if row.expire_at > now => Self::Held,
            _ => Self::Expired,
        }
    }
}

/// What an acquire writes into the row when it may have it.
struct Grant<'a> {
    lease_id: Uuid,
    owner: Uuid,
    ttl: Duration,
    holder: &'a str,
    spare_tokens: u32,
}

impl Grant<'_> {
    /// The row becomes held by this grant; `wanted_until` stays.
    fn give(&self, row: &mut LockRow, now: i64) {
        let fence_token = row.fence_ceiling.saturating_add(1).max(now);
        let wanted_until = row.wanted_until;
        *row = LockRow {
            fence_token,
            fence_ceiling: fence_token.saturating_add(self.spare_tokens.into()),
            wanted_until,
            ..self.first_row(&row.key, now)
        };
    }

    fn first_row(&self, key: &Key, now: i64) -> LockRow {
        LockRow {
            key: key.clone(),
            owner: self.owner,
            reentrant_count: 1,
            expire_at: now.saturating_add(micros(self.ttl)),
            lease_id: self.lease_id,
            fence_token: now.max(1),
            fence_ceiling: now.max(1).saturating_add(self.spare_tokens.into()),
            wanted_until: 0,
            acquired_at: now,
            holder: self.holder.to_owned(),
            revoked: false,
            now,
        }
    }
}

fn granted(row: &LockRow, now: i64, taken_over: Option<Occupant>) -> Outcome {
    Outcome::Granted {
        fence_token: row.fence_token,
        remaining: until(row.expire_at, now),
        taken_over,
        wanted: row.wanted_until > now,
    }
}

fn occupant(row: &LockRow, now: i64) -> Occupant {
    Occupant {
        owner: row.owner,
        holder: row.holder.clone(),
        fence_token: row.fence_token,
        remaining: until(row.expire_at, now),
    }
}
