//! Classifies the error numbers of MySQL and MariaDB.

use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlConnectOptions, MySqlDatabaseError};

use crate::store::fence::DriverError;
use crate::store::schema;
use crate::store::sql_error;
use crate::store::table::TableName;
use crate::store::{StoreError, StoreErrorKind};

/// Another transaction inserted the same key first.
pub(super) const DUPLICATE_KEY: u16 = 1062;
/// A row or the table was not free within our timeout.
pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;
/// The server undid the transaction to end a deadlock. Galera also answers this when two nodes conflicted.
pub(super) const DEADLOCK: u16 = 1213;
/// An administrator ended the statement, or Galera did in favour of another node's write.
pub(super) const INTERRUPTED: u16 = 1317;
/// MariaDB with `innodb_snapshot_isolation`: the row changed since the transaction's snapshot.
pub(super) const RECORD_CHANGED: u16 = 1020;
/// The column exists already.
pub(super) const DUPLICATE_COLUMN: u16 = 1060;
/// The column does not exist.
pub(super) const NO_SUCH_COLUMN: u16 = 1054;
/// The table does not exist.
pub(super) const NO_SUCH_TABLE: u16 = 1146;

/// The rights that a kind of statement needs. The server's message names the missing one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rights {
    Locks,
    Records,
    Migration,
    /// Of the transaction's user.
    Fence,
}

impl Rights {
    fn remedy(self) -> &'static str {
        match self {
            Self::Locks => {
                "grant SELECT, INSERT, UPDATE and DELETE on the lock table, and SELECT on its version table (with several \
                 nodes of Galera INSERT and UPDATE, too)"
            }
            Self::Records => {
                "grant SELECT, INSERT, UPDATE and DELETE on the lock table and on the table of records"
            }
            Self::Migration => {
                "grant CREATE, ALTER, SELECT, INSERT and UPDATE on the database, for `locks.admin().migrate()` only"
            }
            Self::Fence => {
                "grant the user of this transaction SELECT and UPDATE on the lock table, and for `run_once` on the table of \
                 records"
            }
        }
    }
}

/// The server's error number, where the server answered.
pub(super) fn number(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error().and_then(number_of)
}

fn number_of(answer: &dyn DatabaseError) -> Option<u16> {
    answer
        .try_downcast_ref::<MySqlDatabaseError>()
        .map(MySqlDatabaseError::number)
}

/// An error of a statement on the store's own connections.
pub(super) fn of_statement(error: sqlx::Error, table: &TableName, rights: Rights) -> StoreError {
    if number(&error) == Some(NO_SUCH_TABLE)
        && let Err(missing) = schema::check(None, table)
    {
        return missing.with_source(error);
    }
    sql_error::of_statement(error, |answer| meaning(answer, rights))
}

/// An error of a statement on a user's connection.
pub(super) fn of_fence_check(error: DriverError) -> StoreError {
    let missing = "this transaction does not find the lock table: begin it on the server that keeps the lock, and name \
                   the table with its database in the builder's `table` if the URL names none";
    error.classify(|code, message| match code.parse().ok()? {
        NO_SUCH_TABLE => Some((StoreErrorKind::Schema, missing)),
        number => meaning_of(number, message, Rights::Fence),
    })
}

/// The user's transaction conflicts with another one, and may succeed when it is repeated. After
/// [`LOCK_WAIT_TIMEOUT`] only the statement was undone, so the user must not go on with the transaction.
pub(crate) fn is_conflict(answer: &dyn DatabaseError) -> bool {
    matches!(
        number_of(answer),
        Some(DEADLOCK | LOCK_WAIT_TIMEOUT | RECORD_CHANGED)
    )
}

/// An error of opening a connection.
pub(super) fn of_connect(error: sqlx::Error) -> StoreError {
    sql_error::of_connect(error, "the database", |answer| meaning(answer, Rights::Locks))
}

/// As [`of_connect`], where the server did not let us in.
pub(super) fn of_connect_to(error: sqlx::Error, options: &MySqlConnectOptions) -> StoreError {
    let database = format!("the database at {}", address(options));
    sql_error::of_connect(error, &database, |answer| meaning(answer, Rights::Locks))
}

/// Where the server is.
pub(super) fn address(options: &MySqlConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

fn meaning(answer: &dyn DatabaseError, rights: Rights) -> Option<(StoreErrorKind, &'static str)> {
    meaning_of(number_of(answer)?, answer.message(), rights)
}

fn meaning_of(number: u16, message: &str, rights: Rights) -> Option<(StoreErrorKind, &'static str)> {
    use StoreErrorKind::{Conflict, Interrupted, Refused, Schema, Unreachable};
    Some(match number {
        // Other options refuse statements with the same number.
        1290 if !message.contains("read-only") && !message.contains("read_only") => (Refused, ""),
        // A column is missing or has another type.
        NO_SUCH_COLUMN | 1136 => (
            Schema,
            "the lock table is not the one that dblock creates; call `locks.admin().migrate()`",
        ),
        // A character that the column's character set lacks: an error of one request, not of its batch.
        1366 => (
            StoreErrorKind::Other,
            "the lock table cannot keep this holder's name: make its column `holder` utf8mb4, as `locks.admin().migrate()` \
             does, with ALTER TABLE",
        ),
        1049 => (Refused, "create the database, or correct its name"),
        1045 | 1698 | 1251 | 2061 => (
            Refused,
            "check the user name, the password and how the user authenticates",
        ),
        1129 | 1130 => (Refused, "let this host connect to the server"),
        1044 | 1142 | 1143 | 1227 | 1370 => (Refused, rights.remedy()),
        // After a fail-over a new connection may find the new primary.
        1290 | 1836 => (
            Unreachable,
            "the server is read-only: a replica, or a primary that is about to be replaced; point dblock at the primary",
        ),
        // A commit goes to the members first. A server that leaves the group refuses it then, though the others
        // may carry it out. The second number is also for a commit that lost against another server.
        3100 | 3101 => (
            Interrupted,
            "the group of servers has lost its quorum, this server has left the group, or another server was faster",
        ),
        3032 => (
            Unreachable,
            "the server is in offline mode: an operator has set it, or it has left its replication group",
        ),
        1792 => (Refused, "the transaction is read-only: begin one that may write"),
        3098 => (
            Refused,
            "group replication needs InnoDB tables with a primary key",
        ),
        1665 => (Refused, "set the server's binlog_format to ROW or MIXED"),
        1046 => (Refused, "name a database in the URL, or in the table's name"),
        1040 | 1203 | 1226 => (
            Unreachable,
            "raise the server's connection limit or use fewer connections",
        ),
        // A node of Galera that is not ready.
        1047 => (
            Unreachable,
            "this Galera node is not part of the primary component, or is still joining it",
        ),
        1180 => (
            Interrupted,
            "the server could not finish a commit; a Galera node says so when it loses the others meanwhile",
        ),
        // Shutdown, a killed connection or statement, or a closed idle connection: the statement may have been
        // carried out.
        1053 | 1079 | 1152 | 1158..=1161 | 1184 | INTERRUPTED | 1927 | 2006 | 2013 | 3169 | 4031 => {
            (Interrupted, "")
        }
        // A table that cannot grow, or a temporary file.
        1021 | 1114 => (Conflict, "the server's disk is full"),
        // A file cannot be opened, read or written, as where the disk fails (EIO), or the engine says so.
        1016 | 1024 | 1026 | 1030 => (Interrupted, "the server's disk fails"),
        // The last two: max_statement_time (MariaDB) and max_execution_time (MySQL).
        DUPLICATE_KEY | LOCK_WAIT_TIMEOUT | DEADLOCK | RECORD_CHANGED | 1969 | 3024 => (Conflict, ""),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_the_group_may_still_carry_out_is_neither_undone_nor_refused() {
        for number in [3100, 3101] {
            let (kind, _) = meaning_of(number, "", Rights::Locks).unwrap();
            assert_eq!(kind, StoreErrorKind::Interrupted, "{number}");
        }
    }

    /// `InnoDB` says that the table is full, and goes on when there is room again.
    #[test]
    fn a_full_disk_passes() {
        let (kind, _) = meaning_of(1114, "The table 'distributed_lock' is full", Rights::Locks).unwrap();
        assert_eq!(kind, StoreErrorKind::Conflict);
    }

    #[test]
    fn a_disk_that_fails_passes() {
        let message = "Error reading file './dblock/distributed_lock.frm' (errno: 5 \"Input/output error\")";
        let (kind, _) = meaning_of(1024, message, Rights::Locks).unwrap();
        assert_eq!(kind, StoreErrorKind::Interrupted);
    }

    #[test]
    fn a_server_in_offline_mode_is_not_reached() {
        let (kind, _) = meaning_of(3032, "", Rights::Locks).unwrap();
        assert_eq!(kind, StoreErrorKind::Unreachable);
    }
}
