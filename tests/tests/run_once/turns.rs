//! Many calls at once in one process: whose turn it is.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use dblock::store::{Record, RecordWrite, Records, Store, StoreError, StoreFuture};
use dblock::{InspectFilter, Key, LockManager, LockOptions, OnCrash, Once};
use dblock_conformance::Fixture;
use dblock_tests::around::{Around, Between};
use dblock_tests::busy_operator::beside_an_operator;
use dblock_tests::{Backend, on_every_store};
use futures_util::future::{join_all, poll_immediate};
use tokio::sync::{Notify, Semaphore};

use crate::{LONG, PayError, run};

on_every_store!(
    an_outcome_does_not_queue_behind_new_calls,
    an_outcome_does_not_queue_behind_beginnings,
    calls_look_at_their_records_together,
    a_run_does_not_wait_for_an_operator,
);

/// Each read of records takes a permit.
#[derive(Debug)]
struct SlowReads {
    permits: Semaphore,
    reads: AtomicU32,
    /// How many there were when a record was written.
    before_write: AtomicU32,
}

impl Between for SlowReads {
    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            self.reads.fetch_add(1, Ordering::SeqCst);
            records.read_all(keys).await
        })
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        let before = self.reads.load(Ordering::SeqCst);
        self.before_write.store(before, Ordering::SeqCst);
        records.write(write)
    }
}

/// A run ends while twenty calls wait for their reads.
async fn an_outcome_does_not_queue_behind_new_calls(backend: Backend) {
    let (store, locks) = slow_reads(&backend, 1).await;
    let others = join_all((0..20).map(|n| {
        let locks = &locks;
        let body = async move |_| Ok::<_, PayError>(n);
        async move {
            locks
                .run_once(format!("other {n}"), run(OnCrash::Stop), body)
                .await
        }
    }));
    tokio::pin!(others);
    let ends = Notify::new();
    let body = async |_| {
        assert!(
            poll_immediate(&mut others).await.is_none(),
            "they ask for their records"
        );
        ends.notify_one();
        Ok::<_, PayError>(7)
    };
    let first = locks.run_once("first", run(OnCrash::Stop), body);
    let reads = async {
        ends.notified().await;
        // The engine begins its work in order: after its answers the outcome waits for its turn.
        for _ in 0..20 {
            locks.admin().get("first").await.unwrap();
            store.permits.add_permits(1);
        }
    };
    let (ran, ()) = tokio::join!(first, reads);
    assert_eq!(ran.unwrap(), Once::Ran(7));
    let before = store.before_write.load(Ordering::SeqCst);
    assert!(before <= 3, "{before} reads came before the outcome");
}

/// Each write of a record takes a permit.
#[derive(Debug)]
struct SlowWrites {
    permits: Semaphore,
    keys: Mutex<Vec<Key>>,
}

impl Between for SlowWrites {
    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            self.permits.acquire().await.unwrap().forget();
            self.keys.lock().unwrap().push(write.key.clone());
            records.write(write).await
        })
    }
}

/// A run ends while twenty others begin, each by a write of its own.
async fn an_outcome_does_not_queue_behind_beginnings(backend: Backend) {
    let slow = SlowWrites {
        permits: Semaphore::new(0),
        keys: Mutex::default(),
    };
    let store = Around::new(backend.store().await, slow);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>);
    let locks = locks.build_lazy().unwrap();
    let patient = run(OnCrash::Stop).lock(LockOptions::new().ttl(LONG).wait(LONG));
    let ends = Notify::new();
    let first = locks.run_once("first", run(OnCrash::Stop), async |_| {
        ends.notified().await;
        Ok::<_, PayError>(7)
    });
    let others = join_all((0..20).map(|n| {
        let tick = patient.clone().tick(SystemTime::now());
        let body = async move |_| Ok::<_, PayError>(n);
        locks.run_once(format!("other {n}"), tick, body)
    }));
    let writes = async {
        // All of them have their locks, and soon wait for their writes.
        while locks.admin().list(InspectFilter::new()).await.unwrap().len() < 21 {}
        for _ in 0..20 {
            locks.admin().get("first").await.unwrap();
        }
        ends.notify_one();
        for _ in 0..45 {
            locks.admin().get("first").await.unwrap();
            store.permits.add_permits(1);
        }
    };
    let (ran, others, ()) = tokio::join!(first, others, writes);
    assert_eq!(ran.unwrap(), Once::Ran(7));
    for other in others {
        other.unwrap();
    }
    let keys = store.keys.lock().unwrap();
    let before = keys.iter().position(|key| key.as_str() == "first").unwrap();
    assert!(before <= 3, "{before} writes came before the outcome");
}

async fn a_run_does_not_wait_for_an_operator(backend: Backend) {
    let calls = async |locks: LockManager| {
        let tick = run(OnCrash::Stop).tick(SystemTime::now());
        for (key, options) in [("run", run(OnCrash::Stop)), ("tick", tick)] {
            let ran = locks.run_once(key, options, async |_| Ok::<_, PayError>(7)).await;
            assert_eq!(ran.unwrap(), Once::Ran(7));
        }
    };
    beside_an_operator(&backend, calls).await;
}

/// A hundred calls ask while the store answers nobody.
async fn calls_look_at_their_records_together(backend: Backend) {
    let (store, locks) = slow_reads(&backend, 100).await;
    let keys: Vec<_> = (0..100).map(|n| format!("replay {n}")).collect();
    for (n, key) in keys.iter().enumerate().skip(1).step_by(2) {
        let body = async |_| Ok::<_, PayError>(n);
        locks.run_once(key, run(OnCrash::Stop), body).await.unwrap();
    }
    store.permits.forget_permits(usize::MAX);
    store.reads.store(0, Ordering::SeqCst);
    let mut calls: Vec<_> = keys
        .iter()
        .map(|key| Box::pin(locks.admin().record::<usize>(key)))
        .collect();
    for call in &mut calls {
        assert!(poll_immediate(call).await.is_none(), "nobody is answered");
    }
    // Some callers go, the first of them, too: the others do not notice.
    let calls = calls.into_iter().enumerate();
    let stay: Vec<_> = calls.filter(|(n, _)| n % 5 != 0).collect();
    store.permits.add_permits(100);
    for (n, found) in join_all(stay.into_iter().map(async |(n, call)| (n, call.await))).await {
        let result = found.unwrap().and_then(|found| found.result);
        assert_eq!(result, (n % 2 == 1).then_some(n), "{n}");
    }
    // The first reads began while the calls still came in.
    let reads = store.reads.load(Ordering::SeqCst);
    assert!(reads < 50, "{reads} reads for 100 looks");
}

async fn slow_reads(backend: &Backend, permits: usize) -> (Arc<Around<SlowReads>>, LockManager) {
    let slow = SlowReads {
        permits: Semaphore::new(permits),
        reads: AtomicU32::new(0),
        before_write: AtomicU32::new(0),
    };
    let store = Around::new(backend.store().await, slow);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>).build_lazy();
    (store, locks.unwrap())
}
