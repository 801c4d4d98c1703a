//! The calls of operators.

use std::collections::{BTreeMap, HashMap};

use dblock_core::store::{StoreError, StoreErrorKind};
use dblock_core::{InspectFilter, Key, LockRow};
use etcd_client::{Client, GetOptions, KeyValue};
use futures_util::future::join_all;

use crate::error;
use crate::keys::{Keys, Slot};
use crate::look::{Change, Condition, Rows, Write, Written, left, look, wanted_until, write};
use crate::row::Stored;

/// How many keys are read at once.
const PAGE: usize = 1_000;

/// The held rows with the filter's prefix. There are no others.
pub(crate) async fn inspect(
    client: &mut Client,
    names: &Keys,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    let prefix = filter.get_prefix();
    // All is read as of one revision: a lock that is passed on has its row in the other slot then.
    let mut revision = 0;
    let wanted: HashMap<Vec<u8>, i64> = range(client, &names.all_wanted(), prefix, &mut revision)
        .await?
        .into_iter()
        .map(|kv| (kv.key()[names.all_wanted().len()..].to_vec(), wanted_until(&kv)))
        .collect();
    let [first, second] = Slot::BOTH.map(|slot| (slot, names.rows(slot)));
    let mut found: BTreeMap<Vec<u8>, Vec<(Stored, i64)>> = BTreeMap::new();
    for (slot, folder) in [first, second] {
        for page in range(client, &folder, prefix, &mut revision).await?.chunks(PAGE) {
            let mut clients: Vec<_> = page.iter().map(|_| client.clone()).collect();
            let mut steps = Vec::new();
            for (kv, client) in page.iter().zip(&mut clients) {
                steps.push(left(client, kv.lease()));
            }
            for (kv, left) in page.iter().zip(join_all(steps).await) {
                let rows = found.entry(kv.key()[folder.len()..].to_vec()).or_default();
                // The lease may have ended since. The answer does not say who has the lock by now, so
                // the row is not left out.
                rows.push((Stored::read(kv, slot)?, left?.unwrap_or_default()));
            }
        }
    }
    let mut rows = Vec::new();
    for (name, mut slots) in found {
        slots.sort_by_key(|(stored, _)| stored.create_revision);
        let Some(((holder, left), others)) = slots.split_first() else {
            continue;
        };
        let next = others.first().map(|(stored, left)| (stored, *left));
        rows.push(holder.lock_row(key(&name)?, *left, wanted.get(&name).copied(), next));
    }
    Ok(filter.select(rows))
}

pub(crate) fn key(name: &[u8]) -> Result<Key, StoreError> {
    let name = std::str::from_utf8(name).ok();
    name.and_then(|name| Key::new(None, name).ok()).ok_or_else(|| {
        let message = "a key in etcd is no key of a lock: give dblock a prefix that nothing else uses";
        StoreError::new(StoreErrorKind::Schema, message)
    })
}

/// The keys as of `revision`. If that is 0, as of now, which is then written there.
async fn range(
    client: &mut Client,
    folder: &str,
    prefix: &str,
    revision: &mut i64,
) -> Result<Vec<KeyValue>, StoreError> {
    let mut found: Vec<KeyValue> = Vec::new();
    let whole = format!("{folder}{prefix}");
    let end = end_of(whole.as_bytes());
    let mut start = whole.into_bytes();
    loop {
        let page = GetOptions::new()
            .with_range(end.clone())
            .with_limit(i64::try_from(PAGE).unwrap_or(i64::MAX))
            .with_revision(*revision);
        let mut page = client.get(start, Some(page)).await.map_err(error::of_harmless)?;
        if let (0, Some(header)) = (*revision, page.header()) {
            *revision = header.revision();
        }
        let more = page.more();
        found.extend(page.take_kvs());
        match found.last() {
            Some(last) if more => start = [last.key(), b"\0"].concat(),
            _ => return Ok(found),
        }
    }
}

/// The first key behind all that begin with `prefix`.
fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // All keys.
    vec![0]
}

/// The rows of a key.
async fn rows(client: &mut Client, names: &Keys, key: &Key) -> Result<Rows, StoreError> {
    look(client, names, &[key]).await?.remove(0).rows
}

/// Marks the lease as revoked. Returns whether the key was held.
pub(crate) async fn mark_revoked(client: &mut Client, names: &Keys, key: &Key) -> Result<bool, StoreError> {
    while let Some(mut stored) = rows(client, names, key).await?.holder {
        if stored.row.revoked {
            return Ok(true);
        }
        stored.row.revoked = true;
        let one = Write {
            key,
            slot: stored.slot,
            change: Change::Put(stored.row, stored.lease),
            condition: Condition::Unchanged(stored.mod_revision),
        };
        if let Written::Done { .. } = write(client, names, &[one]).await.remove(0)? {
            return Ok(true);
        }
        // It has changed meanwhile.
    }
    Ok(false)
}

/// Deletes the rows of the key. Returns whether it was held. The leases are left alone: each may be that of
/// another lock by then.
///
/// Only the rows that were seen are deleted, whatever was written to them since. A caller that gets
/// the lock meanwhile keeps it.
pub(crate) async fn free(client: &mut Client, names: &Keys, key: &Key) -> Result<bool, StoreError> {
    let Rows { holder, next } = rows(client, names, key).await?;
    let held = holder.is_some();
    // The successor's comes first: it would hold the lock when the holder's is gone.
    for stored in [next, holder].into_iter().flatten() {
        let delete = Write {
            key,
            slot: stored.slot,
            change: Change::Delete,
            condition: Condition::Created(stored.create_revision),
        };
        write(client, names, &[delete]).await.remove(0)?;
    }
    Ok(held)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        assert_eq!(end_of(b"ab"), b"ac");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), [0]);
    }
}
