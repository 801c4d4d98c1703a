//! Calls that end, or whose lease ends, before their body begins: nothing of them is in doubt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use dblock::store::{Record, RecordState, RecordWrite, Records, Store, StoreError, StoreFuture};
use dblock::{
    Key, LockError, LockManager, LockOptions, LostReason, OnCrash, OnLost, Once, RunOptions, current, inherit,
};
use dblock_conformance::Fixture;
use dblock_tests::around::{Around, Between};
use dblock_tests::poll::{DropWhen, drop_after};
use dblock_tests::{Backend, on_every_store};
use tokio::sync::Notify;

use crate::{Effects, KEY, LONG, PayError, SHORT, decline, pay, record, run, state};

on_every_store!(
    a_beginning_that_nobody_enters_is_taken_back,
    a_beginning_that_comes_late_changes_nothing,
    a_call_that_is_cut_under_an_outer_lock_can_be_repeated_there,
    cut_calls_use_up_no_attempt,
    wherever_a_call_is_cut_only_its_body_leaves_a_doubt,
    what_is_read_after_the_lease_has_ended_is_no_crash,
    a_record_of_a_later_lease_shows_that_the_lock_is_lost,
    an_outcome_leaves_the_lost_lock_to_the_child_inside,
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Before a beginning is written.
    Begin,
    /// After that.
    Begun,
    /// Before the record is read for the second time.
    Read,
}

/// Around a store: one call stands still.
#[derive(Debug)]
struct Still {
    at: At,
    reads: AtomicI64,
    stood: AtomicBool,
    came: Notify,
    goes: Notify,
    done: Notify,
}

impl Still {
    async fn around(backend: &Backend, at: At) -> (Arc<Around<Self>>, LockManager) {
        let still = Self {
            at,
            reads: AtomicI64::new(0),
            stood: AtomicBool::new(false),
            came: Notify::new(),
            goes: Notify::new(),
            done: Notify::new(),
        };
        let store = Around::new(backend.store().await, still);
        let locks = LockManager::builder(Arc::clone(&store) as Arc<dyn Store>)
            .build_lazy()
            .unwrap();
        (store, locks)
    }

    async fn stand(&self, at: At) {
        if at == self.at && !self.stood.swap(true, Ordering::SeqCst) {
            self.came.notify_one();
            self.goes.notified().await;
        }
    }
}

impl Between for Still {
    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            if self.reads.fetch_add(1, Ordering::SeqCst) == 1 {
                self.stand(At::Read).await;
            }
            records.read_all(keys).await
        })
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        let begins = write.change.entry().map(|entry| entry.state) == Some(RecordState::Processing);
        if !begins {
            return records.write(write);
        }
        Box::pin(async move {
            self.stand(At::Begin).await;
            let written = records.write(write).await;
            self.stand(At::Begun).await;
            self.done.notify_one();
            written
        })
    }
}

/// It begins by a write of its own.
fn tick(on_crash: OnCrash) -> RunOptions {
    run(on_crash).tick(SystemTime::now())
}

fn patient(options: RunOptions) -> RunOptions {
    options.lock(LockOptions::new().ttl(LONG).wait(LONG))
}

/// Drops a call where it stands still.
async fn cut(store: &Still, locks: &LockManager, options: RunOptions) {
    tokio::select! {
        ended = locks.run_once(KEY, options, async |_| Ok::<_, PayError>(0)) => panic!("{ended:?}"),
        () = store.came.notified() => {}
    }
}

async fn a_beginning_that_nobody_enters_is_taken_back(backend: Backend) {
    let effects = Effects::default();
    let other = backend.manager().await;

    let (store, locks) = Still::around(&backend, At::Begun).await;
    cut(&store, &locks, tick(OnCrash::Stop)).await;
    let ran = pay(&other, patient(tick(OnCrash::Stop)), &effects).await;
    assert_eq!(ran.unwrap(), Once::Ran(1), "it was a tick");
    assert_eq!(state(&other).await, (RecordState::Succeeded, 1));
    assert!(other.admin().forget(&record(&other).await).await.unwrap());

    // Its pause is over at once.
    decline(&other, run(OnCrash::Stop)).await;
    let (store, locks) = Still::around(&backend, At::Begun).await;
    cut(
        &store,
        &locks,
        run(OnCrash::Stop).backoff(Duration::from_nanos(1)),
    )
    .await;
    let ran = pay(&other, patient(run(OnCrash::Stop)), &effects).await;
    assert_eq!(ran.unwrap(), Once::Ran(2), "it came after a pause");
    assert_eq!(state(&other).await, (RecordState::Succeeded, 2));
    assert!(other.admin().forget(&record(&other).await).await.unwrap());

    decline(&other, run(OnCrash::Stop)).await;
    let (store, locks) = Still::around(&backend, At::Begun).await;
    for n in 0..8 {
        let body = async |_| Ok::<_, PayError>(n);
        locks
            .run_once(format!("new {n}"), run(OnCrash::Stop), body)
            .await
            .unwrap();
    }
    cut(&store, &locks, run(OnCrash::Stop)).await;
    let ran = pay(&other, patient(run(OnCrash::Stop)), &effects).await;
    assert_eq!(ran.unwrap(), Once::Ran(3), "its key was taken for new");
    assert_eq!(state(&other).await, (RecordState::Succeeded, 2));
}

/// The write of a call that was dropped is carried out after the lock was released.
async fn a_beginning_that_comes_late_changes_nothing(backend: Backend) {
    let (store, locks) = Still::around(&backend, At::Begin).await;
    let other = backend.manager().await;
    cut(&store, &locks, tick(OnCrash::Stop)).await;
    let guard = other.lock(KEY).wait(LONG).acquire().await.unwrap();
    guard.release().await.unwrap();
    store.goes.notify_one();
    store.done.notified().await;
    assert!(other.admin().record::<u32>(KEY).await.unwrap().is_none());
}

async fn a_call_that_is_cut_under_an_outer_lock_can_be_repeated_there(backend: Backend) {
    for at in [At::Begin, At::Begun] {
        let (store, locks) = Still::around(&backend, at).await;
        let effects = Effects::default();
        let all = locks.lock(KEY).ttl(LONG).run(async {
            cut(&store, &locks, run(OnCrash::Stop)).await;
            store.goes.notify_one();
            store.done.notified().await;
            pay(&locks, run(OnCrash::Stop).max_attempts(1), &effects).await
        });
        assert_eq!(all.await.unwrap().unwrap(), Once::Ran(1), "{at:?}");
        assert_eq!(state(&locks).await, (RecordState::Succeeded, 1));
        assert!(locks.admin().forget(&record(&locks).await).await.unwrap());
    }
}

async fn cut_calls_use_up_no_attempt(backend: Backend) {
    let other = backend.manager().await;
    let effects = Effects::default();
    for _ in 0..3 {
        let (store, locks) = Still::around(&backend, At::Begun).await;
        cut(&store, &locks, patient(tick(OnCrash::Retry)).max_attempts(1)).await;
    }
    let ran = pay(&other, patient(tick(OnCrash::Retry)).max_attempts(1), &effects).await;
    assert_eq!(ran.unwrap(), Once::Ran(1));
    assert_eq!(record(&other).await.attempts, 1);
}

/// A call is dropped at each of its awaits.
async fn wherever_a_call_is_cut_only_its_body_leaves_a_doubt(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let ways = [run as fn(OnCrash) -> RunOptions, tick];
    for (way, when, polls) in ways.iter().enumerate().flat_map(|(way, _)| {
        [DropWhen::Waiting, DropWhen::Woken]
            .into_iter()
            .flat_map(move |when| (1..12).map(move |polls| (way, when, polls)))
    }) {
        let options = || patient(ways[way](OnCrash::Stop));
        let key = format!("cut {way} {when:?} {polls}");
        let entered = AtomicBool::new(false);
        let body = async |_| {
            entered.store(true, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok::<_, PayError>(1)
        };
        drop_after(locks.run_once(&key, options(), body), polls, when).await;
        if entered.load(Ordering::SeqCst) {
            continue;
        }
        let again = other
            .run_once(&key, options(), async |_| Ok::<_, PayError>(2))
            .await;
        assert_eq!(again.unwrap(), Once::Ran(2), "{key}");
    }
}

/// Another process has taken over, and runs.
async fn what_is_read_after_the_lease_has_ended_is_no_crash(backend: Backend) {
    let (store, locks) = Still::around(&backend, At::Read).await;
    let other = backend.manager().await;
    let began = Notify::new();
    let crash = other.run_once(KEY, run(OnCrash::Stop), async |_| {
        began.notify_one();
        std::future::pending::<Result<u32, PayError>>().await
    });
    tokio::select! {
        ended = crash => panic!("{ended:?}"),
        () = began.notified() => {}
    }
    let (runs, ends) = (Notify::new(), Notify::new());
    let short = LockOptions::new().ttl(SHORT).renew(false).wait(LONG);
    let doubts = async {
        locks
            .run_once(KEY, run(OnCrash::Stop).lock(short), async |_| {
                Ok::<_, PayError>(0)
            })
            .await
    };
    let takes_over = async {
        store.came.notified().await;
        let body = async |_| {
            runs.notify_one();
            ends.notified().await;
            Ok::<_, PayError>(7)
        };
        other.run_once(KEY, patient(run(OnCrash::Retry)), body).await
    };
    let reads = async {
        runs.notified().await;
        store.goes.notify_one();
    };
    let judged = async {
        let (answer, ()) = tokio::join!(doubts, reads);
        ends.notify_one();
        answer
    };
    let (judged, ran) = tokio::join!(judged, takes_over);
    assert!(
        matches!(judged, Err(PayError::Lock(LockError::Lost { .. }))),
        "{judged:?}"
    );
    assert_eq!(ran.unwrap(), Once::Ran(7));
}

/// The lease is freed before its beginning is written, and the manager does not know it yet. Whoever took the
/// lock over runs, and its record is no crash.
async fn a_record_of_a_later_lease_shows_that_the_lock_is_lost(backend: Backend) {
    let other = backend.manager().await;
    for on_crash in [OnCrash::Stop, OnCrash::Retry] {
        let (store, locks) = Still::around(&backend, At::Begin).await;
        let (runs, ends) = (Notify::new(), Notify::new());
        let late = async {
            let body = async |_| Ok::<_, PayError>(0);
            let answer = locks.run_once(KEY, tick(on_crash), body).await;
            ends.notify_one();
            answer
        };
        let takes_over = async {
            store.came.notified().await;
            assert!(other.admin().force_release(KEY).await.unwrap());
            let body = async |_| {
                runs.notify_one();
                ends.notified().await;
                Ok::<_, PayError>(7)
            };
            other.run_once(KEY, run(OnCrash::Stop), body).await
        };
        let goes_on = async {
            runs.notified().await;
            store.goes.notify_one();
        };
        let (late, ran, ()) = tokio::join!(late, takes_over, goes_on);
        let lost = |error: &PayError| {
            let PayError::Lock(LockError::Lost { reason, .. }) = error else {
                return false;
            };
            *reason == LostReason::Gone
        };
        assert!(late.as_ref().is_err_and(lost), "{on_crash:?}: {late:?}");
        assert_eq!(ran.unwrap(), Once::Ran(7));
        assert_eq!(state(&other).await, (RecordState::Succeeded, 1));
        assert!(other.admin().forget(&record(&other).await).await.unwrap());
    }
}

/// The store's lease lives on when the local deadline has passed.
async fn an_outcome_leaves_the_lost_lock_to_the_child_inside(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let ends = Arc::new(Notify::new());
    let options = LockOptions::new()
        .ttl(LONG)
        .max_hold(SHORT)
        .on_lost(OnLost::Signal);
    let all = locks.lock(KEY).options(&options).run(async {
        let end = Arc::clone(&ends);
        let child = tokio::spawn(inherit(async move { end.notified().await }));
        let body = async |_| {
            current().unwrap().lost().await;
            Ok::<_, PayError>(7)
        };
        let ran = locks.run_once(
            KEY,
            run(OnCrash::Stop).lock(LockOptions::new().on_lost(OnLost::Signal)),
            body,
        );
        assert_eq!(ran.await.unwrap(), Once::Ran(7));
        Some(child)
    });
    let child = all.await.unwrap().unwrap();
    assert_eq!(state(&other).await, (RecordState::Succeeded, 1));
    let busy = other.lock(KEY).acquire().await;
    assert!(busy.is_err_and(|error| error.is_busy()), "the child is inside");
    ends.notify_one();
    let _ = child.await.unwrap();
}
