//! An ensemble of three: no fail-over forgets a lock, and without a majority there is none.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, Severity};
use dblock_servers::{Ensemble, Kind, Purpose};
use dblock_zookeeper::ZookeeperStore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{installed, options};

/// No test waits longer for anything.
const TIMEOUT: Duration = Duration::from_mins(1);

async fn fresh() -> Option<Ensemble> {
    if !installed() {
        return None;
    }
    Some(Ensemble::fresh(Kind::ZooKeeper, Purpose::Tests).await.unwrap())
}

async fn manager(ensemble: &Ensemble) -> LockManager {
    let store = ZookeeperStore::new(ensemble.url()).unwrap();
    LockManager::builder(store).build().await.unwrap()
}

/// The place of the leader, once there is one that is not `former`.
async fn leader(ensemble: &Ensemble, former: Option<usize>) -> usize {
    let elected = async {
        loop {
            match ensemble.leader().await {
                Some(leader) if Some(leader) != former => return leader,
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    };
    timeout(TIMEOUT, elected).await.expect("a leader is elected")
}

/// A ttl that outlives an election on a slow machine.
fn long() -> LockOptions {
    options().ttl(Duration::from_secs(30))
}

/// Asks again while a connection breaks, as those to a former leader do when it finds out.
async fn answered<T: std::fmt::Debug>(ask: impl AsyncFn() -> Result<T, LockError>) -> T {
    let answer = async {
        loop {
            match ask().await {
                Err(LockError::Store { source, .. }) if source.kind() == StoreErrorKind::Unreachable => {}
                answer => return answer.unwrap(),
            }
        }
    };
    timeout(TIMEOUT, answer).await.expect("it is answered")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_fail_over_forgets_a_lock() {
    let Some(mut ensemble) = fresh().await else { return };
    let (one, other) = (manager(&ensemble).await, manager(&ensemble).await);
    let guard = one.lock("k").options(&long()).acquire().await.unwrap();
    let token = guard.fence_token();
    let still_held = async |when: &str| {
        let row = answered(async || other.admin().get("k").await).await.unwrap();
        assert!(row.is_held() && row.fence_token == token, "{when}: {row:?}");
        let busy = answered(async || other.lock("k").try_acquire().await).await;
        assert!(busy.is_none(), "{when}");
        answered(async || guard.extend(Duration::from_secs(30)).await).await;
    };

    let findings = other.admin().diagnose().await.unwrap();
    let servers = findings
        .iter()
        .find(|finding| finding.check == "servers")
        .unwrap();
    assert_eq!(servers.severity, Severity::Fine, "{servers:?}");
    assert!(servers.found.contains('3'), "{servers:?}");

    let killed = leader(&ensemble, None).await;
    ensemble.servers[killed].kill();
    leader(&ensemble, Some(killed)).await;
    still_held("the leader was killed").await;
    ensemble.restart_killed().await.unwrap();

    let stopped = leader(&ensemble, None).await;
    ensemble.servers[stopped].pause().unwrap();
    leader(&ensemble, Some(stopped)).await;
    still_held("the leader is stopped").await;
    ensemble.servers[stopped].wake().unwrap();
    still_held("the former leader was woken").await;

    guard.release().await.unwrap();
    let next = other.lock("k").options(&long()).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_granted_and_bodies_are_stopped() {
    let Some(mut ensemble) = fresh().await else { return };
    let (one, other) = (manager(&ensemble).await, manager(&ensemble).await);
    let held = LockOptions::new().ttl(Duration::from_secs(5));
    let inside = Arc::new(AtomicBool::new(false));
    let body = tokio::spawn({
        let inside = Arc::clone(&inside);
        async move {
            one.lock("held")
                .options(&held)
                .run(async {
                    inside.store(true, Ordering::SeqCst);
                    std::future::pending::<()>().await;
                })
                .await
        }
    });
    while !inside.load(Ordering::SeqCst) {
        sleep(Duration::from_millis(5)).await;
    }
    for place in 0..2 {
        ensemble.servers[place].kill();
    }
    for key in ["held", "free"] {
        let error = other
            .lock(key)
            .wait(Duration::from_secs(1))
            .acquire()
            .await
            .unwrap_err();
        assert!(
            matches!(error, LockError::Store { .. } | LockError::Timeout { .. }),
            "{key}: {error:?}"
        );
        assert!(error.is_retryable(), "{key}: {error}");
    }
    let stopped = timeout(TIMEOUT, body)
        .await
        .expect("the body is stopped")
        .unwrap();
    assert!(stopped.unwrap_err().is_lost());

    ensemble.restart_killed().await.unwrap();
    for key in ["held", "free"] {
        other
            .lock(key)
            .options(&long())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// The code that all bodies share.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    tokens: Mutex<Vec<i64>>,
    closing: AtomicBool,
}

/// Somebody inside; gone when dropped, as a body is that has lost its lock.
struct Inside<'a>(&'a Room);

impl Room {
    fn enter(&self, token: i64) -> Inside<'_> {
        assert_eq!(
            self.inside.fetch_add(1, Ordering::SeqCst),
            0,
            "two owners are inside at once"
        );
        let mut tokens = self.tokens.lock().unwrap();
        assert!(tokens.last() < Some(&token), "{token} after {:?}", tokens.last());
        tokens.push(token);
        Inside(self)
    }

    fn entered(&self) -> usize {
        self.tokens.lock().unwrap().len()
    }

    /// Waits until the lock has changed hands many times more.
    async fn goes_on(&self, when: &str) {
        let before = self.entered();
        let more = async {
            while self.entered() < before + 20 {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = timeout(TIMEOUT, more).await;
        assert!(
            in_time.is_ok(),
            "only {} owners came {when}",
            self.entered() - before
        );
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Eight callers of four processes compete for a key while servers are killed, stopped and woken.
#[tokio::test(flavor = "multi_thread")]
async fn one_owner_at_a_time_while_servers_fail() {
    let Some(mut ensemble) = fresh().await else { return };
    let room = Arc::new(Room::default());
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        let locks = manager(&ensemble).await;
        for _ in 0..2 {
            let (locks, room) = (locks.clone(), Arc::clone(&room));
            callers.spawn(async move {
                while !room.closing.load(Ordering::SeqCst) {
                    let options = options().ttl(Duration::from_secs(5));
                    // An error is one that the fault explains; what counts is who was inside.
                    let _ = locks
                        .lock("hot")
                        .options(&options)
                        .run(async {
                            let token = dblock::current().unwrap().fence_token();
                            let _inside = room.enter(token);
                            // Some need several renewals.
                            let long = fastrand::u8(..16) == 0;
                            sleep(Duration::from_millis(if long { 2_500 } else { 5 })).await;
                        })
                        .await;
                }
            });
        }
    }
    room.goes_on("at the start").await;
    let killed = leader(&ensemble, None).await;
    ensemble.servers[killed].kill();
    room.goes_on("after the leader was killed").await;
    ensemble.restart_killed().await.unwrap();

    let stopped = leader(&ensemble, None).await;
    ensemble.servers[stopped].pause().unwrap();
    room.goes_on("while the former leader is stopped").await;
    ensemble.servers[stopped].wake().unwrap();
    room.goes_on("after the former leader was woken").await;

    for server in &mut ensemble.servers {
        server.kill();
    }
    ensemble.restart_killed().await.unwrap();
    room.goes_on("after all servers were killed").await;
    room.closing.store(true, Ordering::SeqCst);
    callers.join_all().await;
}
