//! Fence tokens, and those that are kept free for local hand-overs.

use std::time::Duration;

use dblock::store::{Action, Extend, HandedOver, Outcome, Request, StoreErrorKind};
use uuid::Uuid;

use crate::{File, TTL, acquire, ask, asking, assert_error, execute, granted, one, release, row};

fn sparing(key: &str, tokens: u32) -> Request {
    let mut ask = ask(TTL);
    ask.spare_tokens = tokens;
    asking(key, ask)
}

#[tokio::test]
async fn the_ceiling_is_above_every_later_token() {
    let file = File::migrated().await;
    let store = file.store();
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    one(&*store, &release(&lease)).await.unwrap();
    // As after a clock that was an hour ahead, or after a block of tokens for hand-overs.
    let ceiling = token + 3_600_000_000;
    let raise = format!("UPDATE distributed_lock SET fence_ceiling = {ceiling}");
    execute(&mut file.user().await, &raise).await;
    assert_eq!(granted(&*store, &acquire("k", TTL)).await, ceiling + 1);
}

#[tokio::test]
async fn spare_tokens_lie_between_the_token_and_the_ceiling() {
    let file = File::migrated().await;
    let store = file.store();
    let mut ceiling = 0;
    // A new row; a free one; and one whose ceiling is ahead of the clock.
    for spare in [1_000_000_000, 0, 5] {
        let lease = sparing("k", spare);
        let token = granted(&*store, &lease).await;
        assert!(
            token > ceiling,
            "{token} was kept free for others, up to {ceiling}"
        );
        let held = row(&*store, "k").await.unwrap();
        assert_eq!(
            (held.fence_token, held.fence_ceiling),
            (token, token + i64::from(spare))
        );
        // A repeated acquire keeps no more free.
        assert_eq!(granted(&*store, &lease).await, token);
        assert_eq!(row(&*store, "k").await.unwrap().fence_ceiling, held.fence_ceiling);
        one(&*store, &release(&lease)).await.unwrap();
        ceiling = held.fence_ceiling;
    }
}

#[tokio::test]
async fn the_last_token_is_given_once_and_then_none() {
    let file = File::migrated().await;
    let store = file.store();
    let holder = acquire("k", TTL);
    granted(&*store, &holder).await;
    one(&*store, &release(&holder)).await.unwrap();
    let raise = format!("UPDATE distributed_lock SET fence_ceiling = {}", i64::MAX - 1);
    execute(&mut file.user().await, &raise).await;
    let last = acquire("k", TTL);
    assert_eq!(granted(&*store, &last).await, i64::MAX);
    one(&*store, &release(&last)).await.unwrap();
    for beside in [None, Some("one"), None, Some("two")] {
        let mut batch = vec![acquire("k", TTL)];
        batch.extend(beside.map(|key| acquire(key, TTL)));
        let mut answers = store.apply(&batch).await;
        assert_error(answers.remove(0), StoreErrorKind::Other, "used up");
        for other in answers {
            assert!(matches!(other, Ok(Outcome::Granted { .. })), "{other:?}");
        }
    }
}

#[tokio::test]
async fn a_local_hand_over_is_written_with_the_count() {
    let file = File::migrated().await;
    let store = file.store();
    let lease = sparing("k", 1_000_000_000);
    let token = granted(&*store, &lease).await;
    let before = row(&*store, "k").await.unwrap();
    let owner = Uuid::now_v7();
    let extend = |lease: &Request| {
        let mut ask = Extend::new(2, Duration::from_secs(1));
        ask.handed_over = Some(HandedOver::new(owner, "next", token + 2));
        Request::new(lease.key.clone(), lease.lease_id, Action::Extend(ask))
    };
    assert_eq!(
        one(&*store, &extend(&acquire("k", TTL))).await.unwrap(),
        Outcome::Lost,
        "another lease hands nothing over"
    );
    for batch in [vec![extend(&lease)], vec![extend(&lease), acquire("other", TTL)]] {
        let answer = store.apply(&batch).await.remove(0).unwrap();
        assert!(matches!(answer, Outcome::Extended { .. }), "{answer:?}");
        let after = row(&*store, "k").await.unwrap();
        let mut expected = before.clone();
        expected.owner = owner;
        expected.holder = "next".into();
        expected.fence_token = token + 2;
        expected.reentrant_count = 2;
        expected.now = after.now;
        assert_eq!(after, expected, "everything else stays");
    }
    one(&*store, &release(&lease)).await.unwrap();
    assert_eq!(
        one(&*store, &extend(&lease)).await.unwrap(),
        Outcome::Lost,
        "after the release"
    );
    let next = granted(&*store, &acquire("k", TTL)).await;
    assert_eq!(
        next,
        token + 1_000_000_001,
        "tokens kept free are not given again"
    );
}
