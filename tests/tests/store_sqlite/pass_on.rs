//! A release that passes the row on, alone and in a batch.

use std::time::Duration;

use dblock::store::{NEXT_TTL, Outcome, Request, Store, StoreErrorKind};
use uuid::Uuid;

use crate::{File, TTL, acquire, ask, asking, assert_error, execute, granted, one, release, row};

/// A waiter that asks to be the next.
fn queueing(key: &str) -> Request {
    let mut ask = ask(TTL);
    ask.wanted_for = Some(Duration::from_secs(20));
    ask.queue = Some(Duration::ZERO);
    ask.spare_tokens = 5;
    asking(key, ask)
}

/// The answer to a request that is alone, or has something else beside it.
async fn answer(store: &dyn Store, request: &Request, alone: bool) -> Outcome {
    let mut batch = vec![request.clone()];
    if !alone {
        batch.push(acquire(&Uuid::now_v7().to_string(), TTL));
    }
    store.apply(&batch).await.remove(0).unwrap()
}

#[track_caller]
fn assert_queued(outcome: &Outcome) {
    assert!(
        matches!(outcome, Outcome::Queued { next_ttl, .. } if *next_ttl == NEXT_TTL),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_release_passes_the_row_on() {
    let file = File::migrated().await;
    let store = file.store();
    for alone in [true, false] {
        let (holder, next) = (acquire("k", TTL), queueing("k"));
        let before = granted(&*store, &holder).await;
        assert_queued(&answer(&*store, &next, alone).await);
        let waiting = row(&*store, "k").await.unwrap();
        assert_eq!(waiting.next.as_ref().unwrap().lease_id, next.lease_id);

        let released = answer(&*store, &release(&holder), alone).await;
        let passed_on = Outcome::released(true, true);
        assert_eq!(released, passed_on);
        let passed = row(&*store, "k").await.unwrap();
        assert_eq!((passed.lease_id, passed.reentrant_count), (next.lease_id, 1));
        assert!(passed.fence_token > before);
        assert_eq!(passed.fence_ceiling, passed.fence_token + 5);
        assert_eq!(passed.expire_at, passed.acquired_at + 3_000_000);
        assert_eq!((passed.next, passed.wanted_until), (None, waiting.wanted_until));
        // Its wake-up was lost: it asks again.
        assert_eq!(granted(&*store, &next).await, passed.fence_token);
        assert_eq!(answer(&*store, &release(&holder), alone).await, Outcome::Lost);
        let freed = Outcome::released(true, false);
        assert_eq!(answer(&*store, &release(&next), alone).await, freed);
    }
}

#[tokio::test]
async fn a_successor_that_leaves_or_dies_is_passed_over() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    for (alone, leaves) in [(true, true), (true, false), (false, true), (false, false)] {
        let (holder, next) = (acquire("k", TTL), queueing("k"));
        granted(&*store, &holder).await;
        assert_queued(&answer(&*store, &next, alone).await);
        if leaves {
            assert_eq!(answer(&*store, &release(&next), alone).await, Outcome::Withdrawn);
            assert_eq!(answer(&*store, &release(&next), alone).await, Outcome::Lost);
        } else {
            execute(
                &mut user,
                "UPDATE distributed_lock SET next_until = 1 WHERE lock_key = 'k'",
            )
            .await;
        }
        let released = answer(&*store, &release(&holder), alone).await;
        assert!(
            matches!(
                released,
                Outcome::Released {
                    freed: true,
                    passed_on: false,
                    ..
                }
            ),
            "{released:?}"
        );
        assert_eq!(row(&*store, "k").await.unwrap().next, None);
    }
}

#[tokio::test]
async fn nobody_becomes_next_while_somebody_else_writes() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    granted(&*store, &acquire("k", TTL)).await;
    let next = queueing("k");
    execute(&mut user, "BEGIN IMMEDIATE").await;
    assert_error(
        one(&*store, &next).await,
        StoreErrorKind::Conflict,
        "keep it short",
    );
    execute(&mut user, "COMMIT").await;
    assert_queued(&answer(&*store, &next, true).await);
    // Asked again while it is so: there is nothing to write, and it is not told that it is next.
    execute(&mut user, "BEGIN IMMEDIATE").await;
    let answer = answer(&*store, &next, true).await;
    assert!(matches!(answer, Outcome::Busy(_)), "{answer:?}");
    execute(&mut user, "COMMIT").await;
}

#[tokio::test]
async fn taking_and_freeing_a_row_forget_the_successor() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let holder = acquire("k", TTL);
    granted(&*store, &holder).await;
    assert_queued(&answer(&*store, &queueing("k"), true).await);
    execute(&mut user, "UPDATE distributed_lock SET expire_at = 1").await;
    granted(&*store, &acquire("k", TTL)).await;
    assert_eq!(row(&*store, "k").await.unwrap().next, None, "taken over");
    assert_queued(&answer(&*store, &queueing("k"), true).await);
    assert!(store.force_release(&holder.key).await.unwrap());
    assert_eq!(row(&*store, "k").await.unwrap().next, None, "freed by force");
    // Such as a program of another version may leave it.
    let left = "UPDATE distributed_lock SET next_lease = randomblob(16), next_owner = randomblob(16), \
                next_holder = '', next_ttl = 1, next_spare = 0, next_since = 1, next_until = 9000000000000000000";
    execute(&mut user, left).await;
    granted(&*store, &acquire("k", TTL)).await;
    assert_eq!(row(&*store, "k").await.unwrap().next, None, "taken while free");
}
