//! The SQL of the documents runs on each database that it names, and shows or does what the runbooks say.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use dblock::{LockError, LockOptions, OnCrash, Run, RunOptions};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind, on_every_store};
use sqlx::AssertSqlSafe;

on_every_store!(databases:
    every_statement_runs,
    the_list_shows_the_holder,
    runs_in_doubt_are_listed_and_running_ones_are_not,
    a_restored_table_is_free_and_its_tokens_go_on,
);
on_every_store!(servers: the_transaction_that_keeps_a_row_is_found_and_ended);

const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const SETUP: &str = include_str!("../../../docs/setup.md");

/// The statements of `text` for a database. The first line of a block names its databases.
fn statements(text: &str, backend: &Backend) -> Vec<String> {
    let database = match backend.kind() {
        Kind::Postgres => "PostgreSQL",
        Kind::MySql => "MariaDB",
        Kind::Sqlite => "SQLite",
        Kind::Memory | Kind::PausedMemory => unreachable!("no SQL"),
    };
    let mut found = Vec::new();
    for block in text.split("```sql\n").skip(1) {
        let (names, statement) = block.split("```").next().unwrap().split_once('\n').unwrap();
        assert!(names.contains("-- "), "no comment names the database: {names}");
        if names.contains(database) {
            found.push(statement.replace("distributed_lock", &backend.table));
        }
    }
    found
}

/// The only statement for a database in `text` that contains `word`.
fn statement(text: &str, word: &str, backend: &Backend) -> String {
    let mut found = statements(text, backend);
    found.retain(|statement| statement.contains(word));
    assert_eq!(found.len(), 1, "{word}: {found:?}");
    found.remove(0)
}

/// Two columns of the rows of a query, as a text and as a number.
async fn rows(backend: &Backend, query: &str, text: &str, number: &str) -> Vec<(String, f64)> {
    let query = query.trim().trim_end_matches(';');
    let select = |texts: &str, numbers: &str| {
        AssertSqlSafe(format!(
            "SELECT CAST({text} AS {texts}), CAST({number} AS {numbers}) FROM ({query}) AS found"
        ))
    };
    match backend.place() {
        Place::Postgres(pool, _) => {
            sqlx::query_as(select("text", "double precision"))
                .fetch_all(pool)
                .await
        }
        Place::MySql(pool, _) => sqlx::query_as(select("char", "double")).fetch_all(pool).await,
        Place::Sqlite(pool, _) => sqlx::query_as(select("text", "real")).fetch_all(pool).await,
        Place::Memory(_) => unreachable!("no SQL"),
    }
    .unwrap()
}

async fn every_statement_runs(backend: Backend) {
    let here = statements(OPERATIONS, &backend);
    let grants = statements(SETUP, &backend);
    assert!(here.len() >= 3, "{here:?}");
    for statement in here.iter().chain(&grants) {
        // Nobody is called `app` here.
        backend
            .execute(&statement.replace("TO app", "TO CURRENT_USER"))
            .await;
    }
}

async fn the_list_shows_the_holder(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks
        .lock("order:42")
        .options(&LockOptions::new().function("shop::settle"))
        .acquire()
        .await
        .unwrap();
    let list = statement(OPERATIONS, "ORDER BY acquired_at", &backend);
    let found = rows(&backend, &list, "lock_key", "seconds_left").await;
    let [(key, left)] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!(key, "order:42");
    assert!((0.0..30.1).contains(left), "{left}");
    let holders = rows(&backend, &list, "holder", "fence_token").await;
    assert!(holders[0].0.ends_with("shop::settle"), "{holders:?}");
    let since = rows(&backend, &list, "since", "reentrant_count").await;
    assert!(since[0].0.starts_with("20"), "{since:?}");
    guard.release().await.unwrap();
    assert!(rows(&backend, &list, "lock_key", "seconds_left").await.is_empty());
}

async fn runs_in_doubt_are_listed_and_running_ones_are_not(backend: Backend) {
    let locks = backend.manager().await;
    let stop = || RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let list = statement(OPERATIONS, "ORDER BY r.started_at", &backend);
    let found = async || rows(&backend, &list, "record_key", "attempts").await;
    let silent = async |run: Run| {
        assert!(found().await.is_empty(), "it is running");
        run.leave_in_doubt();
        Err::<u8, _>(LockError::NoManager)
    };
    locks.run_once("pay:42", stop(), silent).await.unwrap_err();
    assert_eq!(found().await, [("pay:42".to_owned(), 1.0)]);
    let began = rows(&backend, &list, "began", "fence_token").await;
    assert!(began[0].0.starts_with("20"), "{began:?}");
}

async fn a_restored_table_is_free_and_its_tokens_go_on(backend: Backend) {
    let (gone, locks) = (backend.manager().await, backend.manager().await);
    let before = gone.lock("order:42").acquire().await.unwrap();
    backend
        .execute(&statement(OPERATIONS, "SET expire_at = 0", &backend))
        .await;
    backend
        .execute(&statement(OPERATIONS, "SET fence_ceiling", &backend))
        .await;
    let after = locks.lock("order:42").acquire().await.unwrap();
    let hour = 3_600_000_000;
    assert!(after.fence_token() > before.fence_token() + hour - 60_000_000);
}

async fn the_transaction_that_keeps_a_row_is_found_and_ended(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("order:42").acquire().await.unwrap();
    match backend.place() {
        Place::Postgres(pool, _) => {
            let mut tx = dblock::begin(pool).await.unwrap();
            guard.verify_in(&mut tx).await.unwrap();
            let id: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            let query = statement(OPERATIONS, "idle in transaction", &backend);
            until_found(&backend, &query, "pid", id).await;
            backend
                .execute(&format!("SELECT pg_terminate_backend({id})"))
                .await;
            tx.commit().await.unwrap_err();
        }
        Place::MySql(pool, _) => {
            let mut tx = dblock::begin(pool).await.unwrap();
            guard.verify_in(&mut tx).await.unwrap();
            let id: i32 = sqlx::query_scalar("SELECT CAST(CONNECTION_ID() AS SIGNED INTEGER)")
                .fetch_one(&mut *tx)
                .await
                .unwrap();
            let query = statement(OPERATIONS, "innodb_trx", &backend);
            until_found(&backend, &query, "id", id).await;
            backend.execute(&format!("KILL {id}")).await;
            tx.commit().await.unwrap_err();
        }
        Place::Sqlite(..) | Place::Memory(_) => unreachable!("servers only"),
    }
    // Nobody keeps the row any more.
    guard.release().await.unwrap();
}

/// The server shows a transaction a moment later.
async fn until_found(backend: &Backend, query: &str, column: &str, id: i32) {
    let since = Instant::now();
    loop {
        let found = rows(backend, query, column, column).await;
        if found.iter().any(|(text, _)| *text == id.to_string()) {
            return;
        }
        assert!(
            since.elapsed() < Duration::from_secs(30),
            "{id} is not among {found:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
