//! Successors, where other transactions have a part in it.

use std::time::Duration;

use dblock::store::{Acquire, Outcome, Request};
use uuid::Uuid;

use crate::place::Place;
use crate::{TTL, acquire, asking, one, release, run, token};

/// A waiter that asks to be the next.
fn queueing(name: &str) -> Request {
    let mut ask = Acquire::new(Uuid::now_v7(), TTL, "näxt");
    ask.wanted_for = Some(Duration::from_secs(20));
    ask.queue = Some(Duration::ZERO);
    asking(name, ask)
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_makes_nobody_next() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let (holder, next) = (acquire("k"), queueing("k"));
    token(&one(&store, holder.clone()).await);
    let queued = one(&store, next.clone()).await;
    assert!(matches!(queued, Outcome::Queued { .. }), "{queued:?}");
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
