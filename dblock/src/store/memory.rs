//! Rows in the memory of this process, for unit tests and for programs of a single process.
//!
//! This is also the reference for the rules of [`Store::apply`]: each function below is one action of that
//! table, in plain Rust.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use uuid::Uuid;

use super::clock::{micros, until};
use super::{
    Action, Capabilities, InspectFilter, LockRow, Occupant, Outcome, Request, Store, StoreError, StoreFuture,
};
use crate::key::Key;

/// Rows in the memory of this process.
///
/// Clones share the rows: two managers over two clones exclude each other like two processes over one
/// database. Its clock follows tokio's, so a test with paused time moves it.
///
/// ```
/// let store = dblock::store::memory::MemoryStore::new();
/// let same_rows = store.clone();
/// ```
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The wall clock when the store was made, in µs, and tokio's clock at the same instant.
    origin: (i64, Instant),
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    rows: BTreeMap<Key, LockRow>,
    /// The clock's last reading, so that it never falls, not even between runtimes.
    now: i64,
}

impl MemoryStore {
    /// A store with no rows.
    pub fn new() -> Self {
        let wall = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        let origin = (micros(wall), Instant::now());
        Self {
            shared: Arc::new(Shared {
                origin,
                table: Mutex::default(),
            }),
        }
    }

    /// The table, with its clock set to this instant. The guard must not live across an await.
    fn table(&self) -> MutexGuard<'_, Table> {
        let (wall, instant) = self.shared.origin;
        // A panic inside the lock leaves a whole row behind, so the table is still good.
        let mut table = self.shared.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.now = table.now.max(wall.saturating_add(micros(instant.elapsed())));
        table
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            callers_runtime: true,
            concurrency: 3,
            ..Capabilities::new("memory")
        }
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let mut table = self.table();
            requests.iter().map(|request| Ok(table.apply(request))).collect()
        })
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(async move {
            let table = self.table();
            let rows = table.rows.values().map(|row| LockRow {
                now: table.now,
                ..row.clone()
            });
            Ok(rows
                .filter(|row| row.key.as_str().starts_with(filter.key_prefix()))
                .filter(|row| row.is_held() || !filter.is_held_only())
                .take(usize::try_from(filter.max_rows()).unwrap_or(usize::MAX))
                .collect())
        })
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut table = self.table();
            let held = table.held(key);
            Ok(held.map(|row| row.revoked = true).is_some())
        })
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut table = self.table();
            let Some(row) = table.held(key) else {
                return Ok(false);
            };
            row.reentrant_count = 0;
            row.lease_id = Uuid::now_v7();
            Ok(true)
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {})
    }
}

impl Table {
    fn apply(&mut self, request: &Request) -> Outcome {
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
            } => {
                let grant = Grant {
                    lease_id: *lease_id,
                    owner: *owner,
                    ttl: *ttl,
                    holder,
                };
                self.acquire(key, &grant, *wanted_for)
            }
            Action::Extend { count, ttl } => self.extend(key, *lease_id, *count, *ttl),
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

    fn extend(&mut self, key: &Key, lease_id: Uuid, count: u32, ttl: Duration) -> Outcome {
        let now = self.now;
        let Some(row) = self.held(key).filter(|row| row.lease_id == lease_id) else {
            return Outcome::Lost;
        };
        row.reentrant_count = count;
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

    fn held(&mut self, key: &Key) -> Option<&mut LockRow> {
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
}

impl Grant<'_> {
    /// The row becomes held by this grant; `wanted_until` stays.
    fn give(&self, row: &mut LockRow, now: i64) {
        let fence_token = row.fence_ceiling.saturating_add(1).max(now);
        let wanted_until = row.wanted_until;
        *row = LockRow {
            fence_token,
            fence_ceiling: fence_token,
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
            fence_ceiling: now.max(1),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(lease_id: Uuid, action: Action) -> Request {
        Request {
            key: Key::new(None, "k").unwrap(),
            lease_id,
            action,
        }
    }

    fn acquire(ttl: Duration) -> Action {
        Action::Acquire {
            owner: Uuid::now_v7(),
            ttl,
            holder: "test".into(),
            wanted_for: None,
        }
    }

    async fn one(store: &MemoryStore, request: Request) -> Outcome {
        store.apply(&[request]).await.remove(0).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn paused_time_moves_the_clock() {
        let store = MemoryStore::new();
        let ttl = Duration::from_secs(30);
        assert!(matches!(
            one(&store, request(Uuid::now_v7(), acquire(ttl))).await,
            Outcome::Granted { .. }
        ));

        tokio::time::advance(ttl - Duration::from_millis(1)).await;
        let busy = one(&store.clone(), request(Uuid::now_v7(), acquire(ttl))).await;
        assert!(matches!(busy, Outcome::Busy(occupant) if occupant.remaining == Duration::from_millis(1)));

        tokio::time::advance(Duration::from_millis(1)).await;
        let taken = one(&store, request(Uuid::now_v7(), acquire(ttl))).await;
        assert!(
            matches!(
                taken,
                Outcome::Granted {
                    taken_over: Some(_),
                    ..
                }
            ),
            "{taken:?}"
        );
    }

    #[test]
    fn the_clock_never_falls() {
        let store = MemoryStore::new();
        let ahead = store.table().now + 1_000_000_000;
        store.table().now = ahead;
        assert_eq!(store.table().now, ahead);
    }
}
