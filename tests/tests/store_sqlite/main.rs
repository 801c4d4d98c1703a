//! Faults that only the SQLite store can have: the file, its one writer, and its clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocked;
mod busy;
mod fence;
mod file;
mod pass_on;
mod purge;
mod schema;
mod shared;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dblock::open::sqlite;
use dblock::store::{Acquire, Action, Extend, Outcome, Request, Store, StoreError, StoreErrorKind};
use dblock::{InspectFilter, Key, LockRow};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, SqliteConnection};
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

/// Somebody who asks for a key.
fn ask(ttl: Duration) -> Acquire {
    Acquire::new(Uuid::now_v7(), ttl, "test")
}

fn asking(key: &str, ask: Acquire) -> Request {
    Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask))
}

fn acquire(key: &str, ttl: Duration) -> Request {
    asking(key, ask(ttl))
}

fn extend(acquire: &Request) -> Request {
    Request::new(
        acquire.key.clone(),
        acquire.lease_id,
        Action::Extend(Extend::new(1, TTL)),
    )
}

fn release(acquire: &Request) -> Request {
    Request::new(acquire.key.clone(), acquire.lease_id, Action::Release)
}

async fn one(store: &dyn Store, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(std::slice::from_ref(request)).await.remove(0)
}

/// The row of a key, free or not.
async fn row(store: &dyn Store, key: &str) -> Option<LockRow> {
    let filter = InspectFilter::new().include_free().prefix(key);
    let rows = store.inspect(&filter).await.unwrap();
    rows.into_iter().find(|row| row.key.as_str() == key)
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
