//! A release that passes the row on, on the path of one statement and on that of batches.

use std::time::Duration;

use dblock::store::{Acquire, MySqlStore, NEXT_TTL, Outcome, Request, Store};
use dblock::{InspectFilter, LockRow};
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, asking, extend, key, one, release, row, run, token};

const WHILE: Duration = Duration::from_secs(20);

/// A waiter that asks to be the next.
fn queueing(name: &str, waited: Duration) -> Request {
    let mut ask = Acquire::new(Uuid::now_v7(), TTL, "näxt");
    ask.wanted_for = Some(WHILE);
    ask.queue = Some(waited);
    ask.spare_tokens = 5;
    asking(name, ask)
}

/// The answer to a request that is alone, or has something else beside it, which makes a batch of it.
async fn answer(store: &MySqlStore, request: &Request, alone: bool) -> Outcome {
    let mut batch = vec![request.clone()];
    if !alone {
        batch.push(acquire(Uuid::now_v7().to_string()));
    }
    store.apply(&batch).await.remove(0).unwrap()
}

async fn queued(store: &MySqlStore, request: &Request) -> i64 {
    let answer = one(store, request.clone()).await;
    let Outcome::Queued { holder, next_ttl, .. } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(next_ttl, NEXT_TTL);
    holder.fence_token
}

fn passed_on(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Released {
            freed: true,
            passed_on: true,
            ..
        }
    )
}

/// The row without what only tells when.
fn timeless(mut row: LockRow) -> LockRow {
    row.now = 0;
    row
}

#[tokio::test]
async fn a_release_passes_the_row_on_whether_alone_or_not() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    for alone in [true, false] {
        let (holder, next) = (acquire("k"), queueing("k", Duration::ZERO));
        let before = token(&one(&store, holder.clone()).await);
        assert_eq!(queued(&store, &next).await, before);
        // The holder's renewals leave it alone.
        one(&store, extend(&holder, 2)).await;
        let waiting = row(&store, "k").await;
        assert_eq!(waiting.next.as_ref().unwrap().lease_id, next.lease_id);

        let release = release(&holder);
        let released = answer(&store, &release, alone).await;
        assert!(passed_on(&released), "{released:?}");
        let passed = row(&store, "k").await;
        assert_eq!(passed.lease_id, next.lease_id);
        assert_eq!(passed.holder, "näxt");
        assert_eq!(passed.reentrant_count, 1);
        assert!(passed.fence_token > before);
        assert_eq!(passed.fence_ceiling, passed.fence_token + 5);
        assert_eq!(passed.expire_at, passed.acquired_at + 3_000_000);
        assert_eq!(
            (passed.next.clone(), passed.wanted_until),
            (None, waiting.wanted_until)
        );

        // Its wake-up was lost: it asks again.
        assert_eq!(token(&one(&store, next.clone()).await), passed.fence_token);
        assert_eq!(one(&store, release).await, Outcome::Lost);
        assert_eq!(timeless(row(&store, "k").await), timeless(passed));
        let freed = one(&store, crate::release(&next)).await;
        assert!(
            matches!(
                freed,
                Outcome::Released {
                    freed: true,
                    passed_on: false,
                    ..
                }
            ),
            "{freed:?}"
        );
    }
}

#[tokio::test]
async fn a_successor_that_leaves_is_forgotten_whether_alone_or_not() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    for alone in [true, false] {
        let (holder, next) = (acquire("k"), queueing("k", Duration::ZERO));
        token(&one(&store, holder.clone()).await);
        queued(&store, &next).await;
        let withdraw = release(&next);
        let withdrawn = answer(&store, &withdraw, alone).await;
        assert_eq!(withdrawn, Outcome::Withdrawn);
        assert_eq!(one(&store, withdraw).await, Outcome::Lost);
        assert_eq!(row(&store, "k").await.next, None);
        let freed = one(&store, release(&holder)).await;
        assert!(
            matches!(
                freed,
                Outcome::Released {
                    freed: true,
                    passed_on: false,
                    ..
                }
            ),
            "{freed:?}"
        );
    }
}

#[tokio::test]
async fn a_dead_successor_is_passed_over() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let holder = acquire("k");
    token(&one(&store, holder.clone()).await);
    queued(&store, &queueing("k", Duration::ZERO)).await;
    place
        .run(&format!("UPDATE {} SET next_until = 1", place.table))
        .await;
    let freed = one(&store, release(&holder)).await;
    assert!(
        matches!(
            freed,
            Outcome::Released {
                freed: true,
                passed_on: false,
                ..
            }
        ),
        "{freed:?}"
    );
    assert_eq!(row(&store, "k").await.next, None);
}

#[tokio::test]
async fn who_waits_longer_by_a_second_is_next() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    token(&one(&store, acquire("k")).await);
    let first = queueing("k", Duration::from_secs(5));
    queued(&store, &first).await;
    for (waited, next) in [(5, false), (60, true)] {
        let request = queueing("k", Duration::from_secs(waited));
        let answer = one(&store, request.clone()).await;
        assert_eq!(matches!(answer, Outcome::Queued { .. }), next, "{answer:?}");
        let named = row(&store, "k").await.next.unwrap().lease_id;
        assert_eq!(named == request.lease_id, next);
    }
    assert_eq!(
        one(&store, release(&first)).await,
        Outcome::Lost,
        "it was replaced"
    );
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_makes_nobody_next() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let (holder, next) = (acquire("k"), queueing("k", Duration::ZERO));
    token(&one(&store, holder.clone()).await);
    queued(&store, &next).await;
    let mut user = place.connection().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM {} WHERE lock_key = 'k' FOR UPDATE",
        place.table
    );
    run(&mut user, &lock).await;
    // Seen, but not from a row that is ours: it may be somebody else's by the commit.
    let answer = one(&store, next.clone()).await;
    assert!(matches!(answer, Outcome::Busy(_)), "{answer:?}");
    assert_eq!(one(&store, release(&next)).await, Outcome::Skipped);
    run(&mut user, "COMMIT").await;
    assert_eq!(one(&store, release(&next)).await, Outcome::Withdrawn);
}

#[tokio::test]
async fn taking_and_freeing_a_row_forget_the_successor() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let table = &place.table;
    token(&one(&store, acquire("k")).await);
    queued(&store, &queueing("k", Duration::ZERO)).await;
    place.run(&format!("UPDATE {table} SET expire_at = 1")).await;
    let taken = one(&store, acquire("k")).await;
    assert!(
        matches!(
            taken,
            Outcome::Granted {
                taken_over: Some(_),
                ..
            }
        ),
        "{taken:?}"
    );
    assert_eq!(row(&store, "k").await.next, None, "taken over");

    queued(&store, &queueing("k", Duration::ZERO)).await;
    assert!(store.force_release(&key("k")).await.unwrap());
    assert_eq!(row(&store, "k").await.next, None, "freed by force");

    // Such as a program of another version may leave it.
    place
        .run(&format!(
            "UPDATE {table} SET next_lease = '0123456789abcdef', next_owner = '0123456789abcdef', \
                       next_holder = '', next_ttl = 1, next_spare = 0, next_since = 1, next_until = {}",
            i64::MAX
        ))
        .await;
    let holder = acquire("k");
    let granted = one(&store, holder.clone()).await;
    assert!(
        matches!(granted, Outcome::Granted { taken_over: None, .. }),
        "{granted:?}"
    );
    let filter = InspectFilter::new();
    assert_eq!(
        store.inspect(&filter).await.unwrap()[0].next,
        None,
        "taken while free"
    );
    let freed = one(&store, release(&holder)).await;
    assert!(
        matches!(freed, Outcome::Released { passed_on: false, .. }),
        "{freed:?}"
    );
}
