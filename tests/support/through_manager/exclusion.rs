//! At most one owner is inside a key at any time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{LockError, LostReason, current};
use dblock_conformance::context::ROUNDS;
use futures_util::future::join_all;
use tokio::task::JoinSet;

use super::AnyFixture;
use super::setup::{LONG, SHORT, Setup};

/// The work that a lock protects: a read, an await, and a write.
#[derive(Debug, Default)]
struct Resource {
    inside: AtomicU32,
    overlaps: AtomicU32,
    value: AtomicU32,
}

impl Resource {
    async fn use_it(&self) {
        if self.inside.fetch_add(1, Ordering::SeqCst) > 0 {
            self.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let value = self.value.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.value.store(value + 1, Ordering::SeqCst);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Twelve tasks of two managers share two keys: no two are inside one at once, and no update is lost.
pub async fn tasks_of_two_managers_never_overlap(fixture: &dyn AnyFixture) {
    const TASKS: usize = 12;
    const TURNS: usize = 5;
    let setup = Setup::new(fixture).await;
    let keys = ["even", "odd"];
    let managers = [setup.manager().await, setup.manager().await];
    let resources: Arc<[Resource; 2]> = Arc::default();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (locks, resources) = (managers[task % 2].clone(), Arc::clone(&resources));
        tasks.spawn(async move {
            for turn in 0..TURNS {
                let which = (task / 2 + turn) % 2;
                let body = resources[which].use_it();
                locks.lock(keys[which]).wait(LONG).run(body).await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let sum = |of: fn(&Resource) -> &AtomicU32| -> u32 {
        resources
            .iter()
            .map(|resource| of(resource).load(Ordering::SeqCst))
            .sum()
    };
    assert_eq!(sum(|resource| &resource.overlaps), 0, "overlaps");
    assert_eq!(
        sum(|resource| &resource.value) as usize,
        TASKS * TURNS,
        "no update is lost"
    );
    for key in keys {
        assert!(setup.is_free(key).await);
    }
}

/// Eight callers queue in one process: they enter in the order in which they came.
pub async fn callers_of_one_process_get_in_first_come_first_served(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    let guard = locks.lock("key").acquire().await.unwrap();
    let order = Mutex::new(Vec::new());
    let callers = (0..8).map(|caller| {
        let order = &order;
        locks
            .lock("key")
            .wait(LONG)
            .run(async move { order.lock().unwrap().push(caller) })
    });
    // `join_all` polls them in order, and the release after all of them are in the queue.
    let (ended, released) = tokio::join!(join_all(callers), guard.release());
    released.unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert_eq!(order.into_inner().unwrap(), (0..8).collect::<Vec<_>>());
}

/// Keys that look alike do not wait for each other.
pub async fn other_keys_do_not_wait(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (first, second) = (setup.manager().await, setup.manager().await);
    let _one = first.lock("key").acquire().await.unwrap();
    for key in ["Key", "key ", "keY", "ke"] {
        second.lock(key).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(second.lock("key").acquire().await.unwrap_err().is_busy());
}

/// A process died inside: for others the key is busy until the lease ends; they enter soon after, with a larger
/// token.
pub async fn a_lease_left_behind_is_taken_over_when_its_ttl_is_over(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    // A lease that was passed on is short at first, and may be over when the machine stalls.
    for _ in 0..ROUNDS {
        if is_taken_over(&setup).await {
            return;
        }
    }
    panic!("the lease was lost each time");
}

async fn is_taken_over(setup: &Setup<'_>) -> bool {
    let locks = setup.manager().await;
    // Long enough to be asked for meanwhile on a busy machine.
    let dead = setup.die_inside("key", SHORT * 5).await;
    match locks.lock("key").acquire().await {
        Err(LockError::Busy { holder, .. }) => {
            let holder = holder.unwrap();
            assert_eq!((holder.owner, holder.name.as_str()), (dead.owner, "host/dead"));
        }
        other => panic!("{other:?}"),
    }
    let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
    if guard.pin().await.is_err() {
        return false;
    }
    let row = setup.the_row("key").await;
    if setup.has_clock() {
        assert!(
            row.acquired_at >= dead.expire_at,
            "not before the old lease is over"
        );
    }
    let ttl = Duration::from_secs(5);
    assert!(
        row.acquired_at >= dead.acquired_at + ttl,
        "not before its ttl is over"
    );
    assert!(
        row.acquired_at < dead.acquired_at + ttl + Duration::from_secs(10),
        "and soon after"
    );
    assert_eq!(row.owner, guard.owner());
    assert!(guard.fence_token() > dead.fence_token);
    true
}

/// A body three times as long as its ttl keeps others out under one lease.
pub async fn renewal_keeps_a_body_inside_for_three_ttls(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    // A machine that stalls for seconds loses a lease.
    for _ in 0..8 {
        if stays_inside(&setup).await {
            return;
        }
    }
    panic!("the lease was lost each time");
}

async fn stays_inside(setup: &Setup<'_>) -> bool {
    let (locks, other) = (setup.manager().await, setup.manager().await);
    // Long enough for renewals on a busy machine.
    let stayed = locks.lock("key").wait(LONG).ttl(SHORT * 3).run(async {
        let lock = current().unwrap();
        let granted = setup.the_row("key").await;
        loop {
            let refused = other
                .lock("key")
                .ttl(SHORT * 2)
                .acquire()
                .await
                .map(|guard| guard.fence_token());
            if lock.remaining().is_zero() {
                // Lost, and stopped for that.
                std::future::pending::<()>().await;
            }
            assert!(matches!(refused, Err(LockError::Busy { .. })), "{refused:?}");
            let row = setup.the_row("key").await;
            assert_eq!((row.lease_id, row.reentrant_count), (granted.lease_id, 1));
            if row.now > granted.acquired_at + Duration::from_secs(9) {
                return row.fence_token == granted.fence_token;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    match stayed.await {
        Err(LockError::Lost {
            reason: LostReason::Expired,
            ..
        }) => return false,
        stayed => assert!(stayed.unwrap(), "renewal keeps the token"),
    }
    setup.until_free("key").await;
    true
}
