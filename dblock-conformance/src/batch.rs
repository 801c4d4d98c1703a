//! Many requests at once.

use std::collections::HashSet;

use dblock_core::InspectFilter;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Outcome, Released};

use super::AnyFixture;
use super::context::{Asker, Grant, LONG, SHORT, batch, existing, granted, row};

/// No requests, no answers.
pub async fn empty_batch_has_no_answers(fixture: &dyn AnyFixture) {
    assert!(fixture.store().await.apply(&[]).await.is_empty());
}

/// Requests and answers of all kinds, interleaved: the answers are in the order of the requests.
pub async fn batch_of_mixed_actions_answers_in_order(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let mut requests = Vec::new();
    let mut expected = Vec::new();
    for round in (0..10).rev() {
        let named =
            |what: &str| Asker::with_holder(&format!("{round} {what}"), &format!("holder {round} {what}"));

        requests.push(named("absent").acquire(LONG));
        expected.push("granted");

        let held = named("held");
        granted(&*store, held.acquire(LONG)).await;
        requests.push(named("held").acquire_wanting(LONG));
        expected.push("busy");

        let extended = named("extended");
        granted(&*store, extended.acquire(LONG)).await;
        requests.push(extended.extend(round + 2, LONG));
        expected.push("extended");

        requests.push(named("nobody's").extend(1, LONG));
        expected.push("lost");

        let released = named("released");
        granted(&*store, released.acquire(LONG)).await;
        requests.push(released.release());
        expected.push("released");

        requests.push(named("never there").release());
        expected.push("lost");
    }
    let outcomes = batch(&*store, &requests).await;
    for ((request, outcome), expected) in requests.iter().zip(outcomes).zip(expected) {
        let is = match &outcome {
            Outcome::Granted { .. } => "granted",
            Outcome::Busy(holder) => {
                assert_eq!(
                    holder.name,
                    format!("holder {}", request.key),
                    "someone else's holder"
                );
                "busy"
            }
            Outcome::Extended { .. } => "extended",
            Outcome::Released(Released::Freed) => "released",
            Outcome::Lost => "lost",
            _ => "something else",
        };
        assert_eq!(is, expected, "{request:?} was answered with {outcome:?}");
    }
    for round in 0..10 {
        let count = |what: &str| Asker::new(&format!("{round} {what}")).key;
        assert_eq!(existing(&*store, &count("absent")).await.reentrant_count, 1);
        assert_ne!(
            existing(&*store, &count("held")).await.wanted_until,
            Timestamp::EPOCH
        );
        assert_eq!(
            existing(&*store, &count("extended")).await.reentrant_count,
            round + 2
        );
        assert_eq!(existing(&*store, &count("released")).await.reentrant_count, 0);
        assert_eq!(row(&*store, &count("nobody's")).await, None);
        assert_eq!(row(&*store, &count("never there")).await, None);
    }
}

/// A hundred keys are acquired, acquired again, asked for by others, extended and released together.
pub async fn batch_of_a_hundred_keys(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let askers: Vec<Asker> = (0..100).map(|n| Asker::new(&format!("key {n}"))).collect();
    let ask = |asker: &Asker| asker.acquire(LONG);
    let acquires: Vec<_> = askers.iter().map(ask).collect();

    let grants = batch(&*store, &acquires).await;
    let tokens: Vec<i64> = acquires
        .iter()
        .zip(grants)
        .map(|(request, outcome)| Grant::of(request, outcome).fence_token)
        .collect();
    let again = batch(&*other, &acquires).await;
    for ((request, outcome), token) in acquires.iter().zip(again).zip(&tokens) {
        assert_eq!(
            Grant::of(request, outcome).fence_token,
            *token,
            "{request:?} was granted twice"
        );
    }
    let others: Vec<_> = askers
        .iter()
        .map(|asker| ask(&Asker::new(asker.key.as_str())))
        .collect();
    for (asker, outcome) in askers.iter().zip(batch(&*other, &others).await) {
        assert!(
            matches!(&outcome, Outcome::Busy(holder) if asker.is(holder)),
            "{outcome:?} for {asker:?}"
        );
    }
    let extends: Vec<_> = askers.iter().map(|asker| asker.extend(4, SHORT)).collect();
    for outcome in batch(&*store, &extends).await {
        assert!(matches!(outcome, Outcome::Extended { .. }), "{outcome:?}");
    }
    let rows = store
        .inspect(&InspectFilter::new().prefix("key "))
        .await
        .expect("inspect reads rows");
    assert_eq!(rows.iter().map(|row| &row.key).collect::<HashSet<_>>().len(), 100);
    assert!(
        rows.iter().all(|row| row.reentrant_count == 4),
        "a count was not written"
    );

    let releases: Vec<_> = askers.iter().map(Asker::release).collect();
    for outcome in batch(&*store, &releases).await {
        assert_eq!(outcome, Outcome::Released(Released::Freed));
    }
    let rows = store
        .inspect(&InspectFilter::new().prefix("key "))
        .await
        .expect("inspect reads rows");
    assert_eq!(rows, []);
}
