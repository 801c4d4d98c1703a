//! What is special to MySQL and MariaDB. The rules that every store keeps are in the conformance suite.
//!
//! `DBLOCK_TEST_MYSQL_URL` names a throw-away server by address and a superuser of it. Without it these
//! tests are left out, loudly, or fail when `DBLOCK_TEST_REQUIRE_SERVERS=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dblock::Key;
use dblock::store::mysql::MySqlStore;
use dblock::store::{Action, InspectFilter, Outcome, Request, Store, StoreError, StoreErrorKind};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(30);
const DATABASE: &str = "dblock_test";

/// A table of its own on the test server.
struct Place {
    url: String,
    table: String,
}

impl Place {
    /// `None` when no server is given. The table is not created yet.
    async fn bare() -> Option<Self> {
        let url = dblock_tests::mysql_url()?;
        let place = Self {
            url,
            table: format!("{DATABASE}.t{}", Uuid::now_v7().simple()),
        };
        place
            .run(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))
            .await;
        Some(place)
    }

    /// With the tables in it.
    async fn migrated() -> Option<Self> {
        let place = Self::bare().await?;
        place.store().migrate().await.unwrap();
        Some(place)
    }

    fn store(&self) -> MySqlStore {
        MySqlStore::open(&self.url, &self.table).unwrap()
    }

    fn store_as(&self, user: &str, password: &str) -> MySqlStore {
        let options = self.options();
        let url = format!(
            "mysql://{user}:{password}@{}:{}",
            options.get_host(),
            options.get_port()
        );
        MySqlStore::open(&url, &self.table).unwrap()
    }

    fn options(&self) -> MySqlConnectOptions {
        self.url.parse().unwrap()
    }

    /// A connection of the user's, with the server's own settings.
    async fn connection(&self) -> MySqlConnection {
        self.options()
            .disable_statement_logging()
            .connect()
            .await
            .unwrap()
    }

    async fn run(&self, sql: &str) {
        run(&mut self.connection().await, sql).await;
    }

    /// A user who has just the given rights on the lock table and its version table.
    async fn user(&self, name: &str, rights: &str) {
        for host in ["localhost", "%"] {
            self.run(&format!(
                "CREATE USER IF NOT EXISTS '{name}'@'{host}' IDENTIFIED BY 'pw'"
            ))
            .await;
            for suffix in ["", "_version"] {
                if !rights.is_empty() {
                    self.run(&format!(
                        "GRANT {rights} ON {}{suffix} TO '{name}'@'{host}'",
                        self.table
                    ))
                    .await;
                }
            }
        }
    }
}

async fn run(connection: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

fn key(text: impl AsRef<str>) -> Key {
    Key::new(None, text.as_ref()).unwrap()
}

fn acquire(name: impl AsRef<str>) -> Request {
    let action = Action::Acquire {
        owner: Uuid::now_v7(),
        ttl: TTL,
        holder: "test".into(),
        wanted_for: None,
        spare_tokens: 0,
    };
    Request {
        key: key(name),
        lease_id: Uuid::now_v7(),
        action,
    }
}

fn extend(of: &Request, count: u32) -> Request {
    Request {
        action: Action::Extend {
            count,
            ttl: TTL,
            successor: None,
        },
        ..of.clone()
    }
}

fn release(of: &Request) -> Request {
    Request {
        action: Action::Release,
        ..of.clone()
    }
}

async fn one(store: &MySqlStore, request: Request) -> Outcome {
    store.apply(&[request]).await.pop().unwrap().unwrap()
}

/// Asks again while the row is locked by somebody else.
async fn settled(store: &MySqlStore, request: Request) -> Outcome {
    loop {
        match one(store, request.clone()).await {
            Outcome::Skipped => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
}

fn token(outcome: &Outcome) -> i64 {
    let Outcome::Granted { fence_token, .. } = outcome else {
        panic!("{outcome:?}")
    };
    *fence_token
}

fn kind<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> (StoreErrorKind, String) {
    let error = answer.unwrap_err();
    (error.kind(), error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sessions_racing_on_one_key_are_never_both_granted() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let inside = AtomicBool::new(false);
    let last_token = AtomicI64::new(0);
    let grants = AtomicU32::new(0);
    let racer = || async {
        let store = place.store();
        for _ in 0..2_000 {
            let request = acquire("hot");
            let outcome = one(&store, request.clone()).await;
            if !matches!(outcome, Outcome::Granted { .. }) {
                assert!(
                    matches!(outcome, Outcome::Busy(_) | Outcome::Skipped),
                    "{outcome:?}"
                );
                // What somebody without the lease sends changes nothing.
                let late = one(&store, extend(&request, 5)).await;
                assert!(matches!(late, Outcome::Lost | Outcome::Skipped), "{late:?}");
                continue;
            }
            assert!(!inside.swap(true, Ordering::SeqCst), "two grants at once");
            let token = token(&outcome);
            assert!(last_token.swap(token, Ordering::SeqCst) < token, "tokens grow");
            let extended = settled(&store, extend(&request, 1)).await;
            assert!(matches!(extended, Outcome::Extended { .. }), "{extended:?}");
            grants.fetch_add(1, Ordering::Relaxed);
            inside.store(false, Ordering::SeqCst);
            let released = settled(&store, release(&request)).await;
            assert!(
                matches!(released, Outcome::Released { freed: true, .. }),
                "{released:?}"
            );
        }
    };
    tokio::join!(racer(), racer());
    assert!(
        grants.into_inner() > 500,
        "the race was one-sided or hardly took place"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_in_mixed_order_meet_no_error_and_no_deadlock() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = Arc::new(place.store());
    let holders: Arc<Mutex<std::collections::HashMap<Key, Uuid>>> = Arc::default();
    let tasks = (0..3).map(|_| {
        let (store, holders) = (store.clone(), holders.clone());
        tokio::spawn(async move {
            for round in 0..20 {
                // Each round starts with keys that have no row yet, so that inserts collide too.
                let mut requests: Vec<_> = (0..100).map(|n| acquire(format!("{}:{n}", round / 2))).collect();
                fastrand::shuffle(&mut requests);
                let answers = store.apply(&requests).await;
                let mut mine = Vec::new();
                for (request, answer) in requests.iter().zip(answers) {
                    if let Outcome::Granted { .. } = answer.unwrap() {
                        let before = holders
                            .lock()
                            .unwrap()
                            .insert(request.key.clone(), request.lease_id);
                        assert_eq!(before, None, "{} was granted twice", request.key);
                        mine.push(request.clone());
                    }
                }
                while !mine.is_empty() {
                    fastrand::shuffle(&mut mine);
                    let half = mine.split_off(mine.len() / 2);
                    let mut mixed: Vec<_> = half.iter().map(release).collect();
                    mixed.extend(mine.iter().map(|request| extend(request, 2)));
                    for request in &half {
                        holders.lock().unwrap().remove(&request.key);
                    }
                    let answers = store.apply(&mixed).await;
                    for (request, answer) in mixed.iter().zip(answers) {
                        match answer.unwrap() {
                            Outcome::Skipped if request.action == Action::Release => {
                                let freed = settled(&store, request.clone()).await;
                                assert!(
                                    matches!(freed, Outcome::Released { freed: true, .. }),
                                    "{freed:?}"
                                );
                            }
                            Outcome::Released { freed: true, .. }
                            | Outcome::Extended { .. }
                            | Outcome::Skipped => {}
                            other => panic!("{other:?}"),
                        }
                    }
                }
            }
        })
    });
    for done in futures_util::future::join_all(tasks).await {
        done.unwrap();
    }
    let rows = store
        .inspect(&InspectFilter::new().include_free().limit(10_000))
        .await
        .unwrap();
    assert_eq!(rows.len(), 1_000);
    assert!(rows.iter().all(|row| row.reentrant_count == 0));
}

#[tokio::test]
async fn a_row_locked_by_a_users_transaction_stalls_nobody_else() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let held: Vec<_> = (0..20).map(|n| acquire(format!("k{n}"))).collect();
    for answer in store.apply(&held).await {
        token(&answer.unwrap());
    }
    let mut user = place.connection().await;
    let locked = &held[7];
    let fence_token = store.inspect(&InspectFilter::new().prefix("k7")).await.unwrap()[0].fence_token;
    run(&mut user, "BEGIN").await;
    let left = store
        .verify_on(&mut user, &locked.key, locked.lease_id, fence_token)
        .await
        .unwrap();
    assert!(left.is_some());

    let started = Instant::now();
    let mut batch: Vec<_> = held.iter().map(|request| extend(request, 1)).collect();
    batch.push(acquire("new"));
    for (request, answer) in batch.iter().zip(store.apply(&batch).await) {
        match answer.unwrap() {
            Outcome::Skipped => assert_eq!(request.key, locked.key),
            Outcome::Extended { .. } => assert_ne!(request.key, locked.key),
            Outcome::Granted { .. } => assert_eq!(request.key, key("new")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(one(&store, release(locked)).await, Outcome::Skipped);
    let Outcome::Busy(occupant) = one(&store, acquire("k7")).await else {
        panic!("a held key is busy")
    };
    assert_eq!(occupant.fence_token, fence_token);
    assert!(
        started.elapsed() < Duration::from_millis(500),
        "{:?}",
        started.elapsed()
    );

    run(&mut user, "COMMIT").await;
    assert!(matches!(
        one(&store, release(locked)).await,
        Outcome::Released { freed: true, .. }
    ));
}

#[tokio::test]
async fn an_insert_that_waits_holds_back_only_itself() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut other = place.connection().await;
    run(&mut other, "BEGIN").await;
    let insert = format!(
        "INSERT INTO {} VALUES ('b', '', 0, 0, '', 1, 1, 0, 0, '', 0)",
        place.table
    );
    run(&mut other, &insert).await;
    let batch = [acquire("c"), acquire("b"), acquire("a")];
    let answers = store.apply(&batch).await;
    let outcomes: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert!(matches!(outcomes[0], Outcome::Granted { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], Outcome::Skipped);
    assert!(matches!(outcomes[2], Outcome::Granted { .. }), "{outcomes:?}");
    run(&mut other, "COMMIT").await;
    assert!(matches!(
        one(&store, acquire("b")).await,
        Outcome::Granted { taken_over: None, .. }
    ));
}

#[tokio::test]
async fn a_request_that_the_database_refuses_fails_alone() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let held: Vec<_> = (0..10).map(|n| acquire(format!("k{n}"))).collect();
    for answer in store.apply(&held).await {
        token(&answer.unwrap());
    }
    // More than the column can hold.
    let batch: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(n, request)| extend(request, if n == 4 { u32::MAX } else { 2 }))
        .collect();
    for (n, answer) in store.apply(&batch).await.into_iter().enumerate() {
        match answer {
            Ok(Outcome::Extended { .. }) => assert_ne!(n, 4),
            Err(error) if n == 4 => assert_eq!(error.kind(), StoreErrorKind::Other, "{error}"),
            other => panic!("{n}: {other:?}"),
        }
    }
    let rows = store.inspect(&InspectFilter::new()).await.unwrap();
    let counts: Vec<_> = rows.iter().map(|row| row.reentrant_count).collect();
    assert_eq!(counts, [2, 2, 2, 2, 1, 2, 2, 2, 2, 2]);
}

#[tokio::test]
async fn connections_that_the_server_closed_while_idle_are_replaced() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    place.user("dblock_idle", "SELECT, INSERT, UPDATE, DELETE").await;
    let store = place.store_as("dblock_idle", "pw");
    let request = acquire("k");
    token(&one(&store, request.clone()).await);
    let mut admin = place.connection().await;
    let find = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = 'dblock_idle'";
    let ids: Vec<i64> = sqlx::query_scalar(find).fetch_all(&mut admin).await.unwrap();
    assert!(!ids.is_empty());
    for id in &ids {
        run(&mut admin, &format!("KILL {id}")).await;
    }
    assert!(matches!(
        one(&store, release(&request)).await,
        Outcome::Released { freed: true, .. }
    ));
}

#[tokio::test]
async fn ten_migrations_at_once_all_succeed() {
    let Some(place) = Place::bare().await else { return };
    let stores: Vec<_> = (0..10).map(|_| place.store()).collect();
    for done in futures_util::future::join_all(stores.iter().map(Store::migrate)).await {
        done.unwrap();
    }
    stores[0].check_schema().await.unwrap();
    token(&one(&stores[1], acquire("k")).await);
    stores[2].migrate().await.unwrap();
    assert_eq!(
        stores[3].inspect(&InspectFilter::new()).await.unwrap().len(),
        1,
        "migrating again keeps the rows"
    );
}

#[tokio::test]
async fn the_script_runs_by_hand_and_twice() {
    let Some(place) = Place::bare().await else { return };
    let database = format!("dblock_hand_{}", Uuid::now_v7().simple());
    let script = include_str!("../../dblock/migrations/mysql/0001_distributed_lock.sql");
    let mut admin = place.connection().await;
    run(&mut admin, &format!("CREATE DATABASE {database}; USE {database}")).await;
    run(&mut admin, script).await;
    run(&mut admin, script).await;
    let store = MySqlStore::open(&place.url, &format!("{database}.distributed_lock")).unwrap();
    store.check_schema().await.unwrap();
    token(&one(&store, acquire("k")).await);
    run(&mut admin, &format!("DROP DATABASE {database}")).await;
}

#[tokio::test]
async fn a_missing_older_or_newer_table_names_its_remedy() {
    let Some(place) = Place::bare().await else { return };
    let store = place.store();
    for answer in [
        store.check_schema().await,
        store.apply(&[acquire("k")]).await.pop().unwrap().map(drop),
    ] {
        let (kind, text) = kind(answer);
        assert_eq!(kind, StoreErrorKind::Schema);
        assert!(text.contains("LockManager::migrate"), "{text}");
    }
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    for (version, min_client, remedy) in [(9, 9, "upgrade the dblock crate"), (0, 0, "older")] {
        let table = &place.table;
        place
            .run(&format!(
                "UPDATE {table}_version SET version = {version}, min_client = {min_client}"
            ))
            .await;
        for answer in [store.check_schema().await, store.migrate().await] {
            let (kind, text) = kind(answer);
            assert_eq!(kind, StoreErrorKind::Schema);
            assert!(text.contains(remedy), "{text}");
        }
    }
    place
        .run(&format!(
            "UPDATE {}_version SET version = 9, min_client = 1",
            place.table
        ))
        .await;
    store.check_schema().await.unwrap();
}

#[tokio::test]
async fn keys_that_a_text_collation_would_fold_are_different_rows() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let keys = [
        "a", "A", "a ", "a  ", " a", "ä", "a\u{308}", "ß", "ss", "🔒", "🔓", "a%", "a_", "a'\\\"", "a\n",
    ];
    let batch: Vec<_> = keys.iter().map(acquire).collect();
    for answer in store.apply(&batch).await {
        token(&answer.unwrap());
    }
    for request in &batch {
        let Outcome::Busy(_) = one(&store, acquire(request.key.as_str())).await else {
            panic!("{}", request.key)
        };
    }
    let names = |prefix: &str| {
        let filter = InspectFilter::new().prefix(prefix);
        let store = &store;
        async move {
            let rows = store.inspect(&filter).await.unwrap();
            rows.iter()
                .map(|row| row.key.as_str().to_owned())
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(names("a%").await, ["a%"]);
    assert_eq!(names("a_").await, ["a_"]);
    assert_eq!(names("a ").await, ["a ", "a  "]);
    assert_eq!(names("A").await, ["A"]);
    let mut sorted = keys.map(str::to_owned);
    sorted.sort_unstable();
    assert_eq!(names("").await, sorted);
    let filter = InspectFilter::new().limit(2);
    assert_eq!(store.inspect(&filter).await.unwrap().len(), 2);
}

#[tokio::test]
async fn the_fence_check_is_right_in_any_session() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    let mut user = place.connection().await;
    for settings in [
        "SET time_zone = '-08:00', sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
        "SET time_zone = '+12:45', sql_mode = ''; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    ] {
        run(&mut user, settings).await;
        run(&mut user, "BEGIN").await;
        let left = store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap();
        let left = left.expect("the lease holds");
        assert!(left <= TTL && left > TTL / 2, "{settings}: {left:?}");
        for (lease, token) in [(Uuid::now_v7(), token), (request.lease_id, token + 1)] {
            assert_eq!(
                store
                    .verify_on(&mut user, &request.key, lease, token)
                    .await
                    .unwrap(),
                None
            );
        }
        assert_eq!(
            store
                .verify_on(&mut user, &key("none"), request.lease_id, token)
                .await
                .unwrap(),
            None
        );
        run(&mut user, "ROLLBACK").await;
    }
    one(&store, release(&request)).await;
    assert_eq!(
        store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_fence_check_that_waited_for_the_row_does_not_see_an_expired_lease_as_held() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut request = acquire("k");
    if let Action::Acquire { ttl, .. } = &mut request.action {
        *ttl = Duration::from_secs(1);
    }
    let token = token(&one(&store, request.clone()).await);
    let mut blocker = place.connection().await;
    run(
        &mut blocker,
        &format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", place.table),
    )
    .await;
    let mut user = place.connection().await;
    let check = store.verify_on(&mut user, &request.key, request.lease_id, token);
    // The server itself waits until the lease is over.
    let free = async {
        run(&mut blocker, "DO SLEEP(1.1)").await;
        run(&mut blocker, "COMMIT").await;
    };
    let (left, ()) = tokio::join!(check, free);
    assert_eq!(left.unwrap(), None);
}

#[tokio::test]
async fn a_renewal_since_the_users_snapshot_is_never_taken_for_a_loss() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    let mut user = place.connection().await;
    run(
        &mut user,
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    )
    .await;
    // Newer versions of MariaDB refuse to lock a row that changed since the snapshot; MySQL cannot.
    let strict = sqlx::raw_sql("SET SESSION innodb_snapshot_isolation = ON")
        .execute(&mut user)
        .await
        .is_ok();
    run(&mut user, "START TRANSACTION WITH CONSISTENT SNAPSHOT").await;
    assert!(matches!(
        one(&store, extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
    let checked = store
        .verify_on(&mut user, &request.key, request.lease_id, token)
        .await;
    if strict {
        assert_eq!(kind(checked).0, StoreErrorKind::Conflict);
    } else {
        assert!(checked.unwrap().is_some());
    }
}

#[tokio::test]
async fn the_clock_does_not_jump_when_daylight_saving_ends() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let token = token(&one(&store, request.clone()).await);
    // A zone of our own: an hour ahead, two in summer, and summer ends at `end`.
    let end: i64 = 1_761_440_400;
    let mut admin = place.connection().await;
    run(
        &mut admin,
        &format!(
            "INSERT IGNORE INTO mysql.time_zone VALUES (59001, 'N');
             INSERT IGNORE INTO mysql.time_zone_name VALUES ('dblock/Daylight', 59001);
             INSERT IGNORE INTO mysql.time_zone_transition_type VALUES (59001, 0, 3600, 0, 'S'), (59001, 1, 7200, 1, 'D');
             INSERT IGNORE INTO mysql.time_zone_transition VALUES (59001, {}, 1), (59001, {end}, 0)",
            end - 10_000_000
        ),
    )
    .await;
    place
        .run(&format!(
            "UPDATE {} SET expire_at = {}",
            place.table,
            (end + 1_800) * 1_000_000
        ))
        .await;
    let mut user = place.connection().await;
    run(&mut user, "SET time_zone = 'dblock/Daylight'").await;
    for offset in [-1, 1] {
        run(&mut user, &format!("SET timestamp = {}", end + offset)).await;
        let hour: i64 = sqlx::query_scalar("SELECT CAST(HOUR(NOW()) AS SIGNED)")
            .fetch_one(&mut user)
            .await
            .unwrap();
        assert_eq!(hour, 2, "the hour comes twice");
        let left = store
            .verify_on(&mut user, &request.key, request.lease_id, token)
            .await
            .unwrap();
        assert_eq!(
            left,
            Some(Duration::from_secs(u64::try_from(1_800 - offset).unwrap()))
        );
    }
}

#[tokio::test]
async fn a_wrong_password_is_a_refusal_and_never_shown() {
    let Some(place) = Place::bare().await else { return };
    place.user("dblock_known", "").await;
    let store = place.store_as("dblock_known", "hunter2");
    let error = store.apply(&[acquire("k")]).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("check the user name"), "{error}");
    assert!(!format!("{error:?} {store:?}").contains("hunter2"));
}

#[tokio::test]
async fn four_rights_are_enough_once_the_tables_are_there() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    place.user("dblock_plain", "SELECT, INSERT, UPDATE, DELETE").await;
    let store = place.store_as("dblock_plain", "pw");
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    let request = acquire("k");
    token(&one(&store, request.clone()).await);
    assert!(store.revoke(&request.key).await.unwrap());
    assert!(matches!(
        one(&store, extend(&request, 1)).await,
        Outcome::Extended { revoked: true, .. }
    ));
    assert!(store.force_release(&request.key).await.unwrap());
    assert!(!store.force_release(&request.key).await.unwrap());
    assert_eq!(one(&store, release(&request)).await, Outcome::Lost);

    place.user("dblock_reader", "SELECT").await;
    let reader = place.store_as("dblock_reader", "pw");
    let (kind, text) = kind(reader.apply(&[acquire("k")]).await.pop().unwrap());
    assert_eq!(kind, StoreErrorKind::Refused);
    assert!(text.contains("grant SELECT, INSERT, UPDATE and DELETE"), "{text}");
}

#[tokio::test]
async fn no_server_is_unreachable() {
    let store = MySqlStore::open("mysql://root@127.0.0.1:1/x", "locks").unwrap();
    let answers = store.apply(&[acquire("a"), acquire("b")]).await;
    for answer in answers {
        assert_eq!(kind(answer).0, StoreErrorKind::Unreachable);
    }
}

#[tokio::test]
async fn a_table_that_is_being_altered_is_a_conflict_rather_than_a_hang() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    token(&one(&store, acquire("k")).await);
    let mut admin = place.connection().await;
    run(&mut admin, &format!("LOCK TABLES {} WRITE", place.table)).await;
    let started = Instant::now();
    let (kind, _) = kind(store.apply(&[acquire("k"), acquire("l")]).await.pop().unwrap());
    assert_eq!(kind, StoreErrorKind::Conflict);
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    run(&mut admin, "UNLOCK TABLES").await;
    token(&one(&store, acquire("l")).await);
    admin.close().await.unwrap();
}
