//! Several handles at once: at most one owner at any time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock_core::store::{Outcome, Released, Store};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::AnyFixture;
use super::context::{Asker, Grant, LONG, batch, granted, one, within};

/// How many askers hold one key, and the tokens in the order of their grants.
#[derive(Default)]
struct Room {
    inside: AtomicUsize,
    tokens: Mutex<Vec<i64>>,
}

impl Room {
    fn enter(&self, token: i64) {
        assert_eq!(
            self.inside.fetch_add(1, Ordering::SeqCst),
            0,
            "two owners are inside at once"
        );
        self.tokens.lock().expect("no check panicked inside").push(token);
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn assert_entered(&self, times: usize) {
        let tokens = self.tokens.lock().expect("no check panicked inside");
        assert_eq!(tokens.len(), times);
        assert!(
            tokens.is_sorted_by(|a, b| a < b),
            "tokens do not grow in the order of the grants: {tokens:?}"
        );
    }
}

async fn finish(mut tasks: JoinSet<()>) {
    within("all racers to finish", async {
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                std::panic::resume_unwind(error.into_panic());
            }
        }
    })
    .await;
}

async fn pause() {
    tokio::time::sleep(Duration::from_micros(fastrand::u64(100..2_000))).await;
}

/// Eight handles race for one key, twenty times each.
pub async fn one_owner_at_a_time(fixture: &dyn AnyFixture) {
    const ROUNDS: usize = 20;
    let room = Arc::new(Room::default());
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (store, room) = (fixture.store().await, Arc::clone(&room));
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let asker = Asker::new("race");
                let token = enter_alone(&*store, &asker).await;
                room.enter(token);
                tokio::task::yield_now().await;
                room.leave();
                assert_eq!(
                    one(&*store, asker.release()).await,
                    Outcome::Released(Released::Freed)
                );
            }
        });
    }
    finish(tasks).await;
    room.assert_entered(8 * ROUNDS);
}

async fn enter_alone(store: &dyn Store, asker: &Asker) -> i64 {
    loop {
        match one(store, asker.acquire(LONG)).await {
            Outcome::Granted {
                fence_token,
                taken_over: None,
                ..
            } => return fence_token,
            Outcome::Busy(_) => pause().await,
            other => panic!("a racer was answered with {other:?}"),
        }
    }
}

/// Four handles send batches over the same ten keys, half of them in the opposite order.
pub async fn crossing_batches_exclude_each_other(fixture: &dyn AnyFixture) {
    const ROUNDS: usize = 10;
    const KEYS: usize = 10;
    let rooms: Arc<Vec<Room>> = Arc::new((0..KEYS).map(|_| Room::default()).collect());
    let mut tasks = JoinSet::new();
    for racer in 0..4 {
        let (store, rooms) = (fixture.store().await, Arc::clone(&rooms));
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                let mut askers: Vec<(usize, Asker)> = (0..KEYS)
                    .map(|n| (n, Asker::new(&format!("cross {n}"))))
                    .collect();
                if racer % 2 == 1 {
                    askers.reverse();
                }
                // Busy keys are asked for again, until each was entered once in the round.
                while !askers.is_empty() {
                    let acquires: Vec<_> = askers.iter().map(|(_, asker)| asker.acquire(LONG)).collect();
                    let outcomes = batch(&*store, &acquires).await;
                    let mut inside = Vec::new();
                    let mut outside = Vec::new();
                    for ((n, asker), outcome) in askers.drain(..).zip(outcomes) {
                        match outcome {
                            Outcome::Granted { fence_token, .. } => {
                                rooms[n].enter(fence_token);
                                inside.push((n, asker));
                            }
                            Outcome::Busy(_) => outside.push((n, asker)),
                            other => panic!("a racer was answered with {other:?}"),
                        }
                    }
                    tokio::task::yield_now().await;
                    for (n, _) in &inside {
                        rooms[*n].leave();
                    }
                    let releases: Vec<_> = inside.iter().map(|(_, asker)| asker.release()).collect();
                    for outcome in batch(&*store, &releases).await {
                        assert_eq!(outcome, Outcome::Released(Released::Freed));
                    }
                    if !outside.is_empty() {
                        pause().await;
                    }
                    askers = outside;
                }
            }
        });
    }
    finish(tasks).await;
    for room in &*rooms {
        room.assert_entered(4 * ROUNDS);
    }
}

/// Four handles ask at once for keys that have no row yet, alone and in batches of any order: each is granted
/// once.
pub async fn fresh_keys_are_granted_once(fixture: &dyn AnyFixture) {
    const RACERS: usize = 4;
    let mut stores = Vec::new();
    for _ in 0..RACERS {
        stores.push(fixture.store().await);
    }
    for round in 0..40 {
        for size in [1, 10] {
            let start = Arc::new(Barrier::new(RACERS));
            let mut racers = JoinSet::new();
            for store in &stores {
                let (store, start) = (Arc::clone(store), Arc::clone(&start));
                let name = |n| format!("fresh {round} of {size}: {n}");
                let mut requests: Vec<_> = (0..size).map(|n| Asker::new(&name(n)).acquire(LONG)).collect();
                fastrand::shuffle(&mut requests);
                racers.spawn(async move {
                    start.wait().await;
                    let outcomes = batch(&*store, &requests).await;
                    let granted = |outcome: &&Outcome| matches!(outcome, Outcome::Granted { .. });
                    outcomes.iter().filter(granted).count()
                });
            }
            let granted: usize = within("all racers", racers.join_all()).await.iter().sum();
            assert_eq!(granted, size, "a key was granted twice or not at all");
        }
    }
}

/// The same acquire arrives over two handles at once: one grant, answered twice.
pub async fn repeated_requests_from_two_handles_agree(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    for round in 0..20 {
        let asker = Asker::new(&format!("twice {round}"));
        let request = asker.acquire(LONG);
        let copy = {
            let (other, request) = (Arc::clone(&other), request.clone());
            tokio::spawn(async move { one(&*other, request).await })
        };
        let first = granted(&*store, request.clone()).await;
        let second = Grant::of(&request, copy.await.expect("the copy is answered"));
        assert_eq!(first.fence_token, second.fence_token);
    }
}
