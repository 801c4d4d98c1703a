//! Sessions that want the same rows at once.

use std::collections::HashMap;
use std::sync::Arc;

use dblock::Key;
use dblock::store::{Outcome, PostgresStore, Request, Store, StoreErrorKind};
use futures_util::future::join_all;

use crate::bench::{Bench, acquire, ask, extend, insist, release};

/// The answers of a batch; a request that met a conflict, and so was not carried out, is sent again alone.
async fn settled(store: &PostgresStore, batch: &[Request]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for (request, answer) in batch.iter().zip(store.apply(batch).await) {
        outcomes.push(match answer {
            Err(error) if error.kind() == StoreErrorKind::Conflict => ask(store, request).await,
            answer => answer.unwrap(),
        });
    }
    outcomes
}

/// Many sessions race on one key: acquire, extend, release and takeover interleave, and every grant has
/// the key for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_sessions_get_one_grant_at_a_time() {
    let Some(bench) = Bench::new("race").await else {
        return;
    };
    let bench = Arc::new(bench);
    let inside = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let newest = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let racers = (0..4).map(|racer| {
        let (bench, inside, newest) = (Arc::clone(&bench), Arc::clone(&inside), Arc::clone(&newest));
        tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            let store = bench.store();
            let mut grants = 0;
            let mut former: Option<Request> = None;
            for _ in 0..700 {
                let request = acquire("hot");
                // Half of the racers use the multi-row statements.
                let outcome = if racer % 2 == 0 {
                    ask(&store, &request).await
                } else {
                    let mine = acquire(format!("cold {racer}"));
                    let answers = settled(&store, &[request.clone(), mine.clone()]).await;
                    insist(&store, &release(&mine)).await;
                    answers.into_iter().next().unwrap()
                };
                if let Outcome::Granted {
                    fence_token,
                    taken_over,
                    ..
                } = &outcome
                {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two grants at once");
                    assert!(
                        newest.swap(*fence_token, SeqCst) < *fence_token,
                        "a token did not grow"
                    );
                    assert_eq!(*taken_over, None);
                    assert!(matches!(
                        insist(&store, &extend(&request, 2)).await,
                        Outcome::Extended { .. }
                    ));
                    assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                    assert!(matches!(
                        insist(&store, &release(&request)).await,
                        Outcome::Released { freed: true, .. }
                    ));
                    grants += 1;
                    former = Some(request);
                } else if let Some(former) = &former {
                    // A late request of a former lease must change nothing.
                    let late = if grants % 2 == 0 {
                        release(former)
                    } else {
                        extend(former, 1)
                    };
                    let outcome = ask(&store, &late).await;
                    assert!(
                        matches!(
                            outcome,
                            Outcome::Lost | Outcome::Skipped | Outcome::Released { freed: false, .. }
                        ),
                        "{outcome:?}"
                    );
                }
            }
            grants
        })
    });
    let grants: Vec<i32> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
    eprintln!("grants of each racer: {grants:?}");
    assert!(grants.iter().sum::<i32>() > 200, "{grants:?}");
}

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

/// Two connections work on the same 100 keys in opposite orders: no deadlock, and no key granted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_do_not_deadlock() {
    let Some(bench) = Bench::new("orders").await else {
        return;
    };
    let (a, b) = (bench.store(), bench.store());
    for round in 0..40 {
        // A part of the keys is new in each round, so that inserts meet too.
        let name = |i: usize| {
            if i.is_multiple_of(2) {
                format!("k{i}")
            } else {
                format!("k{i} of {round}")
            }
        };
        let forward: Vec<_> = (0..100).map(|i| acquire(name(i))).collect();
        let backward: Vec<_> = (0..100).rev().map(|i| acquire(name(i))).collect();
        let (of_a, of_b) = tokio::join!(settled(&a, &forward), settled(&b, &backward));
        let mut granted: HashMap<&Key, usize> = HashMap::new();
        let mut releases = [Vec::new(), Vec::new()];
        for (side, (requests, answers)) in [(&forward, of_a), (&backward, of_b)].into_iter().enumerate() {
            for (request, answer) in requests.iter().zip(answers) {
                if matches!(answer, Outcome::Granted { .. }) {
                    *granted.entry(&request.key).or_default() += 1;
                    releases[side].push(release(request));
                }
            }
        }
        assert!(
            granted.values().all(|grants| *grants == 1),
            "a key was granted twice"
        );
        let (of_a, of_b) = tokio::join!(settled(&a, &releases[0]), settled(&b, &releases[1]));
        for answer in of_a.into_iter().chain(of_b) {
            assert!(matches!(answer, Outcome::Released { freed: true, .. }));
        }
    }
}
