//! A store does what its capabilities say, and refuses the rest as unsupported, without any other effect.

use dblock::store::StoreErrorKind;
use dblock::{InspectFilter, LockError, LockManager, LockOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::setup::{LONG, Setup, long, patient};
use crate::Fixture;
use crate::context::Asker;

/// Without tables `check_schema` and locks name the remedy, and `migrate`, on many nodes at once, creates them.
/// A store that needs no tables is ready at once.
pub async fn missing_tables_name_the_remedy(fixture: &impl Fixture) {
    let Some(one) = fixture.bare().await else {
        let store = fixture.store().await;
        store
            .check_schema()
            .await
            .expect("a store without tables is ready");
        return store.migrate().await.expect("there is nothing to migrate");
    };
    let bare = async || fixture.bare().await.expect("the same answer each time");
    let mut missing = vec![
        one.check_schema().await.err(),
        one.inspect(&InspectFilter::new()).await.err(),
    ];
    let batch = ["a", "b"].map(|name| Asker::new(name).acquire(LONG));
    missing.extend(one.apply(&batch).await.into_iter().map(Result::err));
    for error in missing {
        let error = error.expect("there are no tables");
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("migrate"), "{error}");
    }

    assert_schema(LockManager::builder(bare().await).build().await);
    let locks = LockManager::builder(bare().await).build_lazy().unwrap();
    for options in [long(), patient()] {
        let since = Instant::now();
        assert_schema(locks.lock("key").options(&options).acquire().await);
        assert!(since.elapsed() < LONG / 2, "waiting does not help");
    }
    let mut nodes = JoinSet::new();
    for _ in 0..10 {
        let node = bare().await;
        nodes.spawn(async move {
            node.migrate().await?;
            node.check_schema().await
        });
    }
    for migrated in nodes.join_all().await {
        migrated.expect("each of ten nodes that migrate at once finds the tables");
    }
    one.check_schema().await.expect("the tables are there");
    locks.lock("key").options(&long()).run(async {}).await.unwrap();
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
/// Without the feature `sqlite` there is no connection to try it on, and nothing is checked.
pub async fn fence_check_elsewhere_is_unsupported(fixture: &impl Fixture) {
    let setup = Setup::new(fixture).await;
    let guard = setup
        .manager()
        .await
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    #[cfg(feature = "sqlite")]
    {
        use sqlx::Connection;

        let mut elsewhere = sqlx::SqliteConnection::connect("sqlite::memory:").await.unwrap();
        match guard.verify_in(&mut elsewhere).await {
            Err(LockError::Store { source, .. }) => {
                let unsupported = source.kind() == StoreErrorKind::Unsupported;
                // A SQLite store may find that the other file has no such table.
                assert!(unsupported || setup.verifies(), "{source}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    assert!(setup.is_free("key").await);
}

/// Work runs once where the store keeps records. Elsewhere it is refused as unsupported: nothing runs, and the
/// lock is not taken. Without the feature `run_once` nothing is checked.
pub async fn runs_once_or_says_that_it_cannot(fixture: &impl Fixture) {
    let store = fixture.store().await;
    #[cfg(feature = "run_once")]
    {
        let locks = LockManager::builder(fixture.store().await).build().await.unwrap();
        let options = || dblock::RunOptions::new(LONG, dblock::OnCrash::Stop);
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
                Ok(dblock::Once::Ran(())) if first && store.records().is_some() => {}
                Ok(dblock::Once::Replayed(())) if !first && store.records().is_some() => {}
                other => panic!("{other:?}, the first: {first}"),
            }
        }
        assert_eq!(runs, usize::from(store.records().is_some()));
    }
    let rows = store
        .inspect(&InspectFilter::new())
        .await
        .expect("inspect reads rows");
    assert_eq!(rows, [], "nobody holds a lock");
}

/// A ttl below the store's shortest is refused before anything is sent; the shortest is taken.
pub async fn a_ttl_below_the_shortest_is_refused(fixture: &impl Fixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let shortest = fixture.store().await.capabilities().shortest_ttl;
    let shortest = shortest.max(LockOptions::MIN_TTL);
    let below = LockOptions::new().ttl(shortest.mul_f64(0.999));
    let refused = [
        locks.lock("key").options(&below).acquire().await.map(drop),
        locks.lock("key").options(&below).try_acquire().await.map(drop),
        locks.lock(["key"]).options(&below).acquire().await.map(drop),
        locks.lock("key").options(&below).run(async {}).await,
    ];
    for refused in refused {
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
    }
    assert_eq!(locks.admin().get("key").await.unwrap(), None, "nothing was sent");
    let guard = locks.lock("key").ttl(shortest).acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// A store with `callers_runtime` refuses to be built where there is no runtime; any other goes on when the
/// runtime that built its manager, and took the lock, has ended.
pub async fn runtime_is_the_callers_or_its_own(fixture: &impl Fixture) {
    let setup = Setup::new(fixture).await;
    let store = fixture.store().await;
    if store.capabilities().callers_runtime {
        let built = std::thread::spawn(|| LockManager::builder(store).build_lazy());
        let refused = built.join().expect("no panic").map(drop);
        assert!(matches!(refused, Err(LockError::Invalid { .. })), "{refused:?}");
        return;
    }
    let elsewhere = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let locks = LockManager::builder(store).build().await.unwrap();
            locks.lock("key").options(&long()).acquire().await.unwrap()
        })
    });
    let guard = elsewhere.await.expect("no panic");
    assert_eq!(setup.the_row("key").await.reentrant_count, 1);
    guard.release().await.unwrap();
    assert!(setup.is_free("key").await);
}
