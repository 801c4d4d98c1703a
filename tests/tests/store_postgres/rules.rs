//! The end of the fence tokens.

use dblock::store::{Outcome, Store, StoreError, StoreErrorKind};

use crate::bench::{Bench, TTL, acquire, ask, ask_of, one, queueing, release, token};

/// The largest number there is is given once. After it the key is refused, alone and in a batch, by takeover too, and
/// others are not.
#[tokio::test]
async fn the_last_token_is_given_once() {
    let Some(bench) = Bench::new("last_token").await else {
        return;
    };
    let store = bench.store();
    let mut last = acquire("a");
    ask_of(&mut last).spare_tokens = 7;
    let before = acquire("a");
    ask(&store, &before).await;
    ask(&store, &release(&before)).await;
    bench
        .run(&format!("UPDATE {{t}} SET fence_ceiling = {}", i64::MAX - 1))
        .await;
    assert_eq!(token(&ask(&store, &last).await), i64::MAX);
    let next = queueing("a", TTL);
    assert!(matches!(ask(&store, &next).await, Outcome::Queued { .. }));
    let freed = Outcome::released(true, false);
    assert_eq!(ask(&store, &release(&last)).await, freed);
    let refused = |answer: Result<Outcome, StoreError>| {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
        assert!(
            error.to_string().contains("tokens of the key are used up"),
            "{error}"
        );
    };
    // From stores that know of the key what it was last, and nothing.
    for store in [&store, &bench.store()] {
        refused(one(store, &acquire("a")).await);
        let other = acquire("b");
        let mut answers = store.apply(&[acquire("a"), other.clone()]).await;
        token(&answers.pop().unwrap().unwrap());
        refused(answers.pop().unwrap());
        ask(store, &release(&other)).await;
    }
    bench
        .run("UPDATE {t} SET reentrant_count = 1, expire_at = 1")
        .await;
    refused(one(&store, &acquire("a")).await);
}
