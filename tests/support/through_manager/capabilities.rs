//! What a store's capabilities allow works through a manager. The rest is refused as unsupported, without any
//! other effect.

use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{InspectFilter, LockError, LockManager, LockOptions, OnCrash, Once, RunOptions};
use sqlx::{Connection, SqliteConnection};
use tokio::time::Instant;

use super::AnyFixture;
use super::setup::{LONG, Setup};
use super::tickets::has_tickets;

/// Without tables locks name the remedy at once, and work when it was taken.
pub async fn locks_without_tables_name_the_remedy(fixture: &dyn AnyFixture) {
    let Some(store) = fixture.bare().await else { return };
    assert_schema(LockManager::builder(store).build().await);
    let bare = async || fixture.bare().await.expect("the same answer each time");
    let locks = LockManager::builder(bare().await).build_lazy().unwrap();
    for wait in [Duration::ZERO, LONG] {
        let since = Instant::now();
        assert_schema(locks.lock("key").wait(wait).acquire().await);
        assert!(since.elapsed() < LONG / 2, "waiting does not help");
    }
    bare().await.migrate().await.expect("the remedy");
    locks.lock("key").run(async {}).await.unwrap();
}

#[track_caller]
fn assert_schema<T: std::fmt::Debug>(result: Result<T, LockError>) {
    match result {
        Err(LockError::Store { source, .. }) => {
            assert_eq!(source.kind(), StoreErrorKind::Schema, "{source}");
            assert!(source.to_string().contains("migrate"), "{source}");
        }
        other => panic!("{other:?}"),
    }
}

/// A fence check on a database that does not keep the locks: refused as unsupported, and the lease goes on.
pub async fn fence_check_elsewhere_is_unsupported(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    let mut elsewhere = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    match guard.verify_in(&mut elsewhere).await {
        Err(LockError::Store { source, .. }) => {
            let unsupported = source.kind() == StoreErrorKind::Unsupported;
            // A SQLite store may find that the other file has no such table.
            assert!(unsupported || setup.verifies(), "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert!(setup.is_free("key").await);
}

/// Work runs once where the store keeps records. Elsewhere it is refused as unsupported: nothing runs, and the
/// lock is not taken.
pub async fn runs_once_or_says_that_it_cannot(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let locks = LockManager::builder(fixture.store().await).build().await.unwrap();
    let options = || RunOptions::new(LONG, OnCrash::Stop);
    let mut runs = 0;
    for first in [true, false] {
        let body = async |_| {
            runs += 1;
            Ok::<_, LockError>(())
        };
        match locks.run_once("key", options(), body).await {
            Err(LockError::Store { source, .. }) if store.records().is_none() => {
                assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
            }
            Ok(Once::Ran(())) if first && store.records().is_some() => {}
            Ok(Once::Replayed(())) if !first && store.records().is_some() => {}
            other => panic!("{other:?}, the first: {first}"),
        }
    }
    assert_eq!(runs, usize::from(store.records().is_some()));
    let rows = store.inspect(&InspectFilter::new()).await;
    assert_eq!(rows.expect("inspect reads rows"), [], "nobody holds a lock");
}

/// Which stores have shared and limited locks, and which have tickets: as `docs/backends.md` and `docs/recipes.md` say.
pub async fn shares_and_has_tickets_as_documented(fixture: &dyn AnyFixture) {
    let locks = Setup::new(fixture).await.manager().await;
    let can = locks.capabilities();
    let has = (can.shares, has_tickets(&locks).await);
    let documented: &[(bool, bool)] = match can.name {
        "memory" | "sqlite" | "postgres" | "mysql" | "redis" | "zookeeper" => &[(true, true)],
        "etcd" | "file" => &[(false, true)],
        // Neither while keys move.
        "sharded" => &[(true, true), (false, false)],
        other => panic!("{other} is not in the table"),
    };
    assert!(documented.contains(&has), "{}: {has:?}", can.name);
}

/// A ttl below the store's shortest is refused before anything is sent; the shortest is taken.
pub async fn a_ttl_below_the_shortest_is_refused(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let shortest = fixture.store().await.capabilities().shortest_ttl;
    let shortest = shortest.max(LockOptions::MIN_TTL);
    let below = shortest.mul_f64(0.999);
    let refused = [
        locks.lock("key").ttl(below).acquire().await.map(drop),
        locks.lock("key").ttl(below).try_acquire().await.map(drop),
        locks.lock(["key"]).ttl(below).acquire().await.map(drop),
        locks.lock("key").ttl(below).run(async {}).await,
    ];
    for refused in refused {
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
    }
    assert_eq!(locks.admin().get("key").await.unwrap(), None, "nothing was sent");
    let guard = locks.lock("key").ttl(shortest).acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// A store with `callers_runtime` uses its own where the caller has none; any other goes on when the runtime that built
/// its manager, and took the lock, has ended.
pub async fn runtime_is_the_callers_or_its_own(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let store = fixture.store().await;
    if store.capabilities().callers_runtime {
        let locks = || {
            let locks = LockManager::builder(store).build_lazy().unwrap();
            let short = Duration::from_secs(1);
            let guard = locks.block_on(locks.lock("key").ttl(short).acquire()).unwrap();
            // It is renewed meanwhile.
            let is_lost = async { tokio::time::timeout(short * 2, guard.lost()).await };
            locks.block_on(is_lost).unwrap_err();
            locks.block_on(guard.release()).unwrap();
        };
        std::thread::spawn(locks).join().expect("no panic");
        return;
    }
    let elsewhere = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let locks = LockManager::builder(store).build().await.unwrap();
            locks.lock("key").acquire().await.unwrap()
        })
    });
    let guard = elsewhere.await.expect("no panic");
    assert_eq!(setup.the_row("key").await.reentrant_count, 1);
    guard.release().await.unwrap();
    assert!(setup.is_free("key").await);
}
