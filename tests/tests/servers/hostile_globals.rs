//! A MariaDB server whose global variables are set against us. Sessions start with them, and some make a
//! server answer wrongly without an error: a `sql_select_limit` of 1 once made leases look lost.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Acquire, Action, Extend, MySqlStore, Outcome, Purged, Released, Request, Store};
use dblock::{InspectFilter, Key};
use dblock_tests::line::Database;
use dblock_tests::own_server;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use uuid::Uuid;

const TTL: Duration = Duration::from_mins(1);

/// How many keys a batch has.
const KEYS: usize = 20;

/// Each of these has broken something, or lies near what has. All session variables were tried one by one.
const HOSTILE: [&str; 24] = [
    "sql_select_limit = 0",
    "max_join_size = 1",
    "max_session_mem_used = 100000",
    "max_statement_time = 0.0001",
    "tx_read_only = 1",
    "sql_safe_updates = 1",
    "sql_auto_is_null = 1",
    "autocommit = 0",
    "completion_type = 'RELEASE'",
    "tx_isolation = 'SERIALIZABLE'",
    "sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,ORACLE'",
    "time_zone = '-11:30'",
    "character_set_client = latin1",
    "character_set_connection = latin1",
    "character_set_results = latin1",
    "collation_connection = latin1_german2_ci",
    "max_sort_length = 8",
    "in_predicate_conversion_threshold = 2",
    "unique_checks = 0",
    "foreign_key_checks = 0",
    "idle_write_transaction_timeout = 1000",
    "innodb_lock_wait_timeout = 1000",
    "lock_wait_timeout = 1000",
    "eq_range_index_dive_limit = 1",
];

fn request(name: &str, lease_id: Uuid, action: Action) -> Request {
    Request::new(Key::new(None, name).unwrap(), lease_id, action)
}

fn acquire(queue: bool) -> Action {
    let mut ask = Acquire::new(Uuid::now_v7(), TTL, "tést");
    if queue {
        ask.wanted_for = Some(TTL);
        ask.queue = Some(Duration::ZERO);
    }
    Action::Acquire(ask)
}

async fn sends(store: &MySqlStore, requests: Vec<Request>, expected: impl Fn(&Outcome) -> bool) {
    for answer in store.apply(&requests).await {
        let outcome = answer.unwrap();
        assert!(expected(&outcome), "{outcome:?}");
    }
}

/// Every action, for several keys at once or for one.
async fn works(store: &MySqlStore, names: &[String]) {
    let leases: Vec<(&String, Uuid, Uuid)> = names
        .iter()
        .map(|name| (name, Uuid::now_v7(), Uuid::now_v7()))
        .collect();
    let holders = |action: fn() -> Action| {
        let each = leases
            .iter()
            .map(|(name, holder, _)| request(name, *holder, action()));
        each.collect::<Vec<_>>()
    };
    let nexts = |action: fn() -> Action| {
        let each = leases
            .iter()
            .map(|(name, _, next)| request(name, *next, action()));
        each.collect::<Vec<_>>()
    };
    let is = |released| move |outcome: &Outcome| *outcome == Outcome::Released(released);
    sends(store, holders(|| acquire(false)), |outcome| {
        matches!(outcome, Outcome::Granted { taken_over: None, .. })
    })
    .await;
    for _ in 0..2 {
        sends(store, nexts(|| acquire(true)), |outcome| {
            matches!(outcome, Outcome::Queued { .. })
        })
        .await;
        sends(store, holders(|| Action::Extend(Extend::new(2, TTL))), |outcome| {
            matches!(outcome, Outcome::Extended { remaining, .. } if *remaining > TTL / 2 && *remaining <= TTL)
        })
        .await;
    }
    let rows = store.inspect(&InspectFilter::new()).await.unwrap();
    assert!(
        rows.iter()
            .map(|row| row.key.as_str())
            .eq(names.iter().map(String::as_str))
    );
    assert!(rows.iter().all(|row| row.holder == "tést"));
    sends(store, holders(|| Action::Release), is(Released::PassedOn)).await;
    sends(store, nexts(|| Action::Release), is(Released::Freed)).await;
    assert_eq!(store.inspect(&InspectFilter::new()).await.unwrap(), []);
}

#[tokio::test]
async fn no_global_variable_changes_an_answer() {
    let Some(server) = own_server::start(Database::MySql).await else {
        return;
    };
    let mut admin = MySqlConnection::connect(server.url()).await.unwrap();
    for hostile in HOSTILE {
        sqlx::raw_sql(AssertSqlSafe(format!("SET GLOBAL {hostile}")))
            .execute(&mut admin)
            .await
            .unwrap_or_else(|error| panic!("{hostile}: {error}"));
    }
    let store = MySqlStore::open(server.url(), "locks").unwrap();
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    let names: Vec<_> = (0..KEYS)
        .map(|n| format!("{n:03} {}ä%_", "x".repeat(n * 8)))
        .collect();
    for _ in 0..2 {
        works(&store, &names).await;
        works(&store, &names[..1]).await;
    }
    let key = Key::new(None, &names[0]).unwrap();
    let lease = Uuid::now_v7();
    sends(
        &store,
        vec![request(&names[0], lease, acquire(false))],
        |outcome| matches!(outcome, Outcome::Granted { .. }),
    )
    .await;
    assert!(store.revoke(&key).await.unwrap());
    assert!(store.force_release(&key).await.unwrap());
    let purged = store.purge(Duration::from_hours(24), None, 1_000).await.unwrap();
    assert_eq!(purged, Purged::default());
    let all = InspectFilter::new().include_free();
    assert_eq!(store.inspect(&all).await.unwrap().len(), KEYS);
}
