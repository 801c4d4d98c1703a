//! A PostgreSQL primary that hangs, is replaced, and goes on.

use std::time::Duration;

use dblock::{LockError, LockManager};
use dblock_tests::own_server;
use dblock_tests::proxy::{Proxy, Traffic};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};

use crate::{moves, patient, process};

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn run(url: &str, statements: &[&str]) {
    let mut admin = PgConnection::connect(url).await.unwrap();
    for statement in statements {
        let statement = sqlx::raw_sql(AssertSqlSafe((*statement).to_owned()));
        statement.execute(&mut admin).await.unwrap();
    }
}

async fn rows_of(url: &str, key: &str) -> i64 {
    let mut admin = PgConnection::connect(url).await.unwrap();
    let rows = sqlx::query_scalar("SELECT count(*) FROM distributed_lock WHERE lock_key = $1").bind(key);
    rows.fetch_one(&mut admin).await.unwrap()
}

#[tokio::test]
async fn an_old_primary_that_goes_on_grants_nothing() {
    moves::note();
    let Some(mut pair) = own_server::pair().await else {
        return;
    };
    let (old, new) = (pair.primary().url().to_owned(), pair.standby().url().to_owned());
    let address = pair.standby().address();
    let line = Proxy::start(address.parse().unwrap());
    let url = pair.url().replace(&address, &line.address().to_string());
    let locks = LockManager::builder_for_url(&url).unwrap();
    let locks = locks.auto_migrate(true).build().await.unwrap();
    let quiet = process(&url).await;
    for locks in [&locks, &quiet] {
        locks
            .lock("warm")
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    // Its commit takes the releases before it along to the standby.
    locks.lock("last").run(async {}).await.unwrap();
    // It is not kept from granting by a standby that it waits for.
    let alone = [
        "ALTER SYSTEM SET synchronous_standby_names = ''",
        "SELECT pg_reload_conf()",
    ];
    run(&old, &alone).await;

    pair.primary().pause().unwrap();
    pair.promote().await.unwrap();
    // The old primary gets the first request when it goes on, and nobody waits for its answer any more.
    locks
        .lock("moves")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let held = locks.lock("held").options(&patient()).acquire().await.unwrap();
    pair.standby().wake().unwrap();
    // A manager of this process to which nothing has happened: its connection to the old primary is there.
    let refused = quiet.lock("held").try_acquire().await.unwrap();
    assert!(refused.is_none(), "granted by the old primary");

    // The new one is slow. A connection to it breaks, and a process starts, which knows it by another address.
    line.set(Traffic::Refused);
    let far = Proxy::start(address.parse().unwrap());
    for line in [&line, &far] {
        line.set(Traffic::Slow(Duration::from_millis(70)));
    }
    locks
        .lock("next")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!((rows_of(&old, "next").await, rows_of(&new, "next").await), (0, 1));
    let started = process(&pair.url().replace(&address, &far.address().to_string())).await;
    let refused = started.lock("held").try_acquire().await.unwrap();
    assert!(refused.is_none(), "granted by the old primary");

    // An application whose pool still is at the old one: no transaction there takes a key, free as it may be.
    let pool = PgPool::connect(&old).await.unwrap();
    let taken = locks
        .lock("warm")
        .transaction(&pool, async |_| -> Result<(), Failure> {
            unreachable!("the transaction is on the old primary")
        });
    let error = taken.await.unwrap_err();
    let error = error.downcast::<LockError>().unwrap();
    assert!(error.is_store() && !error.is_retryable(), "{error:?}");
    pool.close().await;

    // The new one is away.
    line.set(Traffic::Refused);
    let error = locks.lock("free").acquire().await.unwrap_err();
    assert!(error.is_store() && error.is_retryable(), "{error:?}");
    assert!(format!("{error:?}").contains("it is an old primary"), "{error:?}");
    line.set(Traffic::Flows);
    locks
        .lock("free")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert!(!held.is_lost());
    held.release().await.unwrap();
}
