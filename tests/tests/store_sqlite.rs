//! What only the SQLite store can get wrong: the file, its one writer, and its clock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::Key;
use dblock::conformance::open::sqlite;
use dblock::store::{Action, InspectFilter, Outcome, Request, Store, StoreErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Connection, SqliteConnection};
use uuid::Uuid;

const TABLE: &str = "distributed_lock";

fn acquire(key: &str) -> Request {
    let action = Action::Acquire {
        owner: Uuid::now_v7(),
        ttl: Duration::from_secs(30),
        holder: "test".into(),
        wanted_for: None,
    };
    Request {
        key: Key::new(None, key).unwrap(),
        lease_id: Uuid::now_v7(),
        action,
    }
}

async fn one(store: &dyn Store, request: &Request) -> Outcome {
    store
        .apply(std::slice::from_ref(request))
        .await
        .remove(0)
        .unwrap()
}

#[tokio::test]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let o = SqliteConnectOptions::new()
        .filename(dir.path().join("l.db"))
        .create_if_missing(true);
    let s = sqlite::open(o.clone(), TABLE).unwrap();
    s.migrate().await.unwrap();
    s.migrate().await.unwrap();
    s.check_schema().await.unwrap();
    let a = acquire("k");
    println!("{:?}", one(&*s, &a).await);
    println!("{:?}", one(&*s, &a).await);
    println!("{:?}", one(&*s, &acquire("k")).await);
    println!("{:?}", s.inspect(&InspectFilter::new()).await);
    let rel = Request {
        action: Action::Release,
        ..a.clone()
    };
    println!("{:?}", one(&*s, &rel).await);
    println!("{:?}", one(&*s, &rel).await);
    println!("{:?}", one(&*s, &a).await);
    println!("{:?}", s.apply(&[acquire("x"), acquire("k"), rel]).await);

    // Cost of a pair alone.
    let n = 1000u32;
    let start = Instant::now();
    for _ in 0..n {
        let a = acquire("p");
        assert!(matches!(one(&*s, &a).await, Outcome::Granted { .. }));
        let rel = Request {
            action: Action::Release,
            ..a
        };
        assert!(matches!(
            one(&*s, &rel).await,
            Outcome::Released { freed: true, .. }
        ));
    }
    println!("pair {:?}", start.elapsed() / n);
    let mut c = o
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .disable_statement_logging()
        .connect()
        .await
        .unwrap();
    sqlx::raw_sql("create table plain (k text primary key, lease blob, expire integer) strict")
        .execute(&mut c)
        .await
        .unwrap();
    let start = Instant::now();
    for _ in 0..n {
        sqlx::query("insert into plain values ($1, $2, $3)")
            .bind("p")
            .bind(Uuid::now_v7())
            .bind(1i64)
            .execute(&mut c)
            .await
            .unwrap();
        sqlx::query("delete from plain where k = $1")
            .bind("p")
            .execute(&mut c)
            .await
            .unwrap();
    }
    println!("insert+delete {:?}", start.elapsed() / n);
}
