//! Rows of all shards as one list. A row that a key has left behind on a former shard is not shown.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::try_join_all;

use tokio::time::timeout;

use super::{Place, Shard, ShardedStore};
use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Purged, StoreError, StoreErrorKind};
use dblock_core::{InspectFilter, Key, LockRow};

pub(super) async fn inspect(
    store: &ShardedStore,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    if store.places.are_moving() {
        return inspect_moving(store, filter).await;
    }
    let each = (0..store.shards.len()).map(|at| own_rows(store, at, filter));
    let rows = try_join_all(each).await?;
    Ok(filter.select(rows.into_iter().flatten()))
}

/// Who reads a row.
#[derive(Clone, Copy)]
pub(super) enum Reader {
    /// A call that is inside a lock.
    Inside,
    /// Somebody who asks who holds the key.
    Operator,
}

/// The row of a key. Only the shards that keep it are asked.
pub(super) async fn of(
    store: &ShardedStore,
    key: &Key,
    reader: Reader,
) -> Result<Option<LockRow>, StoreError> {
    let at = |shard: usize| async move {
        let shard = &store.shards[shard];
        let row = match reader {
            Reader::Inside => {
                let mut rows = shard.store.rows(std::slice::from_ref(key)).await;
                rows.pop().unwrap_or(Ok(None))
            }
            Reader::Operator => shard.store.row(key).await,
        };
        row.map_err(|error| shard.named(error))
    };
    match store.places.of(key) {
        Place::One(shard) => at(shard).await,
        Place::Moved { old, new } => {
            let (old, new) = (at(old).await?, at(new).await?);
            let held = new.as_ref().is_some_and(LockRow::is_held);
            let better = held && !old.as_ref().is_some_and(LockRow::is_held);
            Ok(if better || old.is_none() { new } else { old })
        }
    }
}

/// The rows that the filter wants of the keys of a shard.
async fn own_rows(
    store: &ShardedStore,
    at: usize,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    let most = usize::try_from(filter.get_limit()).unwrap_or(usize::MAX);
    let (mut own, mut filter) = (Vec::new(), filter.clone());
    loop {
        let page = read(&store.shards[at], &filter).await?;
        let last = page.last().filter(|_| page.len() >= most).map(LockRow::position);
        own.extend(
            page.into_iter()
                .filter(|row| store.places.of(&row.key) == Place::One(at)),
        );
        match last {
            Some(position) if own.len() < most => filter = filter.after(position),
            _ => return Ok(own),
        }
    }
}

/// How long [`time_left`] waits for all rows of a shard. The calls of a manager have limits of its own.
const LONGEST_READ: Duration = Duration::from_secs(30);

/// Until when the old rows of keys that move mean something that their new rows do not say.
pub(super) async fn time_left(store: &ShardedStore) -> Result<Duration, StoreError> {
    if !store.places.are_moving() {
        return Ok(Duration::ZERO);
    }
    let whole = InspectFilter::new().include_free().limit(u32::MAX);
    let pages = store.shards.iter().map(async |shard| {
        let page = timeout(LONGEST_READ, read(shard, &whole)).await;
        page.unwrap_or_else(|_| {
            let message = format!("not answered within {LONGEST_READ:?}");
            Err(shard.named(StoreError::new(StoreErrorKind::Unreachable, message)))
        })
    });
    let pages = try_join_all(pages).await?;
    let mut left = Duration::ZERO;
    for (at, page) in pages.iter().enumerate() {
        for row in page {
            let Place::Moved { old, new } = store.places.of(&row.key) else {
                continue;
            };
            if old != at {
                continue;
            }
            let beside = pages[new].binary_search_by(|other| other.key.cmp(&row.key));
            let beside = beside.ok().map(|place| &pages[new][place]);
            if beside.is_none_or(|new| new.lease_id != row.lease_id) && row.is_held() {
                left = left.max(row.expire_at.since(row.now));
            }
            if beside.is_none_or(|new| new.fence_ceiling < row.fence_ceiling) {
                left = left.max(Timestamp::from_micros(row.fence_ceiling).since(row.now));
            }
        }
    }
    Ok(left)
}

/// Of a key that moves, the row that shows who has it: the old one, unless only the new one is held. The two
/// differ in what the list is ordered by, so it is made from all rows.
async fn inspect_moving(store: &ShardedStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let whole = InspectFilter::new()
        .prefix(filter.get_prefix())
        .include_free()
        .limit(u32::MAX);
    let pages = try_join_all(store.shards.iter().map(|shard| read(shard, &whole))).await?;
    let mut rows: BTreeMap<Key, LockRow> = BTreeMap::new();
    for (at, page) in pages.into_iter().enumerate() {
        for row in page {
            let (is_own, is_old) = match store.places.of(&row.key) {
                Place::One(place) => (place == at, true),
                Place::Moved { old, new } => (old == at || new == at, old == at),
            };
            let shown = rows.get(&row.key);
            // Equally held, or the only one.
            let is_better = shown.is_none_or(|shown| match (row.is_held(), shown.is_held()) {
                (one, other) if one == other => is_old,
                (held, _) => held,
            });
            if is_own && is_better {
                rows.insert(row.key.clone(), row);
            }
        }
    }
    Ok(filter.select(rows.into_values()))
}

async fn read(shard: &Shard, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let rows = shard.store.inspect(filter).await;
    rows.map_err(|error| shard.named(error))
}

/// A step looks at the rows of the next keys of all shards, those left behind too.
pub(super) async fn purge(
    store: &ShardedStore,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    if store.places.are_moving() {
        return Ok(Purged::default());
    }
    let mut next = InspectFilter::new().include_free().limit(limit);
    if let Some(after) = after {
        next = next.after(LockRow::new(after.clone(), Timestamp::EPOCH).position());
    }
    let shards: Vec<&Shard> = store
        .shards
        .iter()
        .filter(|shard| shard.store.capabilities().purge)
        .collect();
    let pages = try_join_all(shards.iter().map(|shard| read(shard, &next))).await?;
    let mut keys: Vec<(Key, usize)> = Vec::new();
    for (at, page) in pages.into_iter().enumerate() {
        keys.extend(page.into_iter().map(|row| (row.key, at)));
    }
    keys.sort();
    keys.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let steps = shards.iter().enumerate().filter_map(|(at, shard)| {
        let rows = keys.iter().filter(|(_, place)| *place == at).count();
        let rows = u32::try_from(rows).ok().filter(|rows| *rows > 0)?;
        let step = shard.store.purge(idle, after, rows);
        Some(async move { step.await.map_err(|error| shard.named(error)) })
    });
    let purged = try_join_all(steps).await?;
    let is_full = u32::try_from(keys.len()).is_ok_and(|looked_at| looked_at >= limit);
    let next = keys.pop().filter(|_| is_full).map(|(key, _)| key);
    Ok(Purged::new(purged.iter().map(|step| step.rows).sum(), next))
}
