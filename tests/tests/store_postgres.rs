//! What is special to the PostgreSQL store. The rules that all stores share are in the conformance suite.
//!
//! Needs a throw-away server: `DBLOCK_TEST_POSTGRES_URL` is the URL of a superuser on it. Each test has a
//! table of its own.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::too_many_lines,
    reason = "one sequence of events reads better in one piece"
)]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dblock::Key;
use dblock::store::postgres::PostgresStore;
use dblock::store::{Action, InspectFilter, Outcome, Request, Store, StoreError, StoreErrorKind};
use dblock_tests::postgres_url;
use futures_util::future::join_all;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(30);

/// A test's own table, and ways to it.
struct Bench {
    url: String,
    table: String,
}

impl Bench {
    /// `None` without a server. The table is not there yet.
    async fn empty(name: &str) -> Option<Self> {
        let bench = Self {
            url: postgres_url()?,
            table: format!("test_{name}"),
        };
        let mut user = bench.user().await;
        let drop = format!("DROP TABLE IF EXISTS {0}, {0}_version", bench.table);
        sqlx::query(AssertSqlSafe(drop)).execute(&mut user).await.unwrap();
        Some(bench)
    }

    /// The same with the table.
    async fn new(name: &str) -> Option<Self> {
        let bench = Self::empty(name).await?;
        bench.store().migrate().await.unwrap();
        Some(bench)
    }

    /// A store as another process has it: with connections of its own.
    fn store(&self) -> PostgresStore {
        PostgresStore::open(&self.url, &self.table).unwrap()
    }

    /// A store whose connections have other options.
    fn store_with(&self, change: impl FnOnce(&mut String)) -> PostgresStore {
        let mut url = self.url.clone();
        url.push(if url.contains('?') { '&' } else { '?' });
        change(&mut url);
        PostgresStore::open(&url, &self.table).unwrap()
    }

    /// A connection of the user's.
    async fn user(&self) -> PgConnection {
        self.url
            .parse::<PgConnectOptions>()
            .unwrap()
            .disable_statement_logging()
            .connect()
            .await
            .unwrap()
    }

    async fn run(&self, sql: &str) {
        let sql = sql.replace("{t}", &self.table);
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut self.user().await)
            .await
            .unwrap();
    }
}

fn key(name: impl AsRef<str>) -> Key {
    Key::new(None, name.as_ref()).unwrap()
}

fn acquire(name: impl AsRef<str>) -> Request {
    let action = Action::Acquire {
        owner: Uuid::now_v7(),
        ttl: TTL,
        holder: "host/1 test".into(),
        wanted_for: None,
        spare_tokens: 0,
    };
    Request {
        key: key(name),
        lease_id: Uuid::now_v7(),
        action,
    }
}

fn waiting(name: impl AsRef<str>, wish: Duration) -> Request {
    let mut request = acquire(name);
    if let Action::Acquire { wanted_for, .. } = &mut request.action {
        *wanted_for = Some(wish);
    }
    request
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

async fn one(store: &PostgresStore, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(std::slice::from_ref(request)).await.pop().unwrap()
}

async fn ask(store: &PostgresStore, request: &Request) -> Outcome {
    one(store, request).await.unwrap()
}

/// Asks again while the row is locked by somebody else.
async fn insist(store: &PostgresStore, request: &Request) -> Outcome {
    loop {
        match ask(store, request).await {
            Outcome::Skipped => tokio::task::yield_now().await,
            outcome => return outcome,
        }
    }
}

fn token(outcome: &Outcome) -> i64 {
    match outcome {
        Outcome::Granted { fence_token, .. } => *fence_token,
        other => panic!("not granted: {other:?}"),
    }
}

/// The state of a lease, as the table of rules has it, in one row and in a batch.
#[tokio::test]
async fn the_rules_hold_for_one_row_and_for_many() {
    let Some(bench) = Bench::new("rules").await else {
        return;
    };
    let store = bench.store();
    for round in ["alone", "in a batch"] {
        // In a batch, another request of the same kind makes the statement a multi-row one.
        let ask = async |request: &Request| {
            if round == "alone" {
                return ask(&store, request).await;
            }
            let other = Request {
                key: key(format!("{round} other {}", Uuid::now_v7())),
                ..request.clone()
            };
            let mut answers = store.apply(&[other, request.clone()]).await;
            answers.pop().unwrap().unwrap()
        };
        let first = acquire(round);
        let granted = ask(&first).await;
        let fence = token(&granted);
        assert!(
            matches!(
                granted,
                Outcome::Granted {
                    taken_over: None,
                    wanted: false,
                    ..
                }
            ),
            "{granted:?}"
        );
        assert!(matches!(
            ask(&extend(&first, 3)).await,
            Outcome::Extended { revoked: false, .. }
        ));
        // A repeated acquire gives the same grant with count 1.
        assert_eq!(token(&ask(&first).await), fence);
        let rows = store.inspect(&InspectFilter::new().prefix(round)).await.unwrap();
        let row = rows.iter().find(|row| row.key.as_str() == round).unwrap();
        assert_eq!((row.reentrant_count, row.fence_token), (1, fence));

        let second = waiting(round, Duration::from_secs(10));
        let busy = ask(&second).await;
        let Outcome::Busy(occupant) = &busy else {
            panic!("{busy:?}")
        };
        assert_eq!((occupant.fence_token, &*occupant.holder), (fence, "host/1 test"));
        assert!(
            occupant.remaining > TTL / 2 && occupant.remaining <= TTL,
            "{occupant:?}"
        );
        assert!(matches!(
            ask(&extend(&first, 1)).await,
            Outcome::Extended { wanted: true, .. }
        ));
        assert_eq!(ask(&release(&second)).await, Outcome::Lost);
        assert_eq!(
            ask(&release(&first)).await,
            Outcome::Released {
                freed: true,
                wanted: true
            }
        );
        assert_eq!(
            ask(&release(&first)).await,
            Outcome::Released {
                freed: false,
                wanted: true
            }
        );
        assert_eq!(ask(&extend(&first, 1)).await, Outcome::Lost);
        assert_eq!(ask(&first).await, Outcome::Lost);

        let again = ask(&second).await;
        assert!(token(&again) > fence);
        assert!(
            matches!(
                again,
                Outcome::Granted {
                    wanted: true,
                    taken_over: None,
                    ..
                }
            ),
            "{again:?}"
        );
        let fence = token(&again);
        bench
            .run(&format!(
                "UPDATE {{t}} SET expire_at = acquired_at WHERE lock_key = '{round}'"
            ))
            .await;
        assert_eq!(ask(&second).await, Outcome::Lost);
        assert_eq!(ask(&extend(&second, 1)).await, Outcome::Lost);
        assert_eq!(ask(&release(&second)).await, Outcome::Lost);
        let third = ask(&acquire(round)).await;
        let Outcome::Granted {
            taken_over: Some(former),
            fence_token,
            ..
        } = third
        else {
            panic!("{third:?}")
        };
        assert!(fence_token > fence);
        assert_eq!((former.fence_token, former.remaining), (fence, Duration::ZERO));
        for absent in [extend(&acquire("absent"), 1), release(&acquire("absent"))] {
            assert_eq!(ask(&absent).await, Outcome::Lost);
        }
    }
}

/// The token stays above a ceiling that is ahead of the clock.
#[tokio::test]
async fn a_token_is_above_the_ceiling() {
    let Some(bench) = Bench::new("ceiling").await else {
        return;
    };
    let store = bench.store();
    let first = acquire("a");
    ask(&store, &first).await;
    ask(&store, &release(&first)).await;
    bench.run("UPDATE {t} SET fence_ceiling = 9000000000000000").await;
    assert_eq!(token(&ask(&store, &acquire("a")).await), 9_000_000_000_000_001);
}

/// A poller writes its wish only when half of the last one is over.
#[tokio::test]
async fn a_wish_is_not_written_with_each_poll() {
    let Some(bench) = Bench::new("wish").await else {
        return;
    };
    let store = bench.store();
    ask(&store, &acquire("a")).await;
    let wanted_until = async || store.inspect(&InspectFilter::new()).await.unwrap()[0].wanted_until;
    ask(&store, &waiting("a", Duration::from_secs(10))).await;
    let first = wanted_until().await;
    ask(&store, &waiting("a", Duration::from_secs(10))).await;
    assert_eq!(wanted_until().await, first);
    ask(&store, &waiting("a", Duration::from_millis(1))).await;
    assert_eq!(wanted_until().await, first, "a wish is never shortened");
    ask(&store, &waiting("a", Duration::from_mins(1))).await;
    assert!(wanted_until().await > first);
}

/// Many sessions race on one key: acquire, extend, release and takeover interleave, and every grant has
/// the key for itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_sessions_get_one_grant_at_a_time() {
    let Some(bench) = Bench::new("race").await else {
        return;
    };
    let bench = Arc::new(bench);
    let inside = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let newest = Arc::new(std::sync::atomic::AtomicI64::new(0));
    let racers = (0..4).map(|racer| {
        let (bench, inside, newest) = (Arc::clone(&bench), Arc::clone(&inside), Arc::clone(&newest));
        tokio::spawn(async move {
            use std::sync::atomic::Ordering::SeqCst;
            let store = bench.store();
            let mut grants = 0;
            let mut former: Option<Request> = None;
            for _ in 0..700 {
                let request = acquire("hot");
                // Half of the racers use the multi-row statements.
                let outcome = if racer % 2 == 0 {
                    ask(&store, &request).await
                } else {
                    let mine = acquire(format!("cold {racer}"));
                    let mut answers = store.apply(&[request.clone(), mine.clone()]).await;
                    insist(&store, &release(&mine)).await;
                    answers.swap_remove(0).unwrap()
                };
                if let Outcome::Granted {
                    fence_token,
                    taken_over,
                    ..
                } = &outcome
                {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two grants at once");
                    assert!(
                        newest.swap(*fence_token, SeqCst) < *fence_token,
                        "a token did not grow"
                    );
                    assert_eq!(*taken_over, None);
                    assert!(matches!(
                        insist(&store, &extend(&request, 2)).await,
                        Outcome::Extended { .. }
                    ));
                    assert_eq!(inside.fetch_sub(1, SeqCst), 1);
                    assert!(matches!(
                        insist(&store, &release(&request)).await,
                        Outcome::Released { freed: true, .. }
                    ));
                    grants += 1;
                    former = Some(request);
                } else if let Some(former) = &former {
                    // A late request of a former lease must change nothing.
                    let late = if grants % 2 == 0 {
                        release(former)
                    } else {
                        extend(former, 1)
                    };
                    let outcome = ask(&store, &late).await;
                    assert!(
                        matches!(
                            outcome,
                            Outcome::Lost | Outcome::Skipped | Outcome::Released { freed: false, .. }
                        ),
                        "{outcome:?}"
                    );
                }
            }
            grants
        })
    });
    let grants: Vec<i32> = join_all(racers).await.into_iter().map(Result::unwrap).collect();
    eprintln!("grants of each racer: {grants:?}");
    assert!(grants.iter().sum::<i32>() > 200, "{grants:?}");
}

/// Fresh keys: of many first acquires at once, exactly one inserts the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fresh_key_is_granted_once() {
    let Some(bench) = Bench::new("fresh").await else {
        return;
    };
    let stores: Vec<_> = (0..4).map(|_| bench.store()).collect();
    for round in 0..300 {
        let name = format!("k{round}");
        let requests: Vec<_> = stores.iter().map(|_| acquire(&name)).collect();
        let outcomes = join_all(
            stores
                .iter()
                .zip(&requests)
                .map(|(store, request)| ask(store, request)),
        )
        .await;
        let granted = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Granted { .. }))
            .count();
        assert_eq!(granted, 1, "{outcomes:?}");
    }
}

/// Two connections work on the same 100 keys in opposite orders: no deadlock, and no key granted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_in_opposite_orders_do_not_deadlock() {
    let Some(bench) = Bench::new("orders").await else {
        return;
    };
    let (a, b) = (bench.store(), bench.store());
    for round in 0..40 {
        // A part of the keys is new in each round, so that inserts meet too.
        let name = |i: usize| {
            if i.is_multiple_of(2) {
                format!("k{i}")
            } else {
                format!("k{i} of {round}")
            }
        };
        let forward: Vec<_> = (0..100).map(|i| acquire(name(i))).collect();
        let backward: Vec<_> = (0..100).rev().map(|i| acquire(name(i))).collect();
        let (of_a, of_b) = tokio::join!(a.apply(&forward), b.apply(&backward));
        let mut granted: HashMap<&Key, usize> = HashMap::new();
        let mut releases = [Vec::new(), Vec::new()];
        for (side, (requests, answers)) in [(&forward, of_a), (&backward, of_b)].into_iter().enumerate() {
            for (request, answer) in requests.iter().zip(answers) {
                if matches!(answer.unwrap(), Outcome::Granted { .. }) {
                    *granted.entry(&request.key).or_default() += 1;
                    releases[side].push(release(request));
                }
            }
        }
        assert!(
            granted.values().all(|grants| *grants == 1),
            "a key was granted twice"
        );
        let (of_a, of_b) = tokio::join!(a.apply(&releases[0]), b.apply(&releases[1]));
        for answer in of_a.into_iter().chain(of_b) {
            assert!(matches!(answer.unwrap(), Outcome::Released { freed: true, .. }));
        }
    }
}

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
        Outcome::Released {
            freed: true,
            wanted: true
        }
    ));
}

/// A lease that runs out during the fence check's transaction cannot be taken over before its end.
#[tokio::test]
async fn a_takeover_waits_for_the_fence_check() {
    let Some(bench) = Bench::new("fence").await else {
        return;
    };
    let store = bench.store();
    let mut first = acquire("a");
    if let Action::Acquire { ttl, .. } = &mut first.action {
        *ttl = Duration::from_millis(300);
    }
    let fence = token(&ask(&store, &first).await);
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let verify =
        async |on: &mut PgConnection, lease_id, fence| store.verify_in(on, &key("a"), lease_id, fence).await;
    assert!(
        verify(&mut transaction, first.lease_id, fence)
            .await
            .unwrap()
            .is_some()
    );
    assert_eq!(
        verify(&mut transaction, first.lease_id, fence + 1).await.unwrap(),
        None
    );
    assert_eq!(
        verify(&mut transaction, Uuid::now_v7(), fence).await.unwrap(),
        None
    );
    // Ended by the server's clock, not by ours.
    sqlx::query("SELECT pg_sleep(0.35)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(
        verify(&mut transaction, first.lease_id, fence).await.unwrap(),
        None
    );
    assert_eq!(ask(&store, &acquire("a")).await, Outcome::Skipped);
    transaction.commit().await.unwrap();
    assert!(matches!(
        ask(&store, &acquire("a")).await,
        Outcome::Granted {
            taken_over: Some(_),
            ..
        }
    ));
}

/// A renewal since the transaction's snapshot: seen under READ COMMITTED, retryable under stricter levels.
#[tokio::test]
async fn a_fence_check_after_a_renewal() {
    let Some(bench) = Bench::new("levels").await else {
        return;
    };
    let store = bench.store();
    let request = acquire("a");
    let fence = token(&ask(&store, &request).await);
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let mut user = bench.user().await;
        let begin = AssertSqlSafe(format!("BEGIN ISOLATION LEVEL {level}"));
        let mut transaction = user.begin_with(begin).await.unwrap();
        sqlx::query("SELECT 1").execute(&mut *transaction).await.unwrap();
        assert!(matches!(
            ask(&store, &extend(&request, 1)).await,
            Outcome::Extended { .. }
        ));
        let answer = store
            .verify_in(&mut transaction, &request.key, request.lease_id, fence)
            .await;
        if level == "READ COMMITTED" {
            assert!(answer.unwrap().is_some());
        } else {
            assert_eq!(answer.unwrap_err().kind(), StoreErrorKind::Conflict, "{level}");
        }
        transaction.rollback().await.unwrap();
    }
}

/// One bad row fails alone.
#[tokio::test]
async fn a_batch_that_fails_for_one_row_is_split() {
    let Some(bench) = Bench::new("split").await else {
        return;
    };
    let store = bench.store();
    let mut batch: Vec<_> = ["a", "b", "c"].map(acquire).into();
    if let Action::Acquire { holder, .. } = &mut batch[1].action {
        *holder = "a NUL \0".into();
    }
    let answers = store.apply(&batch).await;
    assert!(matches!(answers[0], Ok(Outcome::Granted { .. })), "{answers:?}");
    assert!(
        matches!(&answers[1], Err(error) if error.kind() == StoreErrorKind::Other),
        "{answers:?}"
    );
    assert!(matches!(answers[2], Ok(Outcome::Granted { .. })), "{answers:?}");
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
    let terminate = async {
        let sql = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'dblock' AND wait_event_type = 'Lock' AND query LIKE '%{}%'",
            bench.table
        );
        let mut admin = bench.user().await;
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
    let renewal = extend(&request, 1);
    let (answer, ()) = tokio::join!(one(&store, &renewal), terminate);
    let error = answer.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    transaction.rollback().await.unwrap();
    assert!(matches!(
        ask(&store, &extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_migrations_at_once() {
    let Some(bench) = Bench::empty("migrations").await else {
        return;
    };
    let missing = bench.store().check_schema().await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Schema);
    assert!(missing.to_string().contains("migrate"), "{missing}");
    let unasked = one(&bench.store(), &acquire("a")).await.unwrap_err();
    assert_eq!(unasked.kind(), StoreErrorKind::Schema, "{unasked}");

    let stores: Vec<_> = (0..10).map(|_| bench.store()).collect();
    for answer in join_all(stores.iter().map(PostgresStore::migrate)).await {
        answer.unwrap();
    }
    bench.store().check_schema().await.unwrap();
    // By hand, with rows in it.
    token(&ask(&bench.store(), &acquire("a")).await);
    bench.store().migrate().await.unwrap();
    assert_eq!(
        bench.store().inspect(&InspectFilter::new()).await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_schema_of_another_version() {
    let Some(bench) = Bench::new("versions").await else {
        return;
    };
    let store = bench.store();
    bench
        .run("UPDATE {t}_version SET version = 0, min_client = 0")
        .await;
    assert!(
        store
            .check_schema()
            .await
            .unwrap_err()
            .to_string()
            .contains("older")
    );
    bench.store().migrate().await.unwrap();
    store.check_schema().await.unwrap();
    bench.run("UPDATE {t}_version SET version = 9").await;
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    bench.run("UPDATE {t}_version SET min_client = 9").await;
    for error in [
        store.check_schema().await.unwrap_err(),
        store.migrate().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("upgrade the dblock crate"), "{error}");
    }
    bench.run("DROP TABLE {t}").await;
    assert!(
        store
            .check_schema()
            .await
            .unwrap_err()
            .to_string()
            .contains("not there")
    );
}

/// A table in a schema that is not there yet.
#[tokio::test]
async fn a_migration_makes_the_schema() {
    let Some(url) = postgres_url() else { return };
    let bench = Bench {
        url,
        table: "test_ops.locks".into(),
    };
    bench.run("DROP SCHEMA IF EXISTS test_ops CASCADE").await;
    let store = bench.store();
    assert_eq!(
        store.check_schema().await.unwrap_err().kind(),
        StoreErrorKind::Schema
    );
    store.migrate().await.unwrap();
    token(&ask(&store, &acquire("a")).await);
}

/// The script by hand, with its own names, twice.
#[tokio::test]
async fn the_script_runs_by_hand() {
    let Some(url) = postgres_url() else { return };
    let script = include_str!("../../migrations/postgres/0001_distributed_lock.sql");
    let mut user = url.parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let set =
        "DROP SCHEMA IF EXISTS test_hand CASCADE; CREATE SCHEMA test_hand; SET search_path TO test_hand";
    sqlx::raw_sql(set).execute(&mut user).await.unwrap();
    for _ in 0..2 {
        sqlx::raw_sql(script).execute(&mut user).await.unwrap();
    }
    PostgresStore::open(&url, "test_hand.distributed_lock")
        .unwrap()
        .check_schema()
        .await
        .unwrap();
}

#[tokio::test]
async fn a_read_only_session_is_refused_with_a_remedy() {
    let Some(bench) = Bench::new("readonly").await else {
        return;
    };
    let store = bench.store_with(|url| url.push_str("options=-c%20default_transaction_read_only%3Don"));
    let error = one(&store, &acquire("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("primary"), "{error}");
}

#[tokio::test]
async fn a_wrong_password_is_refused_without_showing_it() {
    let Some(bench) = Bench::new("password").await else {
        return;
    };
    let store = bench.store_with(|url| url.push_str("password=hunter2"));
    let error = one(&store, &acquire("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(!format!("{error:?} {store:?}").contains("hunter2"));
    let nowhere = PostgresStore::open("postgres://a:hunter2@127.0.0.1:1/a", "t").unwrap();
    let error = one(&nowhere, &acquire("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(!format!("{error:?} {nowhere:?}").contains("hunter2"));
}

/// The rights that the migration's script names are enough, and one less is refused with a remedy.
#[tokio::test]
async fn a_role_with_rights_on_the_tables_only() {
    let Some(bench) = Bench::new("rights").await else {
        return;
    };
    bench
        .run(
            "DO $$ BEGIN CREATE ROLE dblock_limited LOGIN PASSWORD 'limited'; \
             EXCEPTION WHEN duplicate_object THEN NULL; END $$; \
             REVOKE CREATE ON SCHEMA public FROM PUBLIC; \
             GRANT SELECT ON {t}_version TO dblock_limited; \
             GRANT SELECT, INSERT, UPDATE, DELETE ON {t} TO dblock_limited;",
        )
        .await;
    let store = bench.store_with(|url| url.push_str("user=dblock_limited&password=limited"));
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    let request = acquire("a");
    token(&ask(&store, &request).await);
    assert!(matches!(
        ask(&store, &extend(&request, 1)).await,
        Outcome::Extended { .. }
    ));
    assert!(store.revoke(&request.key).await.unwrap());
    assert!(store.force_release(&request.key).await.unwrap());
    assert_eq!(ask(&store, &release(&request)).await, Outcome::Lost);
    bench.run("REVOKE UPDATE ON {t} FROM dblock_limited").await;
    let error = one(&store, &acquire("a")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("grant"), "{error}");
    bench.run("DROP TABLE {t}_version").await;
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
}

/// `%`, `_` and letter case mean nothing special in a prefix.
#[tokio::test]
async fn a_prefix_is_compared_byte_by_byte() {
    let Some(bench) = Bench::new("prefix").await else {
        return;
    };
    let store = bench.store();
    let names = ["a%b", "a_b", "axb", "A%b", "a%", "é1", "e1"];
    let requests: Vec<_> = names.iter().map(acquire).collect();
    for answer in store.apply(&requests).await {
        answer.unwrap();
    }
    let with = async |filter: InspectFilter| -> Vec<String> {
        store
            .inspect(&filter)
            .await
            .unwrap()
            .into_iter()
            .map(|row| row.key.to_string())
            .collect()
    };
    assert_eq!(with(InspectFilter::new().prefix("a%")).await, ["a%", "a%b"]);
    assert_eq!(with(InspectFilter::new().prefix("a_")).await, ["a_b"]);
    assert_eq!(with(InspectFilter::new().prefix("é")).await, ["é1"]);
    assert_eq!(
        with(InspectFilter::new()).await,
        ["A%b", "a%", "a%b", "a_b", "axb", "e1", "é1"]
    );
    assert_eq!(with(InspectFilter::new().limit(2)).await, ["A%b", "a%"]);
    ask(&store, &release(&requests[0])).await;
    assert_eq!(with(InspectFilter::new().prefix("a%")).await, ["a%"]);
    assert_eq!(
        with(InspectFilter::new().prefix("a%").include_free()).await,
        ["a%", "a%b"]
    );
}

/// A revoked lease is not extended; a forced release leaves nothing to its former holder.
#[tokio::test]
async fn what_operators_do() {
    let Some(bench) = Bench::new("operators").await else {
        return;
    };
    let store = bench.store();
    let request = acquire("a");
    assert!(!store.revoke(&request.key).await.unwrap());
    assert!(!store.force_release(&request.key).await.unwrap());
    let fence = token(&ask(&store, &request).await);
    assert!(store.revoke(&request.key).await.unwrap());
    let before = store.inspect(&InspectFilter::new()).await.unwrap()[0].expire_at;
    assert!(matches!(
        ask(&store, &extend(&request, 2)).await,
        Outcome::Extended { revoked: true, .. }
    ));
    let row = store.inspect(&InspectFilter::new()).await.unwrap().remove(0);
    assert_eq!(
        (row.expire_at, row.reentrant_count, row.revoked),
        (before, 2, true)
    );
    assert!(store.force_release(&request.key).await.unwrap());
    assert_eq!(ask(&store, &extend(&request, 1)).await, Outcome::Lost);
    assert_eq!(ask(&store, &release(&request)).await, Outcome::Lost);
    let next = acquire("a");
    assert!(token(&ask(&store, &next).await) > fence);
    assert!(matches!(
        ask(&store, &extend(&next, 1)).await,
        Outcome::Extended { revoked: false, .. }
    ));
}
