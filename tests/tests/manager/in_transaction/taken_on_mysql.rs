//! What is special to keys that transactions take on MySQL and MariaDB.

use std::future::pending;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockManager, begin, current, distributed_lock};
use dblock_conformance::Fixture as _;
use dblock_servers::Server;
use dblock_tests::backend::{Place, eventually};
use dblock_tests::faulty_store::{Fault, FaultyStore};
use dblock_tests::line::{self, Line};
use dblock_tests::{Backend, on_every_store, own_server};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Executor as _, MySql, MySqlPool, Transaction};
use tokio::sync::oneshot;
use tokio::time::sleep;
use uuid::Uuid;

use super::taken::enters;
use super::{Failure, Work, execute, is_free};
use crate::patient;

on_every_store!(mysql:
    a_new_key_gets_a_lease,
    a_transaction_of_the_callers_gets_a_lease,
    the_sessions_settings_decide_how,
    a_pool_of_another_schema_takes_the_same_key,
    a_key_that_was_left_is_that_of_no_caller,
    a_transaction_that_cannot_be_marked_is_not_left_open,
);

fn pool(backend: &Backend) -> &MySqlPool {
    match backend.place() {
        Place::MySql(pool, _) => pool,
        _ => unreachable!("these are tests of MySQL"),
    }
}

/// Whether a transaction takes the key, and has no lease.
async fn takes(locks: &LockManager, pool: &MySqlPool, backend: &Backend) -> bool {
    let body = locks
        .lock("key")
        .options(&patient())
        .transaction(pool, async |_| {
            let token = current().unwrap().fence_token();
            Ok::<_, Failure>(backend.the_row("key").await.fence_token < token)
        });
    body.await.unwrap()
}

/// Under REPEATABLE READ a transaction does not see a row that is made after its first read.
async fn a_new_key_gets_a_lease(backend: Backend) {
    let locks = backend.manager().await;
    assert!(!takes(&locks, pool(&backend), &backend).await);
    assert!(takes(&locks, pool(&backend), &backend).await);
}

/// It may have read before, and could not be rolled back.
async fn a_transaction_of_the_callers_gets_a_lease(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let mut tx = begin(pool(&backend)).await.unwrap();
    let token = token_in(&locks, &mut tx).await.unwrap();
    assert_eq!(backend.the_row("key").await.fence_token, token);
    tx.commit().await.unwrap();
    assert!(takes(&locks, pool(&backend), &backend).await);
}

#[distributed_lock(key = "key", ttl = "30s", wait = "30s", manager = locks, tx = tx)]
async fn token_in(locks: &LockManager, tx: &mut Transaction<'static, MySql>) -> Result<i64, Failure> {
    let _ = &tx;
    Ok(current().unwrap().fence_token())
}

/// Under SERIALIZABLE a plain read would lock the row and wait for it.
async fn the_sessions_settings_decide_how(backend: Backend) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    for (settings, takes_it) in [
        ("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", true),
        ("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", true),
        ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", false),
        ("SET NAMES binary", true),
        (
            "SET NAMES latin1, collation_connection = ucs2_general_ci, time_zone = '+13:00'",
            true,
        ),
        (
            "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES', sql_safe_updates = 1",
            true,
        ),
        (
            "SET /*M!100300 sql_mode = 'SIMULTANEOUS_ASSIGNMENT', */ autocommit = 1",
            true,
        ),
        ("/*M!100618 SET innodb_snapshot_isolation = ON */", true),
    ] {
        let connects = MySqlPoolOptions::new().after_connect(move |connection, _| {
            Box::pin(async move { connection.execute(sqlx::raw_sql(settings)).await.map(drop) })
        });
        let options = pool(&backend).connect_options().as_ref().clone();
        let theirs = connects.connect_with(options).await.unwrap();
        assert_eq!(takes(&locks, &theirs, &backend).await, takes_it, "{settings}");
        theirs.close().await;
    }
}

/// To ask whether it is would lock the row, which others have by now.
async fn a_key_that_was_left_is_that_of_no_caller(backend: Backend) {
    let store = FaultyStore::over(backend.store().await);
    let (locks, other) = (store.manager(), backend.manager().await);
    is_free(&locks).await;
    let (inside, is_inside) = oneshot::channel();
    let options = patient();
    let call = locks
        .lock("key")
        .options(&options)
        .transaction(pool(&backend), async |_| {
            inside.send(()).unwrap();
            pending::<Result<(), Failure>>().await
        });
    tokio::select! {
        ended = call => panic!("{ended:?}"),
        told = is_inside => told.unwrap(),
    }
    store.down(&Fault::Fail(StoreErrorKind::Unreachable));
    let holds = other.lock("key").options(&patient()).acquire().await.unwrap();
    let token = holds.fence_token();
    let mut tx = begin(pool(&backend)).await.unwrap();
    let releases = async {
        sleep(Duration::from_millis(300)).await;
        store.heal();
        holds.release().await.unwrap();
    };
    let (entered, ()) = tokio::join!(token_in(&locks, &mut tx), releases);
    assert!(entered.unwrap() > token);
    tx.commit().await.unwrap();
}

/// The next user of its connection would be in it: sqlx would not know that it is open.
async fn a_transaction_that_cannot_be_marked_is_not_left_open(backend: Backend) {
    let (locks, work) = (backend.manager().await, Work::new(&backend).await);
    is_free(&locks).await;
    let options = pool(&backend).connect_options().as_ref().clone();
    let database = options.get_database().unwrap().to_owned();
    let mut written = 0;
    // One statement after the other is refused.
    for most in 2.. {
        let user = format!("u{}", &Uuid::now_v7().simple().to_string()[12..]);
        let create = format!(
            "CREATE USER {user} IDENTIFIED BY 'secret' WITH MAX_QUERIES_PER_HOUR {most};
             GRANT ALL ON {database}.* TO {user}"
        );
        execute(pool(&backend), create).await.unwrap();
        let options = options.clone().username(&user).password("secret");
        let theirs = MySqlPoolOptions::new().max_connections(1);
        let theirs = theirs.connect_with(options).await.unwrap();
        let entered = enters(&locks, &theirs).await;
        execute(pool(&backend), "FLUSH USER_RESOURCES".to_owned())
            .await
            .unwrap();
        if entered.is_err() {
            written += 1;
            execute(&theirs, work.insert()).await.unwrap();
            assert_eq!(
                work.done(&backend).await,
                written,
                "{most} statements, {entered:?}"
            );
        }
        theirs.close().await;
        execute(pool(&backend), format!("DROP USER {user}"))
            .await
            .unwrap();
        if entered.is_ok() {
            break;
        }
    }
    assert!(written > 1);
}

/// The statements name the database. One of the same name there is not touched.
async fn a_pool_of_another_schema_takes_the_same_key(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    is_free(&locks).await;
    let schema = format!("{}_other", backend.table);
    execute(pool(&backend), format!("CREATE DATABASE {schema}"))
        .await
        .unwrap();
    let options = pool(&backend).connect_options().as_ref().clone();
    let elsewhere = MySqlPool::connect_with(options.database(&schema)).await.unwrap();
    let there = LockManager::builder(&elsewhere)
        .table(&backend.table)
        .auto_migrate(true);
    let there = there.build().await.unwrap();
    is_free(&there).await;

    let body = locks
        .lock("key")
        .options(&patient())
        .transaction(&elsewhere, async |_| {
            super::nobody_enters(&backend, &other).await;
            is_free(&there).await;
            Ok::<_, Failure>(current().unwrap().fence_token())
        });
    let token = body.await.unwrap();
    assert_eq!(backend.the_row("key").await.fence_token, token);
    elsewhere.close().await;
    execute(pool(&backend), format!("DROP DATABASE {schema}"))
        .await
        .unwrap();
}

/// It would not see a lease, nor keep anybody out.
#[tokio::test]
async fn another_server_is_refused_and_nothing_is_done_there() {
    let Some(line) = Line::new(line::Database::MySql).await else {
        return;
    };
    let Some(server) = own_server::start(line::Database::MySql).await else {
        return;
    };
    let locks = line.manager().await;
    is_free(&locks).await;
    let elsewhere = of_the_same_name(&server, &line.url).await;
    let there = LockManager::builder(&elsewhere)
        .table(&line.table)
        .auto_migrate(true);
    let there = there.build().await.unwrap();
    is_free(&there).await;
    let row = format!("SELECT HEX(lease_id) FROM {} WHERE lock_key = 'key'", line.table);
    let row = async || {
        sqlx::query_scalar::<_, String>(AssertSqlSafe(row.clone()))
            .fetch_one(&elsewhere)
            .await
            .unwrap()
    };
    let before = row().await;
    for _ in 0..2 {
        let refused = enters(&locks, &elsewhere).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unsupported);
    }
    assert_eq!(row().await, before);
    is_free(&there).await;
}

/// A pool of a database on `server` that is called as that of `url`.
async fn of_the_same_name(server: &Server, url: &str) -> MySqlPool {
    let options: MySqlConnectOptions = url.parse().unwrap();
    let database = options.get_database().unwrap();
    let admin = MySqlPool::connect(server.url()).await.unwrap();
    execute(&admin, format!("CREATE DATABASE IF NOT EXISTS {database}"))
        .await
        .unwrap();
    let options = admin.connect_options().as_ref().clone();
    MySqlPool::connect_with(options.database(database)).await.unwrap()
}

/// What the store's own session has kept is gone with it, and so is the proof that the servers are the same.
#[tokio::test]
async fn a_store_whose_sessions_have_ended_takes_keys_all_the_same() {
    let Some(line) = Line::new(line::Database::MySql).await else {
        return;
    };
    let locks = line.manager().await;
    is_free(&locks).await;
    let pool = MySqlPool::connect(&line.url).await.unwrap();
    let mut ended = 0;
    for _ in 0..3 {
        let before = line.row("key").await.fence_token;
        let body = locks
            .lock("key")
            .options(&patient())
            .transaction(&pool, async |_| {
                let row = line.row("key").await;
                assert_eq!(row.fence_token, before, "it has no lease");
                Ok::<_, Failure>(())
            });
        body.await.unwrap();
        assert!(line.row("key").await.fence_token > before);
        let ports = line.proxy.ports();
        ended += ports.len();
        for port in &ports {
            let id = format!(
                "SELECT CAST(ID AS SIGNED) FROM information_schema.PROCESSLIST WHERE HOST LIKE '%:{port}'"
            );
            let id: i64 = sqlx::query_scalar(AssertSqlSafe(id))
                .fetch_one(&pool)
                .await
                .unwrap();
            execute(&pool, format!("KILL {id}")).await.unwrap();
        }
        // A session goes on for a moment.
        let have_ended = || !line.proxy.ports().iter().any(|port| ports.contains(port));
        eventually("the sessions have ended", have_ended).await;
    }
    assert!(ended > 0);
}
