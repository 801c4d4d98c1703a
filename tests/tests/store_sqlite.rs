//! What only the SQLite store can get wrong: the file, its one writer, and its clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::conformance::open::sqlite;
use dblock::store::{
    Action, InspectFilter, LockRow, Outcome, Purged, Request, Store, StoreError, StoreErrorKind, Successor,
};
use dblock::{Key, LockError};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

const TABLE: &str = "distributed_lock";
const TTL: Duration = Duration::from_secs(30);

/// A file in a directory of its own.
struct File(TempDir);

impl File {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// With its tables.
    async fn migrated() -> Self {
        let file = Self::new();
        file.store().migrate().await.unwrap();
        file
    }

    fn options(&self) -> SqliteConnectOptions {
        options(&self.0.path().join("locks.db")).create_if_missing(true)
    }

    /// A handle of its own, like another process's.
    fn store(&self) -> Arc<dyn Store> {
        sqlite::open(self.options(), TABLE).unwrap()
    }

    /// A connection of the application's.
    async fn user(&self) -> SqliteConnection {
        self.options().connect().await.unwrap()
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(path)
}

async fn execute(connection: &mut SqliteConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

fn acquire(key: &str, ttl: Duration) -> Request {
    let action = Action::Acquire {
        owner: Uuid::now_v7(),
        ttl,
        holder: "test".into(),
        wanted_for: None,
        spare_tokens: 0,
        reserve: false,
    };
    Request {
        key: Key::new(None, key).unwrap(),
        lease_id: Uuid::now_v7(),
        action,
    }
}

fn release(acquire: &Request) -> Request {
    Request {
        action: Action::Release,
        ..acquire.clone()
    }
}

async fn one(store: &dyn Store, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(std::slice::from_ref(request)).await.remove(0)
}

/// Asks again after a conflict: on a machine that stalls the file may be somebody's for longer than a second.
async fn granted(store: &dyn Store, request: &Request) -> i64 {
    for _ in 0..5 {
        match one(store, request).await {
            Ok(Outcome::Granted { fence_token, .. }) => return fence_token,
            Err(error) if error.kind() == StoreErrorKind::Conflict => {}
            other => panic!("{other:?} instead of Granted"),
        }
    }
    panic!("{request:?} meets nothing but conflicts");
}

#[track_caller]
fn assert_error<T: std::fmt::Debug>(answer: Result<T, StoreError>, kind: StoreErrorKind, words: &str) {
    let error = answer.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

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
        Outcome::Released {
            freed: true,
            wanted: false
        }
    );
}

#[tokio::test]
async fn the_clock_is_read_after_the_wait_for_the_file() {
    let file = File::migrated().await;
    let (store, other, mut user) = (file.store(), file.store(), file.user().await);
    let extend = |lease: &Request| Request {
        action: Action::Extend {
            count: 1,
            ttl: TTL,
            successor: None,
        },
        ..lease.clone()
    };
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
async fn the_fence_check_passes_for_the_lease_only() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    let mut tx = user.begin().await.unwrap();
    let left = sqlite::verify(&mut tx, &*store, &lease.key, lease.lease_id, token)
        .await
        .unwrap();
    assert!(left.is_some_and(|left| left > TTL / 2 && left <= TTL), "{left:?}");
    for (lease_id, token) in [(Uuid::now_v7(), token), (lease.lease_id, token - 1)] {
        let left = sqlite::verify(&mut tx, &*store, &lease.key, lease_id, token)
            .await
            .unwrap();
        assert_eq!(left, None);
    }
    // Until the commit nobody takes the lock over.
    assert_error(one(&*store, &release(&lease)).await, StoreErrorKind::Conflict, "");
    tx.commit().await.unwrap();

    one(&*store, &release(&lease)).await.unwrap();
    let left = sqlite::verify(&mut user, &*store, &lease.key, lease.lease_id, token)
        .await
        .unwrap();
    assert_eq!(left, None, "the lease was released");
}

#[tokio::test]
async fn the_fence_check_with_a_stale_snapshot_is_a_conflict() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;

    let mut tx = user.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM distributed_lock")
        .fetch_one(&mut *tx)
        .await
        .unwrap();
    // Since the snapshot the lock has a new owner. The old row is still what the snapshot shows.
    one(&*store, &release(&lease)).await.unwrap();
    granted(&*store, &acquire("k", TTL)).await;
    let answer = sqlite::verify(&mut tx, &*store, &lease.key, lease.lease_id, token).await;
    assert_error(answer, StoreErrorKind::Conflict, "");
    tx.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_migrations_at_once_all_succeed() {
    for _ in 0..5 {
        let file = File::new();
        let mut migrations = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let store = file.store();
            migrations.spawn(async move {
                store.migrate().await?;
                store.check_schema().await
            });
        }
        for answer in migrations.join_all().await {
            answer.unwrap();
        }
        granted(&*file.store(), &acquire("k", TTL)).await;
    }
}

#[tokio::test]
async fn a_migration_waits_for_a_write_transaction() {
    let file = File::new();
    let (store, mut user) = (file.store(), file.user().await);
    execute(&mut user, "CREATE TABLE theirs (id INTEGER); BEGIN IMMEDIATE").await;
    let migration = tokio::spawn(async move { store.migrate().await });
    // Longer than one statement of ours waits.
    assert!(
        tokio::time::timeout(Duration::from_millis(1500), async {
            while !migration.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .is_err(),
        "the migration did not wait"
    );
    execute(&mut user, "COMMIT").await;
    migration.await.unwrap().unwrap();
}

#[tokio::test]
async fn missing_older_and_newer_tables_are_told_apart() {
    let file = File::new();
    let store = file.store();
    assert_error(store.check_schema().await, StoreErrorKind::Schema, "is not there");
    assert_error(
        one(&*store, &acquire("k", TTL)).await,
        StoreErrorKind::Schema,
        "LockManager::migrate",
    );
    let batch = store.apply(&[acquire("a", TTL), acquire("b", TTL)]).await;
    for answer in batch {
        assert_error(answer, StoreErrorKind::Schema, "LockManager::migrate");
    }
    assert_error(
        store.inspect(&InspectFilter::new()).await,
        StoreErrorKind::Schema,
        "is not there",
    );

    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    let mut user = file.user().await;
    execute(&mut user, "UPDATE distributed_lock_version SET version = 0").await;
    assert_error(store.check_schema().await, StoreErrorKind::Schema, "older");
    execute(&mut user, "UPDATE distributed_lock_version SET version = 9").await;
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    execute(&mut user, "UPDATE distributed_lock_version SET min_client = 9").await;
    assert_error(
        store.check_schema().await,
        StoreErrorKind::Schema,
        "upgrade the dblock crate",
    );
    assert_error(
        store.migrate().await,
        StoreErrorKind::Schema,
        "upgrade the dblock crate",
    );
}

#[tokio::test]
async fn the_ceiling_is_above_every_later_token() {
    let file = File::migrated().await;
    let store = file.store();
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    one(&*store, &release(&lease)).await.unwrap();
    // As after a clock that was an hour ahead, or after a block of tokens for hand-overs.
    let ceiling = token + 3_600_000_000;
    let raise = format!("UPDATE distributed_lock SET fence_ceiling = {ceiling}");
    execute(&mut file.user().await, &raise).await;
    assert_eq!(granted(&*store, &acquire("k", TTL)).await, ceiling + 1);
}

#[tokio::test]
async fn another_table_is_another_set_of_locks() {
    let file = File::migrated().await;
    let (store, other) = (
        file.store(),
        sqlite::open(file.options(), "main.other_locks").unwrap(),
    );
    other.migrate().await.unwrap();
    granted(&*store, &acquire("k", TTL)).await;
    granted(&*other, &acquire("k", TTL)).await;
}

#[tokio::test]
async fn a_file_that_cannot_keep_locks_says_why() {
    let file = File::migrated().await;
    let read_only = sqlite::open(file.options().create_if_missing(false).read_only(true), TABLE).unwrap();
    read_only.check_schema().await.unwrap();
    assert_error(
        one(&*read_only, &acquire("k", TTL)).await,
        StoreErrorKind::Refused,
        "may not write",
    );

    let text = file.0.path().join("notes.txt");
    std::fs::write(&text, "not a database ".repeat(1000)).unwrap();
    let text = sqlite::open(options(&text), TABLE).unwrap();
    assert_error(
        text.check_schema().await,
        StoreErrorKind::Refused,
        "not a SQLite database",
    );
    assert_error(
        text.migrate().await,
        StoreErrorKind::Refused,
        "not a SQLite database",
    );

    for (path, obstacle) in [
        ("missing.db", "it is not there and was not made"),
        ("no directory/locks.db", "its directory is not there"),
        (".", "may this process read and write it"),
    ] {
        let path = file.0.path().join(path);
        let missing = sqlite::open(options(&path), TABLE).unwrap();
        let message = format!("the SQLite file {} cannot be opened: {obstacle}", path.display());
        assert_error(
            missing.check_schema().await,
            StoreErrorKind::Unreachable,
            &message,
        );
    }
}

#[tokio::test]
async fn rows_that_one_connection_sees_are_refused() {
    let in_memory = [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite://x?mode=memory",
        "sqlite://x?mode=memory&cache=shared",
    ];
    let mut all: Vec<SqliteConnectOptions> = in_memory.iter().map(|url| url.parse().unwrap()).collect();
    all.push(SqliteConnectOptions::new());
    all.push(options(Path::new("x.db")).in_memory(true));
    all.push(options(Path::new("file:x?mode=memory")));
    all.push(options(Path::new("")));
    for options in all {
        let answer = sqlite::open(options.clone(), TABLE);
        assert!(
            matches!(&answer, Err(LockError::Invalid { message, .. }) if message.contains("memory store")),
            "{options:?}: {answer:?}"
        );
    }
    let temporary = sqlite::open(options(Path::new("x.db")), "temp.locks");
    assert!(
        matches!(temporary, Err(LockError::Invalid { .. })),
        "{temporary:?}"
    );
    for file in ["memory.db", "at 12:30.db", "[a].db"] {
        assert!(sqlite::open(options(Path::new(file)), TABLE).is_ok(), "{file}");
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

#[tokio::test]
async fn a_closed_store_says_so() {
    let file = File::migrated().await;
    let store = file.store();
    store.close().await;
    assert_error(
        one(&*store, &acquire("k", TTL)).await,
        StoreErrorKind::Other,
        "closed",
    );
}

/// The row of a key, free or not.
async fn row(store: &dyn Store, key: &str) -> Option<LockRow> {
    let filter = InspectFilter::new().include_free().prefix(key);
    let rows = store.inspect(&filter).await.unwrap();
    rows.into_iter().find(|row| row.key.as_str() == key)
}

fn with_spare_tokens(mut request: Request, spare: u32) -> Request {
    if let Action::Acquire { spare_tokens, .. } = &mut request.action {
        *spare_tokens = spare;
    }
    request
}

#[tokio::test]
async fn spare_tokens_lie_between_the_token_and_the_ceiling() {
    let file = File::migrated().await;
    let store = file.store();
    let mut ceiling = 0;
    // A new row; a free one; and one whose ceiling is ahead of the clock.
    for spare in [1_000_000_000, 0, 5] {
        let lease = with_spare_tokens(acquire("k", TTL), spare);
        let token = granted(&*store, &lease).await;
        assert!(
            token > ceiling,
            "{token} was kept free for others, up to {ceiling}"
        );
        let held = row(&*store, "k").await.unwrap();
        assert_eq!(
            (held.fence_token, held.fence_ceiling),
            (token, token + i64::from(spare))
        );
        // A repeated acquire keeps no more free.
        assert_eq!(granted(&*store, &lease).await, token);
        assert_eq!(row(&*store, "k").await.unwrap().fence_ceiling, held.fence_ceiling);
        one(&*store, &release(&lease)).await.unwrap();
        ceiling = held.fence_ceiling;
    }
}

#[tokio::test]
async fn a_successor_is_written_with_the_count() {
    let file = File::migrated().await;
    let store = file.store();
    let lease = with_spare_tokens(acquire("k", TTL), 1_000_000_000);
    let token = granted(&*store, &lease).await;
    let before = row(&*store, "k").await.unwrap();
    let owner = Uuid::now_v7();
    let extend = |lease: &Request| Request {
        action: Action::Extend {
            count: 2,
            ttl: Duration::from_secs(1),
            successor: Some(Successor {
                owner,
                holder: "next".into(),
                fence_token: token + 2,
            }),
        },
        ..lease.clone()
    };
    assert_eq!(
        one(&*store, &extend(&acquire("k", TTL))).await.unwrap(),
        Outcome::Lost,
        "another lease hands nothing over"
    );
    for batch in [vec![extend(&lease)], vec![extend(&lease), acquire("other", TTL)]] {
        let answer = store.apply(&batch).await.remove(0).unwrap();
        assert!(matches!(answer, Outcome::Extended { .. }), "{answer:?}");
        let after = row(&*store, "k").await.unwrap();
        let expected = LockRow {
            owner,
            holder: "next".into(),
            fence_token: token + 2,
            reentrant_count: 2,
            now: after.now,
            ..before.clone()
        };
        assert_eq!(after, expected, "everything else stays");
    }
    one(&*store, &release(&lease)).await.unwrap();
    assert_eq!(
        one(&*store, &extend(&lease)).await.unwrap(),
        Outcome::Lost,
        "after the release"
    );
    let next = granted(&*store, &acquire("k", TTL)).await;
    assert_eq!(
        next,
        token + 1_000_000_001,
        "tokens kept free are not given again"
    );
}

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn a_purge_takes_what_nobody_has_used_for_long() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    for key in ["free", "expired", "held", "wanted", "ceiling", "young"] {
        let lease = acquire(key, TTL);
        granted(&*store, &lease).await;
        if key != "held" && key != "expired" {
            one(&*store, &release(&lease)).await.unwrap();
        }
    }
    // Used a little longer ago than a day, except in one respect.
    let age = |except: &str| {
        let columns = ["expire_at", "wanted_until", "fence_ceiling"];
        let old = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 86400000000 - 1000000";
        let set: Vec<_> = columns
            .into_iter()
            .filter(|column| *column != except)
            .map(|column| format!("{column} = {old}"))
            .collect();
        format!("UPDATE distributed_lock SET {}", set.join(", "))
    };
    let ages = [
        format!("{} WHERE lock_key IN ('free', 'expired')", age("")),
        format!("{} WHERE lock_key = 'held'", age("expire_at")),
        // `wanted_until` is set by hand: nobody has asked for it.
        "UPDATE distributed_lock SET wanted_until = expire_at WHERE lock_key = 'wanted'".into(),
        format!("{} WHERE lock_key = 'wanted'", age("wanted_until")),
        format!("{} WHERE lock_key = 'ceiling'", age("fence_ceiling")),
    ];
    execute(&mut user, &ages.join(";")).await;

    let nothing = store.purge(DAY * 2, None, 100).await.unwrap();
    assert_eq!(nothing, Purged::default(), "nothing is two days old");
    let purged = store.purge(DAY, None, 100).await.unwrap();
    assert_eq!(purged, Purged { rows: 2, next: None });
    let left = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    let left: Vec<_> = left.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(left, ["ceiling", "held", "wanted", "young"]);
}

#[tokio::test]
async fn a_purge_goes_on_behind_the_last_key() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let leases: Vec<Request> = (0..10).map(|n| acquire(&format!("k{n}"), TTL)).collect();
    for answer in store.apply(&leases).await {
        answer.unwrap();
    }
    let old =
        "UPDATE distributed_lock SET expire_at = 1, fence_ceiling = 1 WHERE lock_key NOT IN ('k1', 'k9')";
    execute(&mut user, old).await;
    let (mut steps, mut after) = (Vec::new(), None);
    loop {
        let step = store.purge(DAY, after.as_ref(), 4).await.unwrap();
        steps.push((step.rows, step.next.as_ref().map(ToString::to_string)));
        match step.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(
        steps,
        [(3, Some("k3".to_owned())), (4, Some("k7".to_owned())), (1, None)]
    );
    assert_eq!(store.purge(DAY, None, 4).await.unwrap().rows, 0);
    assert_eq!(
        store
            .inspect(&InspectFilter::new().include_free())
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn a_purge_without_idle_rows_only_reads() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    granted(&*store, &acquire("k", TTL)).await;
    execute(&mut user, "BEGIN IMMEDIATE").await;
    assert_eq!(store.purge(DAY, None, 500).await.unwrap(), Purged::default());
    execute(
        &mut user,
        "UPDATE distributed_lock SET expire_at = 1, fence_ceiling = 1; COMMIT",
    )
    .await;
    execute(&mut user, "BEGIN IMMEDIATE").await;
    assert_error(
        store.purge(DAY, None, 500).await,
        StoreErrorKind::Conflict,
        "keep it short",
    );
    execute(&mut user, "COMMIT").await;
    assert_eq!(store.purge(DAY, None, 500).await.unwrap().rows, 1);
}

fn wanting(mut request: Request, length: Duration) -> Request {
    if let Action::Acquire { wanted_for, .. } = &mut request.action {
        *wanted_for = Some(length);
    }
    request
}

#[tokio::test]
async fn a_busy_poll_only_reads() {
    let file = File::migrated().await;
    let (store, other, mut user) = (file.store(), file.store(), file.user().await);
    let wanted_for = Duration::from_mins(1);
    let held = ["a", "b"].map(|key| acquire(key, TTL));
    for lease in &held {
        granted(&*store, lease).await;
    }
    let ask = || ["a", "b"].map(|key| wanting(acquire(key, TTL), wanted_for));
    for answer in other.apply(&ask()).await {
        assert!(matches!(answer, Ok(Outcome::Busy(_))), "{answer:?}");
    }
    let wanted_until = row(&*store, "a").await.unwrap().wanted_until;

    // Nobody can write.
    execute(&mut user, "BEGIN IMMEDIATE").await;
    let requests = ask();
    for batch in [&requests[..], &requests[..1]] {
        for answer in other.apply(batch).await {
            let Ok(Outcome::Busy(occupant)) = answer else {
                panic!("{answer:?}")
            };
            assert!(occupant.remaining > TTL / 2, "{occupant:?}");
        }
    }
    assert_eq!(row(&*store, "a").await.unwrap().wanted_until, wanted_until);
    // Less than half of the time is left: now it would be written.
    let nearly =
        "UPDATE distributed_lock SET wanted_until = wanted_until - 31000000; COMMIT; BEGIN IMMEDIATE";
    execute(&mut user, nearly).await;
    assert_error(one(&*other, &ask()[0]).await, StoreErrorKind::Conflict, "");
    execute(&mut user, "COMMIT").await;
    assert!(matches!(one(&*other, &ask()[0]).await, Ok(Outcome::Busy(_))));
    let later = row(&*store, "a").await.unwrap();
    assert!(
        later.wanted_until - later.now > 50_000_000,
        "{} at {}",
        later.wanted_until,
        later.now
    );
}

#[tokio::test]
async fn a_key_that_was_busy_is_taken_when_it_can_be() {
    let file = File::migrated().await;
    let (store, other, mut user) = (file.store(), file.store(), file.user().await);
    for together in [false, true] {
        let ask = async |request: &Request| {
            let mut batch = vec![request.clone()];
            if together {
                batch.push(acquire(&Uuid::now_v7().to_string(), TTL));
            }
            other.apply(&batch).await.remove(0).unwrap()
        };
        let lease = acquire("k", TTL);
        granted(&*store, &lease).await;
        assert!(matches!(ask(&acquire("k", TTL)).await, Outcome::Busy(_)));
        execute(&mut user, "UPDATE distributed_lock SET expire_at = 1").await;
        let next = acquire("k", TTL);
        for taken_over in [true, false] {
            // The second time it is the same grant, asked for again.
            let answer = ask(&next).await;
            assert!(
                matches!(&answer, Outcome::Granted { taken_over: former, .. } if former.is_some() == taken_over),
                "{answer:?}"
            );
        }
        assert!(matches!(
            one(&*store, &acquire("k", TTL)).await,
            Ok(Outcome::Busy(_))
        ));
        one(&*other, &release(&next)).await.unwrap();
        let last = acquire("k", TTL);
        granted(&*store, &last).await;
        one(&*store, &release(&last)).await.unwrap();
    }
}
