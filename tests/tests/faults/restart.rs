//! The server is killed and comes back: on a PostgreSQL and a MariaDB of the test's own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::LockOptions;
use dblock_tests::line::{Database, Line};
use dblock_tests::own_server;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::time::{Instant, sleep, timeout};

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[tokio::test]
async fn a_lease_outlives_a_restart_of_postgres() {
    restart(Database::Postgres).await;
}

#[tokio::test]
async fn a_lease_outlives_a_restart_of_mariadb() {
    restart(Database::MySql).await;
}

/// A transaction takes a key only where the manager's own connections are, which a restarted server has to show anew.
#[tokio::test]
async fn a_transaction_takes_keys_after_a_restart_of_postgres() {
    let Some(mut server) = own_server::start(Database::Postgres).await else {
        return;
    };
    let line = Line::to(Database::Postgres, server.url().to_owned()).await;
    let locks = line.other_process();
    locks.lock("key").run(async {}).await.unwrap();
    for _ in 0..2 {
        let pool = PgPool::connect(server.url()).await.unwrap();
        let taken = locks.lock("key").transaction(&pool, async |_| {
            let row = line.row("key").await;
            Ok::<_, Failure>(row.has_lease())
        });
        assert!(!taken.await.unwrap(), "it has no lease");
        pool.close().await;
        server.restart().await.unwrap();
    }
}

/// PostgreSQL may forget a release when it is killed right after.
async fn flush(database: Database, url: &str) {
    if database == Database::Postgres {
        let mut admin = PgConnection::connect(url).await.unwrap();
        sqlx::raw_sql("CHECKPOINT").execute(&mut admin).await.unwrap();
    }
}

async fn restart(database: Database) {
    let Some(mut server) = own_server::start(database).await else {
        return;
    };
    let line = Line::to(database, server.url().to_owned()).await;
    // Past the proxy: this is about what the operating system and the server say.
    let locks = line.other_process();
    // As many idle connections as there may be.
    let warm = (0..4).map(|number| {
        let locks = locks.clone();
        async move {
            locks
                .lock(format!("warm-{number}"))
                .run(sleep(ms(50)))
                .await
                .unwrap();
        }
    });
    futures_util::future::join_all(warm).await;

    let guard = locks.lock("held").ttl(ms(20_000)).acquire().await.unwrap();
    let lease = line.row("held").await.lease_id;
    server.kill();
    let down = Instant::now();
    // While it is down nobody is told "busy", and a caller without wait is told at once.
    let error = timeout(ms(20_000), locks.lock("held-by-nobody").acquire())
        .await
        .unwrap()
        .unwrap_err();
    assert!(error.is_store(), "{error:?}");
    let patient = tokio::spawn({
        let locks = locks.clone();
        let options = LockOptions::new().wait(ms(30_000));
        async move { locks.lock("patient").options(&options).acquire().await }
    });
    sleep(ms(2000).saturating_sub(down.elapsed())).await;
    server.restart().await.unwrap();

    // The idle connections of the old server are no error of a caller's, wait or not.
    let after = timeout(ms(20_000), locks.lock("after").acquire()).await.unwrap();
    after.unwrap().release().await.unwrap();
    timeout(ms(20_000), patient)
        .await
        .unwrap()
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();

    // Past the end of the lease as it was before the outage: it was renewed since.
    sleep(ms(21_000).saturating_sub(down.elapsed())).await;
    assert!(!guard.is_lost(), "{:?}", line.row("held").await);
    let row = line.row("held").await;
    assert_eq!((row.lease_id, row.is_held()), (lease, true));
    guard.release().await.unwrap();
    assert!(!line.is_held("held").await);

    // Restarted while nothing is asked: what is idle is stale, and the next caller does not notice.
    flush(database, server.url()).await;
    server.restart().await.unwrap();
    let rows = locks.admin().list(dblock::InspectFilter::new()).await.unwrap();
    assert!(rows.is_empty(), "{rows:?}");
    server.restart().await.unwrap();
    let calls = (0..4).map(|number| locks.lock(format!("warm-{number}")).run(async {}));
    for answer in timeout(ms(20_000), futures_util::future::join_all(calls))
        .await
        .unwrap()
    {
        answer.unwrap();
    }
}
