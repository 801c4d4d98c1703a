//! A server whose commits wait for a synchronous standby that is away.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{
    Outcome, PostgresStore, RecordChange, RecordEntry, RecordState, RecordWrite, Released, Store,
};
use dblock_tests::line::Database;
use dblock_tests::own_server;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::bench::{acquire, extend, key, one, queueing, release, token, waiting as wanting};

/// How many standbys there are whose answer a commit waits for. None of them ever answers.
async fn standbys(admin: &mut PgConnection, names: &str) {
    let set = AssertSqlSafe(format!("ALTER SYSTEM SET synchronous_standby_names = '{names}'"));
    sqlx::raw_sql(set).execute(&mut *admin).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()")
        .execute(admin)
        .await
        .unwrap();
}

/// The sessions whose commits wait.
async fn waiting(admin: &mut PgConnection) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' ORDER BY backend_start";
    sqlx::query_scalar(sql).fetch_all(admin).await.unwrap()
}

/// Waits until one session waits, and not one of `others`.
async fn until_one_waits(admin: &mut PgConnection, others: &[i32]) -> i32 {
    let one = async {
        loop {
            match waiting(admin).await[..] {
                [process] if !others.contains(&process) => return process,
                _ => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    timeout(Duration::from_secs(10), one)
        .await
        .expect("one session waits")
}

async fn cancel(admin: &mut PgConnection, process: i32) {
    let cancel = sqlx::query("SELECT pg_cancel_backend($1)").bind(process);
    cancel.execute(admin).await.unwrap();
}

/// Waits until the session waits with a commit that changes nothing: false if the call is answered instead.
async fn another_commit_waits<T>(admin: &mut PgConnection, process: i32, call: &JoinHandle<T>) -> bool {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE pid = $1 AND wait_event = 'SyncRep' AND query LIKE '%pg_logical_emit_message%'";
    let waits = async {
        while !call.is_finished() {
            let count = sqlx::query_scalar(sql).bind(process);
            let count: i64 = count.fetch_one(&mut *admin).await.unwrap();
            if count > 0 {
                return true;
            }
            sleep(Duration::from_millis(5)).await;
        }
        false
    };
    timeout(Duration::from_secs(10), waits).await.expect("it waits")
}

/// An abandoned session waits for the standby, and the server does not notice that nobody listens: the store
/// ends it before it opens another one. A commit whose wait is cancelled answers as if nothing was the
/// matter.
#[tokio::test]
async fn a_commit_that_no_standby_has_is_no_grant() {
    let Some(server) = own_server::start(Database::Postgres).await else {
        return;
    };
    let store = PostgresStore::open(server.url(), "locks").unwrap();
    store.migrate().await.unwrap();
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    standbys(&mut admin, "nobody").await;
    // The first ones may come before the server has read that, or be late for another reason.
    let abandoned = loop {
        let request = acquire("abandoned");
        let late = timeout(Duration::from_millis(300), one(&store, &request)).await;
        let waiting = waiting(&mut admin).await;
        if late.is_err() && !waiting.is_empty() {
            break waiting;
        }
    };
    assert_eq!(abandoned.len(), 1);

    let grant = tokio::spawn(async move {
        let outcome = one(&store, &acquire("cancelled")).await;
        (store, token(&outcome.unwrap()))
    });
    let process = until_one_waits(&mut admin, &abandoned).await;
    cancel(&mut admin, process).await;
    let waits = another_commit_waits(&mut admin, process, &grant).await;
    assert!(waits, "granted, and no standby has it");
    // An operator gives up on the standby.
    standbys(&mut admin, "").await;
    let (store, _) = grant.await.unwrap();
    assert!(waiting(&mut admin).await.is_empty());
    let busy = one(&store, &acquire("cancelled")).await.unwrap();
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
}

/// Nor is it an extend, a pass-on or a record.
#[tokio::test]
async fn nothing_that_no_standby_has_is_answered() {
    let Some(server) = own_server::start(Database::Postgres).await else {
        return;
    };
    let store = Arc::new(PostgresStore::open(server.url(), "locks").unwrap());
    store.migrate().await.unwrap();
    let leases = ["held", "passed on"].map(acquire);
    for lease in &leases {
        token(&one(&store, lease).await.unwrap());
    }
    let queued = one(&store, &queueing("passed on", Duration::from_mins(1))).await;
    assert!(matches!(queued, Ok(Outcome::Queued { .. })), "{queued:?}");
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    standbys(&mut admin, "nobody").await;
    while timeout(Duration::from_millis(300), one(&store, &acquire("other")))
        .await
        .is_ok()
    {}
    let abandoned = waiting(&mut admin).await;

    let [held, passed_on] = leases;
    let requests = [acquire("free"), extend(&held, 1), release(&passed_on)];
    let mut answered = Vec::new();
    for request in requests.map(Some).into_iter().chain([None]) {
        let (store, what) = (Arc::clone(&store), format!("{request:?}"));
        let call = tokio::spawn(async move {
            match request {
                Some(request) => one(&store, &request).await.map(drop),
                None => store.records().unwrap().write(&record()).await.map(drop),
            }
        });
        let process = until_one_waits(&mut admin, &abandoned).await;
        cancel(&mut admin, process).await;
        if !another_commit_waits(&mut admin, process, &call).await {
            answered.push(what);
            continue;
        }
        cancel(&mut admin, process).await;
        let error = call.await.unwrap().expect_err(&what);
        assert!(error.is_outcome_unknown(), "{what}: {error:?}");
    }
    assert!(
        answered.is_empty(),
        "answered, and no standby has it: {answered:#?}"
    );
}

fn record() -> RecordWrite {
    let entry = RecordEntry {
        state: RecordState::Processing,
        attempts: 1,
        fence_token: 1,
        fingerprint: None,
        result: None,
        error: None,
        holder: "host/1 test".into(),
        keep: Duration::from_mins(1),
    };
    RecordWrite::new(key("run"), RecordChange::Insert(entry))
}

/// A crash that forgets such a release leaves a lease that ends by itself.
#[tokio::test]
async fn a_release_waits_for_no_standby_unless_it_passes_the_row_on() {
    let Some(server) = own_server::start(Database::Postgres).await else {
        return;
    };
    let store = PostgresStore::open(server.url(), "locks").unwrap();
    store.migrate().await.unwrap();
    let leases = ["alone", "first", "second", "wanted", "passed on"].map(acquire);
    for lease in &leases {
        token(&one(&store, lease).await.unwrap());
    }
    let busy = one(&store, &wanting("wanted", Duration::from_mins(1))).await;
    assert!(matches!(busy, Ok(Outcome::Busy(_))), "{busy:?}");
    let queued = one(&store, &queueing("passed on", Duration::from_mins(1))).await;
    assert!(matches!(queued, Ok(Outcome::Queued { .. })), "{queued:?}");
    let mut admin = PgConnection::connect(server.url()).await.unwrap();
    standbys(&mut admin, "nobody").await;
    // The servers' processes read that one by one; a commit that waits shows that the store's has.
    while timeout(Duration::from_millis(300), one(&store, &acquire("other")))
        .await
        .is_ok()
    {}
    let releases = leases.map(|lease| release(&lease));
    for batch in [&releases[..1], &releases[1..3], &releases[3..4]] {
        let answers = timeout(Duration::from_secs(30), store.apply(batch)).await;
        for answer in answers.expect("a release does not wait") {
            assert_eq!(answer.unwrap(), Outcome::Released(Released::Freed));
        }
    }
    let waits = timeout(Duration::from_millis(300), store.apply(&releases[4..])).await;
    assert!(
        waits.is_err(),
        "sent again after a crash, it would free the row beside the successor"
    );
    standbys(&mut admin, "").await;
}
