//! A statement that fails, for one of its rows or with its session.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{Outcome, PostgresStore, Released, Store, StoreErrorKind};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use dblock_tests::proxy::{Proxy, Traffic};
use tokio::time::timeout;

use crate::bench::{Bench, TTL, acquire, ask, ask_of, extend, one, release, token, waiting};

/// One bad row fails alone.
#[tokio::test]
async fn a_batch_that_fails_for_one_row_is_split() {
    let Some(bench) = Bench::new("split").await else {
        return;
    };
    let store = bench.store();
    let mut batch: Vec<_> = ["a", "b", "c"].map(acquire).into();
    ask_of(&mut batch[1]).holder = "a NUL \0".into();
    let answers = store.apply(&batch).await;
    assert!(matches!(answers[0], Ok(Outcome::Granted { .. })), "{answers:?}");
    assert!(
        matches!(&answers[1], Err(error) if error.kind() == StoreErrorKind::Other),
        "{answers:?}"
    );
    assert!(matches!(answers[2], Ok(Outcome::Granted { .. })), "{answers:?}");
}

/// The server ends the session: the outcome is unknown, and the next request has a new connection.
#[tokio::test]
async fn a_terminated_session_is_an_unknown_outcome() {
    let Some(bench) = Bench::new("terminated").await else {
        return;
    };
    let store = bench.store();
    let request = acquire("a");
    ask(&store, &request).await;
    // The extend waits in the server behind a table lock until its session is terminated.
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", bench.table);
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    let mut admin = bench.user().await;
    let terminate = async {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'dblock' AND wait_event_type = 'Lock' AND query LIKE '%{}%'",
            bench.table
        );
        loop {
            let row = sqlx::query(AssertSqlSafe(sql.clone()))
                .fetch_one(&mut admin)
                .await
                .unwrap();
            if row.get::<i64, _>(0) > 0 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    let renewal = async {
        loop {
            let error = one(&store, &extend(&request, 1)).await.unwrap_err();
            // It has waited for as long as it may, and nobody has terminated it by then.
            if error.kind() != StoreErrorKind::Conflict {
                return error;
            }
        }
    };
    let (error, ()) = tokio::join!(renewal, terminate);
    assert!(error.is_outcome_unknown(), "{error:?}");
    transaction.rollback().await.unwrap();
    assert!(matches!(
        ask(&store, &extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
}

/// Makes the general statements on the table wait as long as the connection lives, and then fail as in a
/// conflict. Those for the usual state of a row are carried out, and so is all that is sent after that.
async fn general_statements_fail(bench: &Bench) -> PgConnection {
    bench
        .run(
            "CREATE OR REPLACE FUNCTION {t}_fails() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF current_query() LIKE '%found AS MATERIALIZED%'
                     AND NOT pg_try_advisory_xact_lock_shared(TG_RELID::bigint)
                 THEN
                     PERFORM pg_advisory_xact_lock_shared(TG_RELID::bigint);
                     RAISE EXCEPTION 'as planned' USING ERRCODE = 'lock_not_available';
                 END IF;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER fails BEFORE UPDATE ON {t} FOR EACH STATEMENT EXECUTE FUNCTION {t}_fails()",
        )
        .await;
    let mut user = bench.user().await;
    let lock = format!(
        "SELECT pg_advisory_lock('{}'::regclass::oid::bigint)",
        bench.table
    );
    sqlx::query(AssertSqlSafe(lock)).execute(&mut user).await.unwrap();
    user
}

/// A release that was carried out is not sent again with what failed after it: somebody else has the key by
/// then, and the answer would be that the lease was lost.
#[tokio::test]
async fn a_release_before_the_failure_is_not_repeated() {
    let Some(bench) = Bench::new("release_before_failure").await else {
        return;
    };
    let (store, other) = (bench.store(), bench.store());
    let held = acquire("a");
    ask(&store, &held).await;
    // It has a connection by then: those whose statements fail wait for it no longer than a second.
    other.inspect(&InspectFilter::new()).await.unwrap();
    let failing = general_statements_fail(&bench).await;
    // Two rows that are not there: the general statement is asked about both, and then about each.
    let batch = [&held, &acquire("b"), &acquire("c")].map(release);
    let next = async {
        // The general statement is asked about a key that is busy, and waits too.
        while !other.inspect(&InspectFilter::new()).await.unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        let request = acquire("a");
        while !matches!(one(&other, &request).await, Ok(Outcome::Granted { .. })) {
            tokio::task::yield_now().await;
        }
        failing.close().await.unwrap();
    };
    let (answers, ()) = tokio::join!(store.apply(&batch), next);
    assert!(
        matches!(answers[0], Ok(Outcome::Released(Released::Freed))),
        "{answers:?}"
    );
    for answer in &answers[1..] {
        assert!(matches!(answer, Ok(Outcome::Lost)), "{answers:?}");
    }
}

/// A grant is told although the rest of the batch fails: as a failure of known outcome it would leave a lease
/// that nobody releases.
#[tokio::test]
async fn a_grant_before_the_failure_is_told() {
    let Some(bench) = Bench::new("grant_before_failure").await else {
        return;
    };
    let (store, other) = (bench.store(), bench.store());
    ask(&other, &acquire("b")).await;
    let _failing = general_statements_fail(&bench).await;
    let batch = [acquire("a"), waiting("b", TTL)];
    let answers = store.apply(&batch).await;
    assert!(matches!(answers[0], Ok(Outcome::Granted { .. })), "{answers:?}");
    assert!(
        matches!(&answers[1], Err(error) if error.kind() == StoreErrorKind::Conflict),
        "{answers:?}"
    );
}

/// A store with some idle connections through a proxy.
async fn with_idle_connections(bench: &Bench) -> (Proxy, PostgresStore) {
    let proxy = Proxy::start(bench.address());
    let store = bench.store_at(proxy.address());
    let work = async |name: &str| {
        let batch: Vec<_> = (0..200).map(|i| acquire(format!("{name} {i}"))).collect();
        drop(store.apply(&batch).await);
    };
    let renewal = extend(&acquire("d"), 1);
    // A machine that stalls may be too slow to open one in time.
    while proxy.ports().len() < 4 {
        let ((), (), (), renewed) = tokio::join!(work("a"), work("b"), work("c"), one(&store, &renewal));
        drop(renewed);
    }
    (proxy, store)
}

/// A firewall has forgotten the idle connections: the first that is asked for a sign of life stands for all.
#[tokio::test]
async fn connections_that_were_idle_for_long_stall_nobody() {
    let Some(bench) = Bench::new("idle_long").await else {
        return;
    };
    let (proxy, store) = with_idle_connections(&bench).await;
    proxy.set(Traffic::BlackHole);
    // The connections notice.
    tokio::time::sleep(Duration::from_millis(100)).await;
    proxy.set(Traffic::Flows);
    tokio::time::pause();
    tokio::time::advance(Duration::from_mins(1)).await;
    tokio::time::resume();
    let request = acquire("x");
    let granted = timeout(Duration::from_secs(2), ask(&store, &request)).await;
    token(&granted.expect("the database is there"));
    assert_eq!(proxy.ports().len(), 1, "the others are closed");
}

/// One statement that is cut off stands for all idle connections, too.
#[tokio::test]
async fn a_statement_that_is_cut_off_closes_the_idle_connections() {
    let Some(bench) = Bench::new("idle_cut_off").await else {
        return;
    };
    let (proxy, store) = with_idle_connections(&bench).await;
    proxy.set(Traffic::BlackHole);
    let cut_off = timeout(Duration::from_millis(300), one(&store, &acquire("x"))).await;
    assert!(cut_off.is_err());
    proxy.set(Traffic::Flows);
    let granted = timeout(Duration::from_secs(2), ask(&store, &acquire("y"))).await;
    token(&granted.expect("the database is there"));
}
