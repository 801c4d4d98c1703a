//! A write transaction of the user's: the file has one writer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::InspectFilter;
use dblock::store::{Outcome, Released, Request, StoreErrorKind};

use crate::{File, TTL, acquire, assert_error, execute, extend, granted, one, release};

#[tokio::test]
async fn a_write_transaction_of_the_user_is_a_conflict_in_bounded_time() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let held = acquire("held", TTL);
    granted(&*store, &held).await;
    execute(&mut user, "BEGIN IMMEDIATE").await;

    let hint = "keep it short, never acquire a lock inside it";
    let start = Instant::now();
    assert_error(
        one(&*store, &acquire("k", TTL)).await,
        StoreErrorKind::Conflict,
        hint,
    );
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(900), "gave up after {waited:?}");
    assert!(waited < Duration::from_secs(10), "waited {waited:?}");
    let batch = store.apply(&[acquire("a", TTL), release(&held)]).await;
    assert_eq!(batch.len(), 2);
    for answer in batch {
        assert_error(answer, StoreErrorKind::Conflict, hint);
    }
    // Readers do not mind.
    assert_eq!(store.inspect(&InspectFilter::new()).await.unwrap().len(), 1);
    store.migrate().await.unwrap();

    execute(&mut user, "COMMIT").await;
    granted(&*store, &acquire("k", TTL)).await;
    assert_eq!(
        one(&*store, &release(&held)).await.unwrap(),
        Outcome::Released(Released::Freed)
    );
}

#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_the_file() {
    let file = File::migrated().await;
    let (store, other, mut user) = (file.store(), file.store(), file.user().await);
    // Each handle's first statement opens the file, which is not what is tested here.
    other.inspect(&InspectFilter::new()).await.unwrap();
    for key in ["takeover", "extend", "release", "batch"] {
        let mut rounds = 0..10;
        let answer = loop {
            assert!(rounds.next().is_some(), "nothing but conflicts");
            let lease = acquire(key, Duration::from_millis(150));
            let batch = match key {
                "extend" => vec![extend(&lease)],
                "release" => vec![release(&lease)],
                "takeover" => vec![acquire(key, TTL)],
                _ => vec![acquire(key, TTL), acquire("other", TTL)],
            };
            granted(&*store, &lease).await;
            execute(&mut user, "BEGIN IMMEDIATE").await;
            let asked = tokio::spawn({
                let other = Arc::clone(&other);
                async move { other.apply(&batch).await }
            });
            // The lease ends while the request waits; the user's commit lets it through.
            let filter = InspectFilter::new().prefix(key);
            while !store.inspect(&filter).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let has_waited = !asked.is_finished();
            execute(&mut user, "COMMIT").await;
            match asked.await.unwrap().remove(0) {
                // On a machine that stalls it has waited for longer than it may.
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                answer => {
                    assert!(has_waited, "the request did not wait for the file");
                    break answer.unwrap();
                }
            }
        };
        let expected = match key {
            "extend" | "release" => answer == Outcome::Lost,
            _ => matches!(
                answer,
                Outcome::Granted {
                    taken_over: Some(_),
                    ..
                }
            ),
        };
        assert!(expected, "{key}: {answer:?}");
    }
}

#[tokio::test]
async fn a_dropped_call_leaves_neither_transaction_nor_grant_behind() {
    let file = File::migrated().await;
    let (store, other) = (file.store(), file.store());
    let requests: Vec<Request> = (0..50).map(|n| acquire(&format!("k{n}"), TTL)).collect();
    for millis in 0..20 {
        let _ = tokio::time::timeout(Duration::from_micros(millis * 300), store.apply(&requests)).await;
        // The file is free again, and a batch was carried out as a whole or not at all.
        granted(&*other, &acquire(&format!("free {millis}"), TTL)).await;
        let held = other
            .inspect(&InspectFilter::new().prefix("k"))
            .await
            .unwrap()
            .len();
        assert!(held == 0 || held == 50, "{held} of 50 rows were written");
        for request in &requests {
            other.force_release(&request.key).await.unwrap();
        }
    }
}
