//! Successors, where others write to the file.

use std::time::Duration;

use dblock::store::{Outcome, Request, StoreErrorKind};

use crate::{File, TTL, acquire, ask, asking, assert_error, execute, granted, one};

/// A waiter that asks to be the next.
fn queueing(key: &str) -> Request {
    let mut ask = ask(TTL);
    ask.wanted_for = Some(Duration::from_secs(20));
    ask.queue = Some(Duration::ZERO);
    asking(key, ask)
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
    let queued = one(&*store, &next).await.unwrap();
    assert!(matches!(queued, Outcome::Queued { .. }), "{queued:?}");
    // Asked again while it is so: there is nothing to write, and it is not told that it is next.
    execute(&mut user, "BEGIN IMMEDIATE").await;
    let answer = one(&*store, &next).await.unwrap();
    assert!(matches!(answer, Outcome::Busy(_)), "{answer:?}");
    execute(&mut user, "COMMIT").await;
}
