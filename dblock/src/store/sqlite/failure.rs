//! What SQLite's result codes mean for a lock store.

use sqlx::error::DatabaseError;

use crate::store::error::{StoreError, StoreErrorKind};
use crate::store::table::TableName;
use crate::store::{schema, sql_error};

const BLOCKED: &str = "a write transaction blocks the whole SQLite file, most likely one of the application's: \
    keep it short, never acquire a lock inside it, or keep the locks in a file of their own";
const READ_ONLY: &str =
    "this process may not write the database file or its directory, or opened it read-only";
const NO_FILE: &str = "check the path and its directory; `?mode=rwc` in the URL, or `create_if_missing(true)`, \
    creates the file";
const NO_DATABASE: &str = "the file is damaged or is not a SQLite database";
const NO_PERMISSION: &str = "this process may not use the database";
const NOT_WRITTEN: &str = "the database file could not be written or read; check the disk";

/// An error of a statement.
pub(super) fn of_statement(error: sqlx::Error, table: &TableName) -> StoreError {
    match &error {
        sqlx::Error::Database(answer) if answer.message().starts_with("no such table") => {
            let missing = schema::check(None, table).expect_err("no table is a schema error");
            missing.with_source(error)
        }
        _ => sql_error::of_statement(error, meaning),
    }
}

/// An error of the fence check, in a transaction that found its table before.
pub(super) fn of_fence_check(error: sqlx::Error) -> StoreError {
    sql_error::of_statement(error, meaning)
}

/// An error of opening the file.
pub(super) fn of_connect(error: sqlx::Error) -> StoreError {
    sql_error::of_connect(error, meaning)
}

/// By the primary result code, which is the low byte: <https://sqlite.org/rescode.html>. SQLite has undone
/// a statement that failed, except that an I/O error or a full disk at the commit leaves it open what the
/// file says.
fn meaning(answer: &dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)> {
    let code: i32 = answer.code()?.parse().ok()?;
    Some(match code & 0xff {
        5 | 6 => (StoreErrorKind::Conflict, BLOCKED),
        8 => (StoreErrorKind::Refused, READ_ONLY),
        3 | 23 => (StoreErrorKind::Refused, NO_PERMISSION),
        11 | 26 => (StoreErrorKind::Refused, NO_DATABASE),
        14 => (StoreErrorKind::Unreachable, NO_FILE),
        10 | 13 => (StoreErrorKind::Interrupted, NOT_WRITTEN),
        _ => return None,
    })
}
