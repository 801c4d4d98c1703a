//! Tests of what is special to MySQL and MariaDB. The rules that every store keeps are in the conformance
//! suite.
//!
//! `DBLOCK_TEST_MYSQL_URL` names a throw-away server by address and a superuser of it. Without it these
//! tests are left out, loudly, or fail when `DBLOCK_TEST_REQUIRE_SERVERS=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod apart;
mod fence;
mod gone;
mod pass_on;
mod place;
mod race;
mod schema;
mod shared;
mod single;
mod taken;

use std::time::Duration;

use dblock::store::{
    Acquire, Action, Extend, MySqlStore, Outcome, Request, Store, StoreError, StoreErrorKind,
};
use dblock::{InspectFilter, Key, LockRow};
use sqlx::AssertSqlSafe;
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(30);

async fn run(connection: &mut MySqlConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(connection)
        .await
        .unwrap();
}

fn key(text: impl AsRef<str>) -> Key {
    Key::new(None, text.as_ref()).unwrap()
}

/// Somebody who asks for a key.
fn ask() -> Acquire {
    Acquire::new(Uuid::now_v7(), TTL, "test")
}

fn asking(name: impl AsRef<str>, ask: Acquire) -> Request {
    Request::new(key(name), Uuid::now_v7(), Action::Acquire(ask))
}

fn acquire(name: impl AsRef<str>) -> Request {
    asking(name, ask())
}

fn extend(of: &Request, count: u32) -> Request {
    Request::new(
        of.key.clone(),
        of.lease_id,
        Action::Extend(Extend::new(count, TTL)),
    )
}

fn release(of: &Request) -> Request {
    Request::new(of.key.clone(), of.lease_id, Action::Release)
}

async fn one(store: &MySqlStore, request: Request) -> Outcome {
    store.apply(&[request]).await.pop().unwrap().unwrap()
}

/// The row of a key, free or not.
async fn row(store: &MySqlStore, name: &str) -> LockRow {
    let filter = InspectFilter::new().prefix(name).include_free();
    store.inspect(&filter).await.unwrap().remove(0)
}

/// Asks again while another session has the row locked.
async fn insist(store: &MySqlStore, request: Request) -> Outcome {
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
