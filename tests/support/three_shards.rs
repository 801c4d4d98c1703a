//! The shards of a service before and after a third one is added.

use std::str::FromStr as _;
use std::sync::Arc;

use dblock::open;
use dblock::store::Store;
use dblock_sharded::ShardedStore;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;

/// The first two shards, and all three. They are SQLite files or databases of PostgreSQL.
///
/// # Panics
/// When these are not three URLs of such shards.
pub fn open(urls: &[String]) -> (ShardedStore, ShardedStore) {
    let names = ["a", "b", "c"];
    assert_eq!(urls.len(), names.len(), "a URL for each shard");
    let shards = |count| {
        let shards = names.iter().zip(urls).take(count);
        ShardedStore::new(shards.map(|(name, url)| (*name, shard(url)))).unwrap()
    };
    (shards(2), shards(3))
}

fn shard(url: &str) -> Arc<dyn Store> {
    const TABLE: &str = "distributed_lock";
    if url.starts_with("sqlite:") {
        let file = SqliteConnectOptions::from_str(url)
            .unwrap()
            .create_if_missing(true);
        return open::sqlite::open(file, TABLE).unwrap();
    }
    open::postgres::open(PgConnectOptions::from_str(url).unwrap(), TABLE).unwrap()
}
