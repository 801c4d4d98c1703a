//! Sessions that insert the same row at once.

use dblock::store::Outcome;
use futures_util::future::join_all;

use crate::bench::{Bench, acquire, ask};

/// Fresh keys: of many first acquires at once, exactly one inserts the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_key_is_granted_once() {
    let Some(bench) = Bench::new("fresh").await else {
        return;
    };
    let stores: Vec<_> = (0..4).map(|_| bench.store()).collect();
    for round in 0..300 {
        let name = format!("k{round}");
        let requests: Vec<_> = stores.iter().map(|_| acquire(&name)).collect();
        let outcomes = join_all(
            stores
                .iter()
                .zip(&requests)
                .map(|(store, request)| ask(store, request)),
        )
        .await;
        let granted = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Granted { .. }))
            .count();
        assert_eq!(granted, 1, "{outcomes:?}");
    }
}
