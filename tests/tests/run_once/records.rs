//! Looking at records, forgetting and purging them, and stores that keep none.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Capabilities, RecordFilter, RecordState, Store, StoreErrorKind};
use dblock::{LockError, LockManager, OnCrash, Once, RunOptions};
use dblock_tests::{Backend, on_every_store};

use crate::{Effects, KEY, PayError, decline, pay, record, run};

on_every_store!(
    records_are_listed_within_the_namespace,
    a_forgotten_run_runs_anew,
    a_purge_takes_what_is_no_longer_remembered,
    options_that_cannot_work_are_refused_before_anything_is_sent,
);
on_every_store!(databases: without_its_table_a_run_says_how_to_make_it_and_locks_work_as_ever);
on_every_store!(memory: a_store_without_records_says_so);

async fn records_are_listed_within_the_namespace(backend: Backend) {
    let shop = backend.builder().namespace("shop").build().await.unwrap();
    let bank = backend.builder().namespace("bank").build().await.unwrap();
    let effects = Effects::default();
    pay(&shop, run(OnCrash::Stop), &effects).await.unwrap();
    decline(&bank, run(OnCrash::Stop)).await;
    let found = shop
        .admin()
        .records(RecordFilter::new().prefix("pay"))
        .await
        .unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|record| (record.key.as_str(), record.state))
        .collect();
    assert_eq!(found, [("pay:42", RecordState::Succeeded)]);
    let failed = RecordFilter::new().state(RecordState::Failed);
    assert!(shop.admin().records(failed.clone()).await.unwrap().is_empty());
    assert_eq!(bank.admin().records(failed).await.unwrap().len(), 1);
}

async fn a_forgotten_run_runs_anew(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    pay(&locks, run(OnCrash::Stop), &effects).await.unwrap();
    let shown = record(&locks).await;
    assert!(locks.admin().forget(&shown).await.unwrap());
    assert!(!locks.admin().forget(&shown).await.unwrap());
    assert!(locks.admin().record::<u32>(KEY).await.unwrap().is_none());
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(2)
    );
}

async fn a_purge_takes_what_is_no_longer_remembered(backend: Backend) {
    let locks = backend.manager().await;
    let briefly = RunOptions::new(Duration::from_secs(1), OnCrash::Stop);
    let done = async |_| Ok::<_, LockError>(());
    locks.run_once("brief", briefly, done).await.unwrap();
    locks.run_once("long", run(OnCrash::Stop), done).await.unwrap();
    while locks.admin().record::<()>("brief").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(locks.admin().records(RecordFilter::new()).await.unwrap().len(), 2);
    assert_eq!(locks.admin().purge(Duration::from_hours(24)).await.unwrap(), 1);
    let left = locks.admin().records(RecordFilter::new()).await.unwrap();
    assert!(
        matches!(left.as_slice(), [record] if record.key.as_str() == "long"),
        "{left:?}"
    );
}

async fn options_that_cannot_work_are_refused_before_anything_is_sent(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    for bad in [
        RunOptions::new(Duration::ZERO, OnCrash::Stop),
        RunOptions::new(Duration::MAX, OnCrash::Stop),
        run(OnCrash::Stop).max_attempts(0),
        run(OnCrash::Stop).fingerprint(&std::collections::HashMap::from([((), 1)])),
    ] {
        let refused = pay(&locks, bad, &effects).await.unwrap_err();
        assert!(
            matches!(refused, PayError::Lock(LockError::Invalid { .. })),
            "{refused:?}"
        );
    }
    let done = async |_| Ok::<_, LockError>(());
    assert!(matches!(
        locks.run_once("", run(OnCrash::Stop), done).await,
        Err(LockError::Invalid { .. })
    ));
    assert_eq!(effects.count(), 0);
    assert_eq!(backend.row(KEY).await, None);
}

async fn without_its_table_a_run_says_how_to_make_it_and_locks_work_as_ever(backend: Backend) {
    backend.execute("DROP TABLE {table}_record").await;
    backend.execute("ALTER TABLE {table} DROP COLUMN shared").await;
    backend.execute("UPDATE {table}_version SET version = 2").await;
    let locks = backend.manager().await;
    let effects = Effects::default();
    let refused = pay(&locks, run(OnCrash::Stop), &effects).await.unwrap_err();
    let PayError::Lock(LockError::Store { source, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.kind(), StoreErrorKind::Schema);
    assert!(
        source
            .to_string()
            .contains(&format!("{}_record is not there", backend.table)),
        "{source}"
    );
    locks.lock(KEY).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(locks.admin().purge(Duration::from_hours(24)).await.unwrap(), 0);
    locks.admin().migrate().await.unwrap();
    assert_eq!(
        pay(&locks, run(OnCrash::Stop), &effects).await.unwrap(),
        Once::Ran(1)
    );
}

/// A store without records, around one that has them.
#[derive(Debug)]
struct Bare {
    inner: Arc<dyn Store>,
}

impl Store for Bare {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn apply<'a>(
        &'a self,
        requests: &'a [dblock::store::Request],
    ) -> dblock::store::StoreFuture<'a, Vec<Result<dblock::store::Outcome, dblock::store::StoreError>>> {
        self.inner.apply(requests)
    }

    dblock_conformance::forward_to_inner!(but records);
}

async fn a_store_without_records_says_so(_: Backend) {
    let inner: Arc<dyn Store> = Arc::new(dblock::store::MemoryStore::new());
    let locks = LockManager::builder(Arc::new(Bare { inner }) as Arc<dyn Store>)
        .build()
        .await
        .unwrap();
    let refused = pay(&locks, run(OnCrash::Stop), &Effects::default())
        .await
        .unwrap_err();
    let PayError::Lock(LockError::Store { source, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
}
