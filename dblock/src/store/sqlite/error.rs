//! Classifies SQLite's result codes.

use std::path::Path;

use sqlx::error::DatabaseError;
use sqlx::sqlite::SqliteError;

use crate::store::fence::DriverError;
use crate::store::table::TableName;
use crate::store::{StoreError, StoreErrorKind};
use crate::store::{schema, sql_error};

const BLOCKED: &str = "a write transaction blocks the whole SQLite file, most likely one of the application's: \
    keep it short, never acquire a lock inside it, or keep the locks in a file of their own";
const READ_ONLY: &str = "this process may not write the database file or its directory, or opened it read-only, or the disk has become \
     read-only; grant it both, or take `mode=ro` out of the URL";
const NO_FILE: &str = "are the file and its directory still there, and may this process use them?";
/// `SQLITE_CANTOPEN`.
const CANNOT_OPEN: i32 = 14;
const NO_DATABASE: &str = "the file is damaged or is not a SQLite database";
const NO_PERMISSION: &str = "this process may not use the database";
const NOT_WRITTEN: &str = "the database file could not be written or read; check the disk";

/// SQLite's message, where its result code says nothing.
const NO_TABLE: &str = "no such table";
const NO_COLUMN: &str = "no such column";

pub(super) fn is_missing_table(error: &sqlx::Error) -> bool {
    says(error, NO_TABLE)
}

pub(super) fn is_missing_column(error: &sqlx::Error) -> bool {
    says(error, NO_COLUMN)
}

/// Whether SQLite's message begins with `text`.
fn says(error: &sqlx::Error, text: &str) -> bool {
    error
        .as_database_error()
        .is_some_and(|answer| answer.message().starts_with(text))
}

/// An error of a statement.
pub(super) fn of_statement(error: sqlx::Error, table: &TableName) -> StoreError {
    let schema = if is_missing_table(&error) {
        schema::check(None, table).err()
    } else {
        is_missing_column(&error).then(|| schema::foreign(table))
    };
    match schema {
        Some(schema) => schema.with_source(error),
        None => sql_error::of_statement(error, meaning),
    }
}

/// An error of the fence check, in a user's transaction.
pub(super) fn of_fence_check(error: DriverError) -> StoreError {
    let missing = "this transaction does not find the lock table: begin it on the file that keeps the lock";
    error.classify(|code, message| {
        let is_missing = message.starts_with(NO_TABLE);
        is_missing
            .then_some((StoreErrorKind::Schema, missing))
            .or_else(|| meaning_of(code.parse().ok()?))
    })
}

/// An error of opening the file at `path`.
pub(super) fn of_connect(error: sqlx::Error, path: &Path) -> StoreError {
    match &error {
        sqlx::Error::Database(answer) if code(&**answer).map(primary) == Some(CANNOT_OPEN) => {
            let message = format!(
                "the SQLite file {} cannot be opened: {}",
                path.display(),
                obstacle(path)
            );
            StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
        }
        _ => sql_error::of_connect(error, &format!("the SQLite file {}", path.display()), meaning),
    }
}

/// Why the file at `path` cannot be opened, as far as it shows. SQLite's error is the same in all cases.
fn obstacle(path: &Path) -> &'static str {
    // The parent of a bare file name is the empty path.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        "its directory is not there: make it, or correct the path"
    } else if path.exists() {
        "may this process read and write it, and is it a file?"
    } else {
        "it is not there and was not made, either because this process may not write to the directory, or because of \
         `mode=rw` in the URL or of a pool without `create_if_missing(true)`"
    }
}

fn code(answer: &dyn DatabaseError) -> Option<i32> {
    answer.code()?.parse().ok()
}

/// The low byte of a result code: <https://sqlite.org/rescode.html>.
fn primary(code: i32) -> i32 {
    code & 0xff
}

fn meaning(answer: &dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)> {
    meaning_of(code(answer)?)
}

/// Another connection writes (`SQLITE_BUSY`, `SQLITE_LOCKED`), or has written since the user's transaction
/// began to read (`SQLITE_BUSY_SNAPSHOT`).
pub(crate) fn is_conflict(answer: &dyn DatabaseError) -> bool {
    answer.try_downcast_ref::<SqliteError>().is_some() && matches!(code(answer).map(primary), Some(5 | 6))
}

/// Classifies by the primary result code. SQLite undoes a failed statement. Only after an I/O error or a full
/// disk at the commit the outcome is unknown.
fn meaning_of(code: i32) -> Option<(StoreErrorKind, &'static str)> {
    Some(match primary(code) {
        5 | 6 => (StoreErrorKind::Conflict, BLOCKED),
        8 => (StoreErrorKind::Refused, READ_ONLY),
        3 | 23 => (StoreErrorKind::Refused, NO_PERMISSION),
        11 | 26 => (StoreErrorKind::Unsupported, NO_DATABASE),
        CANNOT_OPEN => (StoreErrorKind::Unreachable, NO_FILE),
        10 | 13 => (StoreErrorKind::Interrupted, NOT_WRITTEN),
        _ => return None,
    })
}
