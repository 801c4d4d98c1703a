//! What a call waits for before its body runs counts against its `wait`, and ends with its lease. In memory,
//! on paused time, so that all times are exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use dblock::store::{Outcome, Record, RecordWrite, Records, Request, Store, StoreError, StoreFuture};
use dblock::{Key, LockError, LockManager, LockOptions, OnCrash, Once, RunOptions, TimeoutCause};
use dblock_conformance::Fixture;
use dblock_tests::around::{Around, Between};
use dblock_tests::{Backend, Kind};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};

use crate::{Effects, KEY, PayError, pay, run};

const SECOND: Duration = Duration::from_secs(1);

/// Is silent about what it is told to be silent about. A read of records takes `reading`.
#[derive(Debug, Default)]
struct Silent {
    locks: AtomicBool,
    reads: AtomicBool,
    writes: AtomicBool,
    reading: Duration,
}

async fn unless<T>(silent: &AtomicBool, answer: impl Future<Output = T>) -> T {
    if silent.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    answer.await
}

impl Between for Silent {
    fn apply<'a>(
        &'a self,
        store: &'a dyn Store,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(unless(&self.locks, store.apply(requests)))
    }

    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(unless(&self.reads, async move {
            sleep(self.reading).await;
            records.read_all(keys).await
        }))
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(unless(&self.writes, records.write(write)))
    }
}

async fn over(silent: Silent) -> (Arc<Around<Silent>>, LockManager) {
    let backend = Backend::new(Kind::PausedMemory).await.unwrap();
    let store = Around::new(backend.store().await, silent);
    let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>).namespace("billing");
    let locks = locks.build_lazy();
    (store, locks.unwrap())
}

/// The error of a call, and how long it took.
async fn refused(locks: &LockManager, options: RunOptions) -> (LockError, Duration) {
    let since = Instant::now();
    match pay(locks, options, &Effects::default()).await {
        Err(PayError::Lock(error)) => {
            let key = error.key().unwrap();
            assert!(!key.as_str().starts_with("billing"), "not as it was typed: {key}");
            (error, since.elapsed())
        }
        other => panic!("{other:?}"),
    }
}

fn waits(wait: Duration) -> LockOptions {
    LockOptions::new().wait(wait)
}

fn is_unanswered(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Timeout {
            cause: TimeoutCause::NoAnswer,
            ..
        }
    )
}

#[tokio::test(start_paused = true)]
async fn a_look_counts_against_the_wait() {
    let (store, locks) = over(Silent::default()).await;
    store.reads.store(true, Ordering::SeqCst);
    let (error, took) = refused(&locks, run(OnCrash::Stop).lock(waits(SECOND * 2))).await;
    assert!(is_unanswered(&error) && took == SECOND * 2, "{error:?} {took:?}");
    let (error, took) = refused(&locks, run(OnCrash::Stop)).await;
    assert!(matches!(error, LockError::Store { .. }), "{error:?}");
    assert_eq!(took, SECOND * 5, "what the store has without a wait");
}

/// The look takes a second of three.
#[tokio::test(start_paused = true)]
async fn the_lock_is_waited_for_in_what_the_look_has_left() {
    let reading = SECOND;
    let (_store, locks) = over(Silent {
        reading,
        ..Silent::default()
    })
    .await;
    let _guard = locks.lock(KEY).acquire().await.unwrap();
    let (error, took) = refused(&locks, run(OnCrash::Stop).lock(waits(SECOND * 3))).await;
    assert!(error.is_busy() && took == SECOND * 3, "{error:?} {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_beginning_counts_against_the_wait() {
    let (store, locks) = over(Silent::default()).await;
    store.writes.store(true, Ordering::SeqCst);
    let tick = run(OnCrash::Stop).tick(SystemTime::now());
    let (error, took) = refused(&locks, tick.lock(waits(SECOND * 2))).await;
    assert!(is_unanswered(&error), "{error:?}");
    // The release of the lock is waited for, too.
    assert!(took < SECOND * 3, "{took:?}");
}

/// Ten of them, each behind the others.
#[tokio::test(start_paused = true)]
async fn a_slow_beginning_ends_with_the_lease() {
    let (store, locks) = over(Silent::default()).await;
    store.writes.store(true, Ordering::SeqCst);
    let forever = LockOptions::new().ttl(SECOND * 10).wait_forever();
    let tick = run(OnCrash::Stop).tick(SystemTime::now()).lock(forever);
    let since = Instant::now();
    let calls = join_all((0..10).map(|n| {
        let body = async |_| Ok::<_, PayError>(());
        locks.run_once(format!("tick {n}"), tick.clone(), body)
    }));
    let silence = async {
        sleep(SECOND).await;
        store.locks.store(true, Ordering::SeqCst);
    };
    let (answers, ()) = tokio::join!(calls, silence);
    for answer in answers {
        let Err(PayError::Lock(error)) = answer else {
            panic!("{answer:?}")
        };
        assert!(error.is_lost(), "{error:?}");
    }
    let took = since.elapsed();
    assert!(took < SECOND * 14, "{took:?}: the lease, and the release");
}

/// The second and the third caller share a read that begins after 3 s and takes 3 s.
#[tokio::test(start_paused = true)]
async fn a_caller_that_joins_a_read_is_measured_from_its_own_start() {
    let reading = SECOND * 3;
    let (_store, locks) = over(Silent {
        reading,
        ..Silent::default()
    })
    .await;
    let look = async |after: Duration| {
        sleep(after).await;
        locks.admin().record::<u32>(KEY).await
    };
    let (one, two, three) = tokio::join!(look(Duration::ZERO), look(SECOND / 10), look(SECOND * 29 / 10));
    assert!(one.unwrap().is_none());
    assert!(two.is_err(), "6 s after the beginning");
    assert!(three.unwrap().is_none(), "3.1 s after its own");
}

/// Somebody keeps the key by hand, and eight new keys make the ninth be taken for new.
#[tokio::test(start_paused = true)]
async fn a_replay_does_not_wait_for_the_lock() {
    let (_store, locks) = over(Silent::default()).await;
    let effects = Effects::default();
    pay(&locks, run(OnCrash::Stop), &effects).await.unwrap();
    for n in 0..8 {
        let body = async |_| Ok::<_, PayError>(());
        locks
            .run_once(format!("new {n}"), run(OnCrash::Stop), body)
            .await
            .unwrap();
    }
    let _guard = locks.lock(KEY).acquire().await.unwrap();
    let forever = run(OnCrash::Stop).lock(LockOptions::new().wait_forever());
    let replayed = tokio::time::timeout(SECOND * 60, pay(&locks, forever, &effects)).await;
    assert_eq!(replayed.expect("it hangs").unwrap(), Once::Replayed(1));
}

/// As its `wait` is over, the record has been there for an instant.
#[tokio::test(start_paused = true)]
async fn a_record_that_comes_late_is_found_before_the_wait_is_over() {
    let (_store, locks) = over(Silent::default()).await;
    let guard = locks.lock(KEY).acquire().await.unwrap();
    let effects = Effects::default();
    let late = async {
        sleep(Duration::from_millis(1_900)).await;
        guard
            .enter(pay(&locks, run(OnCrash::Stop), &effects))
            .await
            .unwrap()
            .unwrap();
    };
    let (again, ()) = tokio::join!(
        pay(&locks, run(OnCrash::Stop).lock(waits(SECOND * 2)), &effects),
        late
    );
    assert_eq!(again.unwrap(), Once::Replayed(1));
}
