//! The rules of a batch, for the single-row statements and the multi-row ones.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{Action, Extend, HandedOver, Outcome, Request, Store, StoreError, StoreErrorKind};
use uuid::Uuid;

use crate::bench::{Bench, TTL, acquire, ask, ask_of, extend, key, one, queueing, release, token, waiting};

/// The state of a lease, as the table of rules has it, in one row and in a batch.
#[tokio::test]
async fn the_rules_hold_for_one_row_and_for_many() {
    let Some(bench) = Bench::new("rules").await else {
        return;
    };
    let store = bench.store();
    for round in ["alone", "in a batch"] {
        // In a batch, another request of the same kind makes the statement a multi-row one.
        let ask = async |request: &Request| {
            if round == "alone" {
                return ask(&store, request).await;
            }
            let other = Request::new(
                key(format!("{round} other {}", Uuid::now_v7())),
                request.lease_id,
                request.action.clone(),
            );
            let mut answers = store.apply(&[other, request.clone()]).await;
            answers.pop().unwrap().unwrap()
        };
        let first = acquire(round);
        let granted = ask(&first).await;
        let fence = token(&granted);
        assert!(
            matches!(
                granted,
                Outcome::Granted {
                    taken_over: None,
                    wanted: false,
                    ..
                }
            ),
            "{granted:?}"
        );
        assert!(matches!(
            ask(&extend(&first, 3)).await,
            Outcome::Extended { revoked: false, .. }
        ));
        // A repeated acquire gives the same grant with count 1.
        assert_eq!(token(&ask(&first).await), fence);
        let rows = store.inspect(&InspectFilter::new().prefix(round)).await.unwrap();
        let row = rows.iter().find(|row| row.key.as_str() == round).unwrap();
        assert_eq!((row.reentrant_count, row.fence_token), (1, fence));

        let second = waiting(round, Duration::from_secs(10));
        let busy = ask(&second).await;
        let Outcome::Busy(holder) = &busy else {
            panic!("{busy:?}")
        };
        assert_eq!((holder.fence_token, &*holder.name), (fence, "host/1 test"));
        assert!(
            holder.remaining > TTL / 2 && holder.remaining <= TTL,
            "{holder:?}"
        );
        assert!(matches!(
            ask(&extend(&first, 1)).await,
            Outcome::Extended { wanted: true, .. }
        ));
        assert_eq!(ask(&release(&second)).await, Outcome::Lost);
        assert_eq!(ask(&release(&first)).await, Outcome::released(true, false));
        assert_eq!(ask(&release(&first)).await, Outcome::released(false, false));
        assert_eq!(ask(&extend(&first, 1)).await, Outcome::Lost);
        assert_eq!(ask(&first).await, Outcome::Lost);

        let again = ask(&second).await;
        assert!(token(&again) > fence);
        assert!(
            matches!(
                again,
                Outcome::Granted {
                    wanted: true,
                    taken_over: None,
                    ..
                }
            ),
            "{again:?}"
        );
        let fence = token(&again);
        bench
            .run(&format!(
                "UPDATE {{t}} SET expire_at = acquired_at WHERE lock_key = '{round}'"
            ))
            .await;
        assert_eq!(ask(&second).await, Outcome::Lost);
        assert_eq!(ask(&extend(&second, 1)).await, Outcome::Lost);
        assert_eq!(ask(&release(&second)).await, Outcome::Lost);
        let third = ask(&acquire(round)).await;
        let Outcome::Granted {
            taken_over: Some(former),
            fence_token,
            ..
        } = third
        else {
            panic!("{third:?}")
        };
        assert!(fence_token > fence);
        assert_eq!((former.fence_token, former.remaining), (fence, Duration::ZERO));
        for absent in [extend(&acquire("absent"), 1), release(&acquire("absent"))] {
            assert_eq!(ask(&absent).await, Outcome::Lost);
        }
    }
}

/// The token stays above a ceiling that is ahead of the clock.
#[tokio::test]
async fn a_token_is_above_the_ceiling() {
    let Some(bench) = Bench::new("ceiling").await else {
        return;
    };
    let store = bench.store();
    let first = acquire("a");
    ask(&store, &first).await;
    ask(&store, &release(&first)).await;
    bench.run("UPDATE {t} SET fence_ceiling = 9000000000000000").await;
    assert_eq!(token(&ask(&store, &acquire("a")).await), 9_000_000_000_000_001);
}

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

/// A poller writes its wish only when half of the last one is over.
#[tokio::test]
async fn a_wish_is_not_written_with_each_poll() {
    let Some(bench) = Bench::new("wish").await else {
        return;
    };
    let store = bench.store();
    ask(&store, &acquire("a")).await;
    let wanted_until = async || store.inspect(&InspectFilter::new()).await.unwrap()[0].wanted_until;
    ask(&store, &waiting("a", Duration::from_secs(10))).await;
    let first = wanted_until().await;
    ask(&store, &waiting("a", Duration::from_secs(10))).await;
    assert_eq!(wanted_until().await, first);
    ask(&store, &waiting("a", Duration::from_millis(1))).await;
    assert_eq!(wanted_until().await, first, "a wish is never shortened");
    ask(&store, &waiting("a", Duration::from_mins(1))).await;
    assert!(wanted_until().await > first);
}

/// Tokens for local hand-overs are kept free above a grant's own, and the next owner is written with the count, alone
/// and in a batch.
#[tokio::test]
async fn a_lease_is_handed_over_in_the_row() {
    let Some(bench) = Bench::new("handed_over").await else {
        return;
    };
    let store = bench.store();
    let row = async |name: &str| {
        let rows = store
            .inspect(&InspectFilter::new().prefix(name).include_free())
            .await
            .unwrap();
        rows.into_iter().find(|row| row.key.as_str() == name).unwrap()
    };
    for round in ["alone", "batch"] {
        let ask = async |request: &Request| {
            let mut batch = vec![request.clone()];
            if round == "batch" {
                // Without a hand-over and spare tokens, so that the rows of a batch differ.
                let mut other = acquire("other");
                if matches!(request.action, Action::Extend(_)) {
                    other = extend(&other, 1);
                }
                batch.push(other);
            }
            store.apply(&batch).await.swap_remove(0).unwrap()
        };
        // On a new row, and on one that is there.
        for spare in [7, 9] {
            let mut first = acquire(round);
            ask_of(&mut first).spare_tokens = spare;
            let fence = token(&ask(&first).await);
            assert_eq!(row(round).await.fence_ceiling, fence + i64::from(spare));
            let next = HandedOver::new(Uuid::now_v7(), "host/1 next", fence + 3);
            let mut to_next = Extend::new(2, 2 * TTL);
            to_next.handed_over = Some(next.clone());
            let handed_over = Request::new(first.key.clone(), first.lease_id, Action::Extend(to_next));
            // A repeated one says the same.
            for _ in 0..2 {
                let outcome = ask(&handed_over).await;
                assert!(matches!(outcome, Outcome::Extended { .. }), "{outcome:?}");
                let row = row(round).await;
                assert_eq!(
                    (row.owner, &*row.holder, row.fence_token, row.reentrant_count),
                    (next.owner, "host/1 next", fence + 3, 2)
                );
                assert_eq!(
                    (row.lease_id, row.fence_ceiling),
                    (first.lease_id, fence + i64::from(spare))
                );
            }
            // Without one the last owner stays.
            ask(&extend(&first, 1)).await;
            assert_eq!(row(round).await.owner, next.owner);
            ask(&release(&first)).await;
            let mut late = acquire(round);
            late.action = handed_over.action.clone();
            assert_eq!(ask(&late).await, Outcome::Lost);
            assert_eq!(row(round).await.fence_token, fence + 3);
            let after = acquire(round);
            assert!(token(&ask(&after).await) > fence + i64::from(spare));
            ask(&release(&after)).await;
        }
    }
}
