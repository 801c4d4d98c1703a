//! The database's error code, which Diesel does not pass on.

use dblock::fence::{Database, DriverError};
use diesel::result::DatabaseErrorKind::{
    ClosedConnection, ReadOnlyTransaction, SerializationFailure, UnableToSendCommand,
};
use diesel::result::{DatabaseErrorKind, Error};

/// The errors that dblock tells apart: what the message begins and ends with, and the code.
const POSTGRES: [(&str, &str, &str); 6] = [
    ("deadlock detected", "", "40P01"),
    ("canceling statement due to lock timeout", "", "55P03"),
    ("canceling statement", "", "57014"),
    ("terminating connection", "", "57P01"),
    ("relation ", "does not exist", "42P01"),
    ("schema ", "does not exist", "3F000"),
];
const MYSQL: [(&str, &str, &str); 5] = [
    ("Deadlock found when trying to get lock", "", "1213"),
    ("Lock wait timeout exceeded", "", "1205"),
    ("Record has changed since last read", "", "1020"),
    ("Query execution was interrupted", "", "1317"),
    ("Table ", "doesn't exist", "1146"),
];

/// The driver of MySQL writes this before an error of its own, where the server has not answered.
const MYSQL_BROKEN: [&str; 2] = ["Input/output error", "Driver error"];

pub(crate) fn failed(database: Database, error: Error) -> DriverError {
    let answer = match &error {
        Error::DatabaseError(kind, answer) => told(database, *kind, answer.message()),
        _ => None,
    };
    let failed = answer.unwrap_or_else(|| DriverError::broken(error.to_string()));
    failed.with_source(error)
}

/// The database's answer; `None` when it has not answered.
fn told(database: Database, kind: DatabaseErrorKind, message: &str) -> Option<DriverError> {
    let texts = match database {
        Database::Postgres => &POSTGRES[..],
        _ => &MYSQL[..],
    };
    let code = match (kind, database) {
        (ClosedConnection | UnableToSendCommand, _) => return None,
        (SerializationFailure, _) => Some("40001"),
        (ReadOnlyTransaction, Database::Postgres) => Some("25006"),
        (ReadOnlyTransaction, _) => Some("1792"),
        _ if database == Database::MySql && begins(message, &MYSQL_BROKEN) => return None,
        _ => texts
            .iter()
            .find(|(begin, end, _)| message.starts_with(begin) && message.ends_with(end))
            .map(|(_, _, code)| *code),
    };
    let answer = DriverError::refused(message);
    Some(match code {
        Some(code) => answer.with_code(code),
        None => answer,
    })
}

fn begins(message: &str, texts: &[&str]) -> bool {
    texts.iter().any(|text| message.starts_with(text))
}
