//! What operators see and do.

use dblock::InspectFilter;
use dblock::store::{Outcome, Store};

use crate::bench::{Bench, acquire, ask, extend, release, token};

/// `%`, `_` and letter case mean nothing special in a prefix.
#[tokio::test]
async fn a_prefix_is_compared_byte_by_byte() {
    let Some(bench) = Bench::new("prefix").await else {
        return;
    };
    let store = bench.store();
    let names = ["a%b", "a_b", "axb", "A%b", "a%", "é1", "e1"];
    let requests: Vec<_> = names.iter().map(acquire).collect();
    for answer in store.apply(&requests).await {
        answer.unwrap();
    }
    let with = async |filter: InspectFilter| -> Vec<String> {
        store
            .inspect(&filter)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.key.to_string())
            .collect()
    };
    assert_eq!(with(InspectFilter::new().prefix("a%")).await, ["a%", "a%b"]);
    assert_eq!(with(InspectFilter::new().prefix("a_")).await, ["a_b"]);
    assert_eq!(with(InspectFilter::new().prefix("é")).await, ["é1"]);
    assert_eq!(
        with(InspectFilter::new()).await,
        ["A%b", "a%", "a%b", "a_b", "axb", "e1", "é1"]
    );
    assert_eq!(with(InspectFilter::new().limit(2)).await, ["A%b", "a%"]);
    ask(&store, &release(&requests[0])).await;
    assert_eq!(with(InspectFilter::new().prefix("a%")).await, ["a%"]);
    assert_eq!(
        with(InspectFilter::new().prefix("a%").include_free()).await,
        ["a%", "a%b"]
    );
}

/// A revoked lease is not extended; a forced release leaves nothing to its former holder.
#[tokio::test]
async fn what_operators_do() {
    let Some(bench) = Bench::new("operators").await else {
        return;
    };
    let store = bench.store();
    let request = acquire("a");
    assert!(!store.revoke(&request.key).await.unwrap());
    assert!(!store.force_release(&request.key).await.unwrap());
    let fence = token(&ask(&store, &request).await);
    assert!(store.revoke(&request.key).await.unwrap());
    let before = store.inspect(&InspectFilter::new()).await.unwrap()[0].expire_at;
    assert!(matches!(
        ask(&store, &extend(&request, 2)).await,
        Outcome::Extended { revoked: true, .. }
    ));
    let row = store.inspect(&InspectFilter::new()).await.unwrap().remove(0);
    assert_eq!(
        (row.expire_at, row.reentrant_count, row.revoked),
        (before, 2, true)
    );
    assert!(store.force_release(&request.key).await.unwrap());
    assert_eq!(ask(&store, &extend(&request, 1)).await, Outcome::Lost);
    assert_eq!(ask(&store, &release(&request)).await, Outcome::Lost);
    let next = acquire("a");
    assert!(token(&ask(&store, &next).await) > fence);
    assert!(matches!(
        ask(&store, &extend(&next, 1)).await,
        Outcome::Extended { revoked: false, .. }
    ));
}
