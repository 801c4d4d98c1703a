//! Rows, as operators see and change them.

use std::collections::{BTreeMap, BTreeSet};

use dblock_core::store::{StoreError, StoreErrorKind};
use dblock_core::{InspectFilter, Key, LockRow};
use futures_util::future::try_join_all;
use redis::Value;

use crate::call::Call;
use crate::deployment::Deployment;
use crate::row;
use crate::session::Server;
use crate::{RedisStore, error};

/// How many keys the server looks at in a step of a scan, and how many rows a script reads. It serves nobody
/// else meanwhile.
pub(crate) const STEP: usize = 500;

/// [`Store::inspect`](dblock_core::store::Store::inspect). A scan walks over all keys of the server's database,
/// whatever their prefix.
pub(crate) async fn inspect(store: &RedisStore, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let by_key = !filter.get_urgent_first();
    let after = filter
        .get_after()
        .map(|position| &position.key)
        .filter(|_| by_key);
    let limit = usize::try_from(filter.get_limit()).unwrap_or(usize::MAX);
    // A look at one key, which comes before the keys that begin with it, needs no scan.
    if by_key
        && after.is_none()
        && limit == 1
        && let Ok(key) = Key::new(None, filter.get_prefix())
    {
        let row = filter.select(read(store, &[key]).await?);
        if !row.is_empty() {
            return Ok(row);
        }
    }
    let keys = scan(store, filter.get_prefix()).await?;
    let keys: Vec<Key> = keys.into_iter().filter(|key| Some(key) > after).collect();
    let mut rows = Vec::new();
    for keys in keys.chunks(STEP) {
        rows.extend(filter.select(read(store, keys).await?));
        if by_key && rows.len() >= limit {
            break;
        }
    }
    Ok(filter.select(rows))
}

/// The keys that begin with `prefix` and are there during the whole scan, and perhaps others. Each once, in
/// order.
async fn scan(store: &RedisStore, prefix: &str) -> Result<BTreeSet<Key>, StoreError> {
    let mut keys = BTreeSet::new();
    for (_, server) in store.deployment.servers().await? {
        keys.extend(scan_server(store, &server, prefix).await?);
    }
    Ok(keys)
}

async fn scan_server(store: &RedisStore, server: &Server, prefix: &str) -> Result<BTreeSet<Key>, StoreError> {
    let pattern = match store.deployment {
        Deployment::Server(_) => escaped(&store.row_prefix(None)),
        Deployment::Cluster { .. } => format!("{{{}:*}}:lock:", escaped(&store.prefix)),
    };
    let pattern = format!("{pattern}{}*", escaped(prefix));
    let (mut keys, mut cursor) = (BTreeSet::new(), 0_u64);
    loop {
        let mut step = redis::cmd("SCAN");
        step.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
        let found: Vec<Vec<u8>>;
        (cursor, found) = server.ask(&step).await?;
        // A name that is none of ours cannot be a lock's.
        let found = found.into_iter().filter_map(|name| String::from_utf8(name).ok());
        keys.extend(found.filter_map(|name| key_of(store, &name)));
        if cursor == 0 {
            return Ok(keys);
        }
    }
}

/// The lock whose row has this name, if it is where that lock's row is looked for.
fn key_of(store: &RedisStore, name: &str) -> Option<Key> {
    let (_, key) = name.get(store.prefix.len()..)?.split_once(":lock:")?;
    let key = Key::new(None, key).ok()?;
    (store.row_key(key.as_ref()) == name).then_some(key)
}

/// Escapes the characters that mean something in a pattern.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    for character in text.chars() {
        if "*?[]^-\\".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// The rows of keys that have one. Those of one shard are read at one reading of the clock.
async fn read(store: &RedisStore, keys: &[Key]) -> Result<Vec<LockRow>, StoreError> {
    let mut shards: BTreeMap<Option<u16>, Vec<&Key>> = BTreeMap::new();
    for key in keys {
        shards
            .entry(store.deployment.shard(key.as_ref()))
            .or_default()
            .push(key);
    }
    let read = shards.values().map(|keys| read_shard(store, keys));
    Ok(try_join_all(read).await?.concat())
}

async fn read_shard(store: &RedisStore, keys: &[&Key]) -> Result<Vec<LockRow>, StoreError> {
    match look(store, keys).await {
        // While a slot is being moved its keys are read one at a time.
        Err(failed) if keys.len() > 1 && error::redirect(&failed).is_some() => {
            let each = keys.iter().map(|key| look(store, std::slice::from_ref(key)));
            Ok(try_join_all(each).await?.concat())
        }
        read => read,
    }
}

async fn look(store: &RedisStore, keys: &[&Key]) -> Result<Vec<LockRow>, StoreError> {
    let mut look = Call::of(&store.scripts.look);
    for key in keys {
        look.key(store.row_key(key.as_ref()));
    }
    let mut answers = row::each(store.deployment.run(&look).await?.value)?;
    let now = row::clock(answers.next())?;
    let rows = keys.iter().zip(answers);
    let rows = rows.map(|(key, row)| row::lock_row(&row, (*key).clone(), now));
    rows.filter_map(Result::transpose).collect()
}

/// Changes the row of `key` if it is held, and says whether it was.
pub(crate) async fn operate(store: &RedisStore, key: &Key, words: &[&[u8]]) -> Result<bool, StoreError> {
    store.deployment.agree(&store.prefix).await?;
    let mut operate = Call::of(&store.scripts.operate);
    operate.key(store.row_key(key.as_ref()));
    store.add_place(&mut operate, store.deployment.shard(key.as_ref()));
    for word in words {
        operate.arg(*word);
    }
    match store.deployment.run(&operate).await?.value {
        Value::Int(held) => Ok(held == 1),
        Value::BulkString(_) => Err(row::no_row(key)),
        other => Err(StoreError::new(
            StoreErrorKind::Other,
            format!("the Redis server's answer cannot be read: {other:?}"),
        )),
    }
}
