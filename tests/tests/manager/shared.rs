//! Shared and limited locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use dblock::store::{
    Capabilities, MemoryStore, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture,
};
use dblock::{LockError, LockManager, LostReason, OnCrash, OnLost, RunOptions};
use dblock_tests::{Backend, on_every_store};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{SHORT, long, patient, short};

on_every_store!(
    readers_run_beside_each_other_and_beside_no_writer,
    a_limit_is_never_exceeded,
    each_call_counts_all_by_its_own_limit,
    a_chain_that_shares_re_enters_and_does_not_get_it_alone,
    one_who_gives_up_leaves_the_others_inside,
    a_loss_ends_all_who_share,
    max_hold_ends_one_of_those_who_share,
    the_unit_of_a_process_that_died_comes_back,
    a_thousand_calls_share_a_limit,
    what_needs_the_lock_alone_is_refused,
);

/// How many are inside, and how many have been at once.
#[derive(Default)]
struct Inside {
    now: AtomicU32,
    most: AtomicU32,
}

impl Inside {
    fn enter(&self) -> u32 {
        let inside = self.now.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(inside, SeqCst);
        inside
    }

    fn leave(&self) {
        self.now.fetch_sub(1, SeqCst);
    }

    fn most(&self) -> u32 {
        self.most.load(SeqCst)
    }
}

async fn readers_run_beside_each_other_and_beside_no_writer(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let all_inside = Barrier::new(4);
    let reader = |locks: &LockManager| {
        let locks = locks.clone();
        let all_inside = &all_inside;
        async move {
            let read = locks.lock("key").options(&patient()).shared().run(async {
                all_inside.wait().await;
                assert!(
                    locks
                        .lock("other")
                        .options(&patient())
                        .shared()
                        .run(async {})
                        .await
                        .is_ok()
                );
                let busy = two_alone(&locks).await;
                all_inside.wait().await;
                busy
            });
            assert!(read.await.unwrap(), "a writer got in");
        }
    };
    tokio::join!(reader(&one), reader(&one), reader(&two), reader(&two));
    let writer = one.lock("key").options(&long()).acquire().await.unwrap();
    for locks in [&one, &two] {
        let busy = locks
            .lock("key")
            .options(&long())
            .shared()
            .acquire()
            .await
            .unwrap_err();
        assert!(busy.is_busy(), "{busy}");
    }
    writer.release().await.unwrap();
    assert!(one.lock("key").shared().try_acquire().await.unwrap().is_some());
}

/// A call of another chain finds the key busy.
async fn two_alone(locks: &LockManager) -> bool {
    let locks = locks.clone();
    let alone = tokio::spawn(async move { locks.lock("key").options(&long()).try_acquire().await });
    alone.await.unwrap().unwrap().is_none()
}

async fn a_limit_is_never_exceeded(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let inside = Inside::default();
    let call = async |locks: &LockManager| {
        for _ in 0..20 {
            let body = async {
                assert!(inside.enter() <= 3);
                sleep(Duration::from_millis(1)).await;
                inside.leave();
            };
            locks
                .lock("key")
                .options(&patient())
                .limit(3)
                .run(body)
                .await
                .unwrap();
        }
    };
    let calls = (0..16).map(|number| call(if number % 2 == 0 { &one } else { &two }));
    futures_util::future::join_all(calls).await;
    assert_eq!(inside.most(), 3, "the room was used");
}

async fn each_call_counts_all_by_its_own_limit(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let limited = async |locks: &LockManager, limit| {
        let lock = locks.lock("key").options(&long()).limit(limit);
        lock.try_acquire().await.unwrap()
    };
    for (here, there) in [(&one, &two), (&one, &one)] {
        let two_inside = [limited(here, 3).await.unwrap(), limited(there, 3).await.unwrap()];
        assert!(limited(here, 2).await.is_none() && limited(there, 1).await.is_none());
        let third = limited(there, 3).await.unwrap();
        assert!(limited(here, 3).await.is_none());
        let fourth = limited(here, 4).await.unwrap();
        third.release().await.unwrap();
        fourth.release().await.unwrap();
        for guard in two_inside {
            guard.release().await.unwrap();
        }
        let alone = here.lock("key").options(&long()).acquire().await.unwrap();
        alone.release().await.unwrap();
    }
}

async fn a_chain_that_shares_re_enters_and_does_not_get_it_alone(backend: Backend) {
    let locks = backend.manager().await;
    let lock = || locks.lock("key").options(&patient());
    let inner = lock().shared().run(async {
        let again = lock()
            .shared()
            .run(async { dblock::current().unwrap().hold_count() })
            .await;
        assert_eq!(again.unwrap(), 2);
        let inside = dblock::current().unwrap().inside().await;
        assert_eq!(inside.unwrap(), 1, "one chain, which has entered twice");
        lock().run(async {}).await.unwrap_err()
    });
    let refused = inner.await.unwrap();
    assert!(matches!(refused, LockError::Invalid { .. }), "{refused:?}");
    assert!(refused.to_string().contains("now wants it alone"), "{refused}");
    lock()
        .run(async { lock().shared().run(async {}).await })
        .await
        .unwrap()
        .unwrap();
}

async fn one_who_gives_up_leaves_the_others_inside(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let inside = one.lock("key").options(&long()).limit(2).acquire().await.unwrap();
    let beside = two.lock("key").options(&long()).limit(2).acquire().await.unwrap();
    assert_eq!(inside.inside().await.unwrap(), 2);
    for locks in [&one, &two] {
        let waits = locks
            .lock("key")
            .options(&long())
            .limit(2)
            .wait(Duration::from_millis(300));
        let refused = waits.acquire().await.unwrap_err();
        assert!(matches!(refused, LockError::Timeout { .. }), "{refused:?}");
    }
    assert!(!inside.is_lost() && !beside.is_lost());
    beside.release().await.unwrap();
    let next = two
        .lock("key")
        .options(&patient())
        .limit(2)
        .acquire()
        .await
        .unwrap();
    next.release().await.unwrap();
    inside.release().await.unwrap();
}

async fn a_loss_ends_all_who_share(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let options = short().shared();
    let guards = [
        one.lock("key").options(&options).acquire().await.unwrap(),
        one.lock("key").options(&options).acquire().await.unwrap(),
        two.lock("key").options(&options).acquire().await.unwrap(),
    ];
    assert!(one.admin().force_release("key").await.unwrap());
    for guard in &guards {
        let lost = guard.lost().await;
        assert!(
            matches!(
                lost,
                LockError::Lost {
                    reason: LostReason::Gone | LostReason::Expired,
                    ..
                }
            ),
            "{lost:?}"
        );
    }
    let next = two.lock("key").options(&patient()).acquire().await.unwrap();
    assert!(
        guards
            .iter()
            .all(|guard| guard.fence_token() < next.fence_token())
    );
    drop(guards);
    next.release().await.unwrap();
    let guards = [
        one.lock("key").options(&options).acquire().await.unwrap(),
        two.lock("key").options(&options).acquire().await.unwrap(),
    ];
    assert!(one.admin().revoke("key").await.unwrap());
    for guard in guards {
        let lost = guard.lost().await;
        assert!(
            matches!(
                lost,
                LockError::Lost {
                    reason: LostReason::Revoked,
                    ..
                }
            ),
            "{lost:?}"
        );
    }
}

async fn max_hold_ends_one_of_those_who_share(backend: Backend) {
    let locks = backend.manager().await;
    let stays = locks
        .lock("key")
        .options(&long())
        .shared()
        .acquire()
        .await
        .unwrap();
    let ends = long()
        .shared()
        .max_hold(Duration::from_millis(200))
        .on_lost(OnLost::Signal);
    let ends = locks.lock("key").options(&ends).acquire().await.unwrap();
    let short = long().ttl(SHORT).renew(false).shared();
    let not_renewed = locks.lock("key").options(&short).acquire().await.unwrap();
    for (guard, expected) in [(&ends, LostReason::MaxHold), (&not_renewed, LostReason::Expired)] {
        let lost = guard.lost().await;
        assert!(
            matches!(lost, LockError::Lost { reason, .. } if reason == expected),
            "{lost:?}"
        );
    }
    assert!(!stays.is_lost());
    let beside = locks
        .lock("key")
        .options(&long())
        .shared()
        .acquire()
        .await
        .unwrap();
    beside.release().await.unwrap();
    drop((ends, not_renewed));
    stays.release().await.unwrap();
    assert!(locks.lock("key").options(&patient()).acquire().await.is_ok());
}

async fn the_unit_of_a_process_that_died_comes_back(backend: Backend) {
    let locks = backend.manager().await;
    let stays = locks
        .lock("key")
        .options(&long())
        .limit(2)
        .acquire()
        .await
        .unwrap();
    let dies = backend.manager().await;
    let unit = dies
        .lock("key")
        .options(&short())
        .limit(2)
        .renew(false)
        .acquire()
        .await
        .unwrap();
    std::mem::forget(unit);
    let since = Instant::now();
    let next = locks
        .lock("key")
        .options(&patient())
        .limit(2)
        .acquire()
        .await
        .unwrap();
    assert!(since.elapsed() >= SHORT / 2, "{:?}", since.elapsed());
    next.release().await.unwrap();
    stays.release().await.unwrap();
}

async fn a_thousand_calls_share_a_limit(backend: Backend) {
    let managers = [
        backend.manager().await,
        backend.manager().await,
        backend.manager().await,
    ];
    let inside = Arc::new(Inside::default());
    let mut calls = JoinSet::new();
    for number in 0..1_000 {
        let (locks, inside) = (managers[number % 3].clone(), Arc::clone(&inside));
        calls.spawn(async move {
            let body = async {
                assert!(inside.enter() <= 7);
                tokio::task::yield_now().await;
                inside.leave();
            };
            locks
                .lock("key")
                .options(&patient())
                .limit(7)
                .run(body)
                .await
                .unwrap();
        });
    }
    calls.join_all().await;
    assert_eq!(inside.now.load(SeqCst), 0);
}

async fn what_needs_the_lock_alone_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let refused = |error: LockError, word: &str| {
        assert!(matches!(error, LockError::Invalid { .. }), "{error:?}");
        assert!(error.to_string().contains(word), "{error}");
    };
    let guard = async || {
        locks
            .lock("key")
            .options(&long())
            .shared()
            .acquire()
            .await
            .unwrap()
    };
    refused(guard().await.into_ticket(SHORT).await.unwrap_err(), "tickets");
    refused(guard().await.pin().await.unwrap_err(), "without `shared`");
    refused(
        locks.lock(["a", "b"]).shared().acquire().await.unwrap_err(),
        "several keys",
    );
    refused(
        locks.lock("key").limit(0).acquire().await.unwrap_err(),
        "limit is 0",
    );
    refused(
        locks.lock("key").shared().lead(async |_| ()).await.unwrap_err(),
        "one node leads",
    );
    refused(
        locks
            .lock("key")
            .limit(3)
            .hold_min(SHORT)
            .acquire()
            .await
            .unwrap_err(),
        "hold_min",
    );
    let run = RunOptions::new(SHORT, OnCrash::Stop).lock(long().shared());
    let ran = locks.run_once("run", run, async |_| Ok::<_, LockError>(())).await;
    refused(ran.unwrap_err(), "its body runs alone");
}

/// A store without shared holds, around one that has them.
#[derive(Debug)]
struct Alone {
    inner: Arc<dyn Store>,
}

impl Store for Alone {
    fn capabilities(&self) -> Capabilities {
        let mut can = self.inner.capabilities();
        can.shares = false;
        can
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.inner.apply(requests)
    }

    dblock_conformance::forward_to_inner!();
}

#[tokio::test]
async fn a_store_without_shared_locks_says_so() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let alone: Arc<dyn Store> = Arc::new(Alone { inner });
    let locks = LockManager::builder(alone).build().await.unwrap();
    for lock in [locks.lock("key").shared(), locks.lock("key").limit(3)] {
        let refused = lock.acquire().await.unwrap_err();
        let LockError::Store { source, .. } = &refused else {
            panic!("{refused:?}");
        };
        assert_eq!(source.kind(), StoreErrorKind::Unsupported);
        assert!(
            refused.to_string().contains("no shared or limited locks"),
            "{refused}"
        );
    }
}
