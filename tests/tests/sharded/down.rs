//! One shard is down: its keys fail, and the others do not notice.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{MemoryStore, Store};
use dblock::{LockError, LockManager};
use dblock_tests::faulty_store::{Fault, FaultyStore};
use dblock_tests::line::Database;
use dblock_tests::own_server;
use tokio::time::Instant;

use crate::{LONG, key_of, keys_of, long, shards};

/// A shard that hangs: no batch of another shard waits for it.
#[tokio::test(start_paused = true)]
async fn a_shard_that_hangs_delays_no_other() {
    let faulty = FaultyStore::memory();
    let (a, b): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(MemoryStore::new()), faulty.clone());
    let store = shards([("a", &a), ("b", &b)]);
    let (of_a, [of_b, too]) = (key_of(&store, "a"), keys_of(&store, "b"));
    let locks = LockManager::builder(store).build_lazy().unwrap();
    let kept = locks
        .lock(of_b.as_str())
        .options(&long())
        .acquire()
        .await
        .unwrap();
    faulty.down(&Fault::Never);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move {
            locks
                .lock(too.as_str())
                .options(&long())
                .wait(LONG)
                .acquire()
                .await
        }
    });
    let since = Instant::now();
    for _ in 0..50 {
        let guard = locks
            .lock(of_a.as_str())
            .options(&long())
            .acquire()
            .await
            .unwrap();
        guard.release().await.unwrap();
    }
    assert!(
        since.elapsed() < Duration::from_millis(500),
        "{:?}",
        since.elapsed()
    );
    assert!(!kept.is_lost(), "its lease is not over");
    faulty.heal();
    drop(waiting.await.unwrap());
    kept.release().await.unwrap();
}

/// A PostgreSQL server that is killed and comes back, beside a shard that stays.
#[tokio::test]
async fn a_server_that_is_stopped_stops_its_keys_only() {
    let Some(mut server) = own_server::start(Database::Postgres).await else {
        return;
    };
    let options = server.url().parse().unwrap();
    let a: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let b = dblock::open::postgres::open(options, "distributed_lock").unwrap();
    let store = shards([("a", &a), ("b", &b)]);
    let (of_a, of_b) = (key_of(&store, "a"), key_of(&store, "b"));
    let locks = LockManager::builder(store)
        .auto_migrate(true)
        .build()
        .await
        .unwrap();
    for key in [&of_a, &of_b] {
        locks
            .lock(key.as_str())
            .options(&long())
            .run(async {})
            .await
            .unwrap();
    }
    server.kill();
    // Sessions of the server may outlive it by a moment.
    let down = loop {
        match locks.lock(of_b.as_str()).options(&long()).acquire().await {
            Ok(guard) => drop(guard.release().await),
            Err(error) => break error,
        }
    };
    let LockError::Store { source, .. } = &down else {
        panic!("{down:?}")
    };
    assert!(source.is_retryable(), "{down:?}");
    assert!(source.to_string().contains("the shard \"b\""), "{source}");
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let since = Instant::now();
        locks
            .lock(of_a.as_str())
            .options(&long())
            .run(async {})
            .await
            .unwrap();
        slowest = slowest.max(since.elapsed());
    }
    println!("the slowest lock of the other shard: {slowest:?}");
    server.restart().await.unwrap();
    locks
        .lock(of_b.as_str())
        .options(&long())
        .wait(LONG)
        .run(async {})
        .await
        .unwrap();
}
