//! Transactions of the user's that hold rows: the fence check, and what stands still meanwhile.

use std::time::Duration;

use dblock::store::{Outcome, Released, Store, StoreErrorKind};
use dblock_tests::proxy::{Proxy, Traffic};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::time::{sleep, timeout};

use crate::bench::{Bench, TTL, acquire, ask, extend, key, release, token, waiting};

/// A user's transaction holds one row: the others are answered at once, and it is not waited for.
#[tokio::test]
async fn a_users_lock_stalls_nobody() {
    let Some(bench) = Bench::new("user").await else {
        return;
    };
    let store = bench.store();
    let held: Vec<_> = ["a", "b", "c"].map(acquire).into();
    let tokens: Vec<_> = store
        .apply(&held)
        .await
        .into_iter()
        .map(|answer| token(&answer.unwrap()))
        .collect();
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let left = store
        .verify_in(&mut transaction, &held[1].key, held[1].lease_id, tokens[1])
        .await
        .unwrap();
    assert!(left.is_some_and(|left| left > TTL / 2));

    let renewals: Vec<_> = held.iter().map(|request| extend(request, 1)).collect();
    let outcomes: Vec<_> = store
        .apply(&renewals)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert!(matches!(outcomes[0], Outcome::Extended { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Skipped);
    assert!(matches!(outcomes[2], Outcome::Extended { .. }), "{outcomes:?}");
    assert_eq!(ask(&store, &release(&held[1])).await, Outcome::Skipped);
    // The snapshot shows who holds it. A wish cannot be written, so a waiter must ask again.
    assert!(matches!(ask(&store, &acquire("b")).await, Outcome::Busy(_)));
    assert_eq!(ask(&store, &waiting("b", TTL)).await, Outcome::Skipped);
    // An operator's request waits for the row, but not for long.
    let revoked = store.revoke(&key("b")).await.unwrap_err();
    assert_eq!(revoked.kind(), StoreErrorKind::Conflict, "{revoked}");
    transaction.commit().await.unwrap();
    assert!(matches!(ask(&store, &waiting("b", TTL)).await, Outcome::Busy(_)));
    assert!(matches!(
        ask(&store, &release(&held[1])).await,
        Outcome::Released(Released::Freed)
    ));
}

/// The host of a user's transaction vanishes: the server ends the session, and the key goes on. A lower limit
/// of the user's stays, and nothing of it outlives the transaction.
#[tokio::test]
async fn a_vanished_host_keeps_the_key_for_the_idle_limit() {
    let Some(bench) = Bench::new("vanished").await else {
        return;
    };
    let store = bench
        .store()
        .transaction_idle_limit(Some(Duration::from_millis(1_500)));
    let request = acquire("a");
    let fence = token(&ask(&store, &request).await);
    let proxy = Proxy::start(bench.address());
    let address = proxy.address();
    let options: PgConnectOptions = bench.url.parse().unwrap();
    let options = options.host(&address.ip().to_string()).port(address.port());
    let mut user = options.connect().await.unwrap();
    let limit = async |on: &mut PgConnection| -> String {
        let show = sqlx::query_scalar("SHOW idle_in_transaction_session_timeout");
        show.fetch_one(on).await.unwrap()
    };
    let mut transaction = user.begin().await.unwrap();
    for (own, then) in [("1s", "1s"), ("1min", "1500ms"), ("0", "1500ms")] {
        let set = AssertSqlSafe(format!("SET idle_in_transaction_session_timeout = '{own}'"));
        sqlx::raw_sql(set).execute(&mut *transaction).await.unwrap();
        let verified = store.verify_in(&mut transaction, &request.key, request.lease_id, fence);
        assert!(verified.await.unwrap().is_some());
        assert_eq!(limit(&mut transaction).await, then);
    }
    transaction.commit().await.unwrap();
    assert_eq!(limit(&mut user).await, "0");

    let mut transaction = user.begin().await.unwrap();
    let verified = store.verify_in(&mut transaction, &request.key, request.lease_id, fence);
    assert!(verified.await.unwrap().is_some());
    proxy.set(Traffic::BlackHole);
    assert_eq!(ask(&store, &release(&request)).await, Outcome::Skipped);
    let released = timeout(Duration::from_secs(10), async {
        loop {
            match ask(&store, &release(&request)).await {
                Outcome::Skipped => sleep(Duration::from_millis(20)).await,
                outcome => return outcome,
            }
        }
    });
    let released = released.await.expect("the server ends the transaction");
    assert!(
        matches!(released, Outcome::Released(Released::Freed)),
        "{released:?}"
    );
}

/// Somebody inserts a row by hand and does not commit: only that key waits, for as long as `lock_timeout`.
#[tokio::test]
async fn an_insert_by_hand_stalls_only_its_key() {
    let Some(bench) = Bench::new("insert").await else {
        return;
    };
    let store = bench.store();
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let insert = format!(
        "INSERT INTO {} VALUES ('b', gen_random_uuid(), 0, 0, gen_random_uuid(), 0, 0, 0, 0, '', false)",
        bench.table
    );
    sqlx::query(AssertSqlSafe(insert))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let answers = store.apply(&["a", "b", "c"].map(acquire)).await;
    assert!(matches!(answers[0], Ok(Outcome::Granted { .. })), "{answers:?}");
    assert!(
        matches!(&answers[1], Err(error) if error.kind() == StoreErrorKind::Conflict),
        "{answers:?}"
    );
    assert!(matches!(answers[2], Ok(Outcome::Granted { .. })), "{answers:?}");
    transaction.commit().await.unwrap();
    assert!(matches!(
        ask(&store, &acquire("b")).await,
        Outcome::Granted { taken_over: None, .. }
    ));
}
