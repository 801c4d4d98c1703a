//! Clients that vanish without a word, and servers that cannot write.

use std::time::{Duration, Instant};

use dblock::store::{MySqlStore, Outcome, Released, Request, Store, StoreErrorKind};
use dblock_tests::line::Database;
use dblock_tests::own_server;
use dblock_tests::proxy::{Proxy, Traffic, Trick};
use sqlx::mysql::MySqlConnection;
use sqlx::{ConnectOptions, Connection};

use crate::place::Place;
use crate::{acquire, extend, kind, one, release, run, token};

/// Asks for the release of a row that somebody has locked until it is done; how long that was.
async fn freed_after(store: &MySqlStore, holder: &Request) -> Duration {
    let started = Instant::now();
    loop {
        match one(store, release(holder)).await {
            Outcome::Skipped => tokio::time::sleep(Duration::from_millis(50)).await,
            Outcome::Released(Released::Freed) => return started.elapsed(),
            other => panic!("{other:?}"),
        }
        assert!(started.elapsed() < Duration::from_mins(1), "nobody frees the row");
    }
}

#[tokio::test]
async fn a_batch_whose_client_vanished_keeps_its_rows_for_seconds() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let holder = acquire("k");
    token(&one(&store, holder.clone()).await);
    let proxy = Proxy::start(place.address());
    let vanishing = place.store_at(&proxy.address().to_string());
    // The rows are locked, and nothing comes after that.
    let locks = |sent: &[u8]| String::from_utf8_lossy(sent).contains("SKIP LOCKED");
    proxy.look_out(Trick::Silence, Box::new(locks));
    let batch = [extend(&holder, 2), acquire("other")];
    let vanished = tokio::spawn(async move { vanishing.apply(&batch).await });
    while one(&store, extend(&holder, 1)).await != Outcome::Skipped {
        tokio::task::yield_now().await;
    }
    let locked = freed_after(&store, &holder).await;
    // MySQL cannot end just the transaction of an idle session.
    let most = if place.is_mariadb().await { 15 } else { 45 };
    assert!(locked < Duration::from_secs(most), "{locked:?}");
    vanished.abort();
}

#[tokio::test]
async fn a_checked_transaction_whose_client_vanished_ends_with_its_session() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let holder = acquire("k");
    let fence_token = token(&one(&store, holder.clone()).await);
    let proxy = Proxy::start(place.address());
    let options = place.options().port(proxy.address().port());
    let mut user = options.disable_statement_logging().connect().await.unwrap();
    // The documentation tells the application to set this.
    run(&mut user, "SET SESSION wait_timeout = 2").await;
    run(&mut user, "BEGIN").await;
    let left = store
        .verify_on(&mut user, &holder.key, holder.lease_id, fence_token)
        .await;
    assert!(left.unwrap().is_some());
    proxy.set(Traffic::BlackHole);
    assert_eq!(one(&store, release(&holder)).await, Outcome::Skipped);
    let locked = freed_after(&store, &holder).await;
    assert!(locked < Duration::from_secs(15), "{locked:?}");
    drop(user);
}

/// The documentation's sentence about savepoints.
#[tokio::test]
async fn a_rollback_to_a_savepoint_keeps_the_row_unless_the_savepoint_came_first() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut user = place.connection().await;
    let first = format!(
        "BEGIN; SELECT COUNT(*) FROM {}; SAVEPOINT before_the_check",
        place.table
    );
    for (begin, keeps) in [
        (first.as_str(), true),
        ("BEGIN; SAVEPOINT before_the_check", false),
    ] {
        let holder = acquire("k");
        let fence_token = token(&one(&store, holder.clone()).await);
        run(&mut user, begin).await;
        let left = store
            .verify_on(&mut user, &holder.key, holder.lease_id, fence_token)
            .await;
        assert!(left.unwrap().is_some());
        run(&mut user, "ROLLBACK TO before_the_check").await;
        let released = one(&store, release(&holder)).await;
        assert_eq!(released == Outcome::Skipped, keeps, "{begin}: {released:?}");
        run(&mut user, "COMMIT").await;
        if keeps {
            freed_after(&store, &holder).await;
        }
    }
}

#[tokio::test]
async fn a_read_only_server_is_named_and_worth_another_try() {
    let Some(server) = own_server::start(Database::MySql).await else {
        return;
    };
    let mut admin = MySqlConnection::connect(server.url()).await.unwrap();
    MySqlStore::open(server.url(), "locks")
        .unwrap()
        .migrate()
        .await
        .unwrap();
    let url = own_server::app_of(&server).await;
    let store = MySqlStore::open(&url, "locks").unwrap();
    let holder = acquire("k");
    token(&one(&store, holder.clone()).await);
    run(&mut admin, "SET GLOBAL read_only = 1").await;
    for batch in [vec![extend(&holder, 1)], vec![release(&holder), acquire("l")]] {
        for answer in store.apply(&batch).await {
            let (kind, text) = kind(answer);
            assert_eq!(kind, StoreErrorKind::Unreachable, "{text}");
            assert!(text.contains("read-only") && text.contains("primary"), "{text}");
        }
    }
    run(&mut admin, "SET GLOBAL read_only = 0").await;
    assert!(matches!(
        one(&store, release(&holder)).await,
        Outcome::Released(Released::Freed)
    ));
}
