//! Classifies PostgreSQL's error codes.
//! Codes: <https://www.postgresql.org/docs/current/errcodes-appendix.html>

use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgSeverity};

use crate::store::fence::DriverError;
use crate::store::schema;
use crate::store::sql_error;
use crate::store::table::TableName;
use crate::store::{StoreError, StoreErrorKind};

/// The server or the session is read-only.
const READ_ONLY: &str = "25006";
const MISSING_TABLE: &str = "42P01";
const MISSING_COLUMN: &str = "42703";
/// `in_failed_sql_transaction`
const ABORTED: &str = "25P02";
/// A schema does not exist, or the `search_path` leads to none.
const MISSING_SCHEMA: &str = "3F000";

const NO_RIGHT: &str = "42501";
const IO_ERROR: &str = "58030";
const INTERNAL_ERROR: &str = "XX000";
/// The server's sources that read and write its files. They say [`NO_RIGHT`] when the disk has become read-only.
const OF_FILES: [&str; 5] = ["fd.c", "md.c", "relmapper.c", "slru.c", "xlog.c"];

/// An error of a statement on the lock table.
pub(super) fn of_statement(error: sqlx::Error, table: &TableName) -> StoreError {
    if is_missing_table(&error)
        && let Err(missing) = schema::check(None, table)
    {
        return missing.with_source(error);
    }
    sql_error::of_statement(error, |answer| match meaning(answer) {
        // With the session first: a commit may be on the disk when the server meets a full one, and crashes.
        known @ (None | Some((StoreErrorKind::Conflict, _))) => ends_the_session(answer).or(known),
        known => known,
    })
}

/// An error of the fence check, in a user's transaction.
pub(super) fn of_fence_check(error: DriverError) -> StoreError {
    let read_only = "a fence check locks the row: begin a transaction that may write, on the primary";
    let aborted =
        "an error has ended this transaction, and the code went on: return that error, and roll back";
    let missing = "this transaction does not find the lock table: begin it on the database that keeps the lock, and name \
                   the table with its schema in the builder's `table` if your sessions change `search_path`";
    error.classify(|code, _| match code {
        READ_ONLY => Some((StoreErrorKind::Refused, read_only)),
        MISSING_TABLE | MISSING_SCHEMA => Some((StoreErrorKind::Schema, missing)),
        ABORTED => Some((StoreErrorKind::Conflict, aborted)),
        _ => meaning_of(code),
    })
}

/// An error of opening a connection: nothing was sent, so nothing can have been carried out.
pub(super) fn of_connect(error: sqlx::Error) -> StoreError {
    sql_error::of_connect(error, "the database", of_new)
}

/// As [`of_connect`], where the server did not let us in.
pub(super) fn of_connect_to(error: sqlx::Error, options: &PgConnectOptions) -> StoreError {
    sql_error::of_connect(error, &format!("the database at {}", address(options)), of_new)
}

fn of_new(answer: &dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)> {
    match meaning(answer) {
        Some((StoreErrorKind::Interrupted, _)) => Some((StoreErrorKind::Unreachable, "")),
        Some((StoreErrorKind::Conflict, of_server)) => Some((StoreErrorKind::Unreachable, of_server)),
        // A session that cannot write a file of its own, on a full disk, says no more.
        None if answer.code().as_deref() == Some(INTERNAL_ERROR) => Some((StoreErrorKind::Unreachable, "")),
        None => Some((StoreErrorKind::Refused, "")),
        known => known,
    }
}

/// Where the server is.
pub(super) fn address(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

/// No schema exists in which new tables could be created.
pub(super) fn no_schema_to_create_in() -> StoreError {
    StoreError::new(
        StoreErrorKind::Refused,
        "the `search_path` of this user's sessions leads to no schema, so there is nowhere to create the lock table: \
         create its first schema and grant USAGE on it, or name the table with its schema in the builder's `table`",
    )
}

/// A serialization failure or a deadlock: the user's transaction is over, and may succeed when it is repeated.
pub(crate) fn is_conflict(answer: &dyn DatabaseError) -> bool {
    answer
        .try_downcast_ref::<PgDatabaseError>()
        .is_some_and(|answer| matches!(answer.code(), "40001" | "40P01"))
}

/// The table or its schema does not exist.
pub(super) fn is_missing_table(error: &sqlx::Error) -> bool {
    has_code(error, MISSING_TABLE) || has_code(error, MISSING_SCHEMA)
}

pub(super) fn is_missing_column(error: &sqlx::Error) -> bool {
    has_code(error, MISSING_COLUMN)
}

/// The server's queue of notifications is full, because a listening session is in a long transaction. The
/// statement was undone.
pub(super) fn is_full_queue(error: &sqlx::Error) -> bool {
    has_code(error, "54000")
}

/// As [`is_full_queue`], for an error that is classified already.
pub(super) fn is_from_full_queue(error: &StoreError) -> bool {
    std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref())
        .is_some_and(is_full_queue)
}

/// A pooler refuses our session settings: `PgBouncer` with the first code, which it also uses for other errors,
/// Amazon's RDS Proxy with the second.
pub(super) fn is_refused_startup(error: &sqlx::Error) -> bool {
    let names_it = |answer: &dyn DatabaseError| answer.message().contains("startup parameter");
    has_code(error, "08P01") && error.as_database_error().is_some_and(names_it) || has_code(error, "0A000")
}

pub(super) fn has_code(error: &sqlx::Error, code: &str) -> bool {
    error
        .as_database_error()
        .and_then(DatabaseError::code)
        .is_some_and(|found| found == code)
}

/// An error of this severity ends the session, without saying whether it had committed.
fn ends_the_session(answer: &dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)> {
    let severity = answer.try_downcast_ref::<PgDatabaseError>()?.severity();
    matches!(severity, PgSeverity::Fatal | PgSeverity::Panic).then_some((StoreErrorKind::Interrupted, ""))
}

fn meaning(answer: &dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)> {
    meaning_of(code_of(answer.try_downcast_ref()?))
}

/// The code of an error. That of a disk that has become read-only is not that of a missing right.
pub(crate) fn code_of(answer: &PgDatabaseError) -> &str {
    code_from(answer.code(), answer.file())
}

/// `source`: the server's own source file that met the error.
fn code_from<'a>(code: &'a str, source: Option<&str>) -> &'a str {
    let of_a_file = code == NO_RIGHT && source.is_some_and(|source| OF_FILES.contains(&source));
    if of_a_file { IO_ERROR } else { code }
}

fn meaning_of(code: &str) -> Option<(StoreErrorKind, &'static str)> {
    use StoreErrorKind::{Conflict, Interrupted, Refused, Schema, Unreachable};
    let known = match code {
        // Deadlock, serialization failure, lock timeout, statement timeout or cancelled.
        "40P01" | "40001" | "55P03" | "57014" => (Conflict, ""),
        // Another client of a pooler changed the session, or the table was altered: a new connection sees the
        // new state.
        "26000" | "42P05" | "0A000" => (Conflict, "the prepared statement is out of date"),
        MISSING_COLUMN | "42804" => (
            Schema,
            "the table has other columns than this version of dblock knows: call `locks.admin().migrate()`, or \
             upgrade the dblock crate if a later version has migrated it",
        ),
        NO_RIGHT => (
            Refused,
            "grant USAGE on the schema, SELECT, INSERT, UPDATE and DELETE on the lock table, and SELECT on its \
             version table; migrations need CREATE on the schema",
        ),
        "28P01" | "28000" => (
            Refused,
            "check the user and password, and the server's pg_hba.conf",
        ),
        "3D000" => (Refused, "check the database's name in the URL, or create it"),
        // After a fail-over a new connection may find the new primary.
        READ_ONLY => (
            Unreachable,
            "the server is a standby, or this user's sessions are read-only; point dblock at the primary",
        ),
        "22003" => (
            StoreErrorKind::Other,
            "the fence tokens of the key are used up: its row must be deleted by hand",
        ),
        // A character that the encoding lacks, or a NUL: an error of one request, not of its batch.
        "22021" | "22P05" => (
            StoreErrorKind::Other,
            "the database cannot keep this key or holder: keep the locks in a database with the encoding UTF8, and \
             leave NUL out of the function's name",
        ),
        "57P04" => (Refused, "the database was dropped"),
        "57P03" | "53300" => (Unreachable, ""),
        "53100" | "53200" | "53400" => (Conflict, "the server is short of resources"),
        // The first: an error of the system. It may concern one block of the table.
        "58000" | IO_ERROR => (
            Conflict,
            "the server cannot read or write its files: its disk has failed, or has become read-only",
        ),
        // Shutdown, crash, idle timeouts and the like: the server ends the session.
        "57P01" | "57P02" | "57P05" | "25P03" => (Interrupted, ""),
        other if other.starts_with("08") => (Interrupted, ""),
        _ => return None,
    };
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15 answered on a file system that was made read-only or failed: it kept its clients' connections,
    /// and refused new ones with severity FATAL.
    #[test]
    fn a_disk_that_fails_is_no_missing_right() {
        let kind = |code, source| meaning_of(code_from(code, source)).map(|(kind, _)| kind);
        assert_eq!(
            kind(IO_ERROR, Some("relmapper.c")),
            Some(StoreErrorKind::Conflict)
        );
        assert_eq!(kind(NO_RIGHT, Some("md.c")), Some(StoreErrorKind::Conflict));
        assert_eq!(kind(NO_RIGHT, Some("aclchk.c")), Some(StoreErrorKind::Refused));
        assert_eq!(kind(NO_RIGHT, None), Some(StoreErrorKind::Refused));
        assert_eq!(kind("53100", Some("md.c")), Some(StoreErrorKind::Conflict));
    }
}
