//! Locks spread over several stores: `ShardedStore`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod down;
mod moves;
mod moving;
mod rolling;
mod tokens;
mod transactions;
mod wake_ups;

use std::sync::Arc;
use std::time::Duration;

use dblock::store::Store;
use dblock::{Key, LockOptions};
use dblock_sharded::ShardedStore;

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

fn long() -> LockOptions {
    LockOptions::new().ttl(LONG)
}

fn key(name: &str) -> Key {
    Key::new(None, name).unwrap()
}

fn shards<const N: usize>(shards: [(&str, &Arc<dyn Store>); N]) -> ShardedStore {
    ShardedStore::new(shards.map(|(name, store)| (name, Arc::clone(store)))).unwrap()
}

/// A key of the shard with this name.
fn key_of(shards: &ShardedStore, name: &str) -> Key {
    let [key] = keys_of(shards, name);
    key
}

fn keys_of<const N: usize>(shards: &ShardedStore, name: &str) -> [Key; N] {
    let keys = (0..).map(|n| key(&format!("order:{n}")));
    let mut keys = keys.filter(|key| shards.shard_of(key) == name);
    std::array::from_fn(|_| keys.next().unwrap())
}
