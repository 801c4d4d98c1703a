//! Connections of the store.

use futures_util::StreamExt as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Row as _};
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use super::error;
use super::node::InUse;
use crate::store::connect_options::OptionsSource;
use crate::store::fence::Identity;
use crate::store::servers::{Alive, History};
use crate::store::{StoreError, StoreErrorKind};

/// The session settings that the statements rely on, whatever the server's defaults and its `init_connect`
/// are.
///
/// - READ COMMITTED takes no gap locks. It has a statement of its own because the variable is called
///   `tx_isolation` in MariaDB before 11.1 and `transaction_isolation` in MySQL 8.
/// - One second is the shortest `innodb_lock_wait_timeout` of MySQL. Batches skip locked rows; the timeout is
///   for inserts that wait for an insert of the same key. `lock_wait_timeout` is for tables that are being
///   altered. MariaDB allows 0, but then the `COMMIT` of a transaction that has skipped a locked row fails.
/// - `completion_type`: after a chained commit the next statement would not commit by itself.
/// - A client that is cut off between locking a row and writing it leaves the row locked until the server
///   ends its idle session, after 8 hours by default; `wait_timeout` makes that 30 seconds. MariaDB can end
///   only the idle transaction, and sooner; MySQL takes that setting for a comment. An idle connection that the
///   server closed is replaced at the next use.
/// - A fixed `sql_mode`: strict, so that nothing is cut off silently, and with assignments made from left to
///   right. The time zone makes `SYSDATE` a clock without jumps.
/// - Limits that leave rows out of an answer or refuse a statement for its size (`sql_select_limit`,
///   `max_join_size`, `sql_big_selects`, `sql_safe_updates`, `max_session_mem_used`) or for its time (the
///   engine has a limit of its own).
/// - A long list of keys stays a range of the primary key: `in_predicate_conversion_threshold` and
///   `range_optimizer_max_mem_size` could make it a scan of the table, which touches the rows of others.
/// - `unique_checks`: without it and `foreign_key_checks` MariaDB may lock an empty table for an insert.
///
/// Other settings were set to their extremes, one by one, without an effect on any answer.
///
/// The last statement asks whether the server knows `SET STATEMENT`, as MariaDB does, and whether `SYSDATE`
/// is the current time: a server option can make it the start of the statement.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;\
    SET completion_type = 0, autocommit = 1, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, wait_timeout = 30, \
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', \
    sql_select_limit = 18446744073709551615, max_join_size = 18446744073709551615, sql_big_selects = 1, \
    sql_safe_updates = 0, sql_auto_is_null = 0, unique_checks = 1, foreign_key_checks = 1, max_sort_length = 1024, \
    /*M!100300 idle_transaction_timeout = 5, idle_write_transaction_timeout = 0, idle_readonly_transaction_timeout = 0, \
    max_session_mem_used = 9223372036854775807, max_statement_time = 0, in_predicate_conversion_threshold = 0, */ \
    /*!80000 max_execution_time = 0, range_optimizer_max_mem_size = 0, */ NAMES utf8mb4;\
    SELECT 0 /*M!100300 OR (SLEEP(0.001) = 0 AND SYSDATE(6) > NOW(6)) */";

/// Whether the server is a node of Galera. MariaDB, Percona's cluster and Codership's MySQL have this variable.
/// Not in a comment for one of them, which the others would skip.
pub(super) const IS_NODE: &str = "SHOW VARIABLES LIKE 'wsrep_on'";

/// Group replication has this variable. Where it is off, several servers take writes.
const HAS_ONE_PRIMARY: &str = "SHOW VARIABLES LIKE 'group_replication_single_primary_mode'";

/// The server's description of itself.
const ABOUT: &str = "SELECT CONCAT(VERSION(), ' ', @@version_comment)";

/// Servers that speak the protocol and accept `SKIP LOCKED`, but do not lock rows.
const LOCK_NOTHING: [&str; 2] = ["TiDB", "Dolt"];

/// Shows whether the server takes writes: its settings, and its state as a node of Galera. (MariaDB without
/// Galera is never ready, either.)
const TAKES_WRITES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'innodb_read_only');\
    SHOW GLOBAL STATUS LIKE 'wsrep_ready'";

/// Waits until a node of Galera has all that was committed on any node until now. Otherwise a lease that the
/// former node granted might not be here yet, and its owner would be told that it is gone. Done once, because
/// the wait costs a round trip to the other nodes. A node that the others do not answer waits until we give it
/// up.
const CATCH_UP: &str = "SET SESSION wsrep_sync_wait = 1;SELECT 1;SET SESSION wsrep_sync_wait = DEFAULT";

/// A server's own account of itself.
struct Described(HashMap<String, String>);

impl Described {
    /// Reads names and values.
    fn read(rows: &[MySqlRow]) -> Result<Self, sqlx::Error> {
        let pair = |row: &MySqlRow| Ok((row.try_get(0)?, row.try_get(1)?));
        Ok(Self(rows.iter().map(pair).collect::<Result<_, sqlx::Error>>()?))
    }

    fn is_on(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "ON")
    }

    fn is_off(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value == "OFF")
    }

    fn takes_writes(&self, is_node: bool) -> bool {
        let left_out = is_node && !self.is_on("wsrep_ready");
        !(left_out || self.is_on("read_only") || self.is_on("innodb_read_only"))
    }
}

/// A connection with our settings.
#[derive(Debug)]
pub(super) struct Session {
    connection: MySqlConnection,
    /// The server supports the statements of [`one`](super::one).
    pub(super) writes_alone: bool,
    /// The server is a node of Galera.
    is_node: bool,
    /// Set if it is one of several nodes.
    in_use: Option<InUse>,
    name: Option<String>,
}

/// What the sessions of a store have found out about their server, for transactions that take keys. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub(super) struct Met {
    /// A row that is locked on this server is locked for all writers.
    pub(super) takes: Arc<AtomicBool>,
    /// The [name](Session::name) of the session that was used last to read rows.
    pub(super) identity: Identity,
}

impl Met {
    /// Notes a session that was opened, or was to be.
    pub(super) fn opened(&self, opened: Result<Session, StoreError>) -> Result<Session, StoreError> {
        if let Ok(session) = &opened {
            self.takes.store(session.name.is_some(), Ordering::Relaxed);
        }
        self.identity.opened();
        opened
    }
}

impl Session {
    /// A lock of the server's (`GET_LOCK`) that this session keeps, and that no other can have. Who sees that it is
    /// used is on the same server. (MariaDB has no name for a server that another could not have too.) `None` where
    /// several servers take writes: there a row's lock keeps nobody out elsewhere.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The messages in which statements are sent: one for all, but on a node of Galera one for each. If another
    /// node was faster, a node may undo a transaction between two statements of a message, and say so at the
    /// next message only: the rest of this one runs outside any transaction, and its COMMIT succeeds.
    pub(super) fn messages(&self, statements: Vec<String>) -> Vec<String> {
        if self.is_node {
            statements
        } else {
            vec![statements.join(";")]
        }
    }

    /// Runs statements, and returns how many rows each of them has matched. An answer that ends before it has confirmed all
    /// of them, the COMMIT above all, is an error.
    pub(super) async fn run(&mut self, statements: Vec<String>) -> Result<Vec<u64>, sqlx::Error> {
        let sent = statements.len();
        let mut matched = Vec::with_capacity(sent);
        for message in self.messages(statements) {
            let mut answers = sqlx::raw_sql(AssertSqlSafe(message)).fetch_many(&mut self.connection);
            while let Some(answer) = answers.next().await {
                if let Either::Left(done) = answer? {
                    matched.push(done.rows_affected());
                }
            }
        }
        if matched.len() < sent {
            let message = format!("the server confirmed {} of {sent} statements", matched.len());
            return Err(sqlx::Error::Protocol(message));
        }
        Ok(matched)
    }

    /// Closes the connection properly.
    pub(super) async fn close(self) {
        // The result does not matter: dropping the connection closes it too.
        let _ = self.connection.close().await;
    }
}

impl Deref for Session {
    type Target = MySqlConnection;

    fn deref(&self) -> &MySqlConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut MySqlConnection {
        &mut self.connection
    }
}

impl Alive for Session {
    async fn is_alive(&mut self) -> bool {
        match &mut self.in_use {
            Some(in_use) => in_use.is_here(&mut self.connection).await.unwrap_or(false),
            None => self.connection.ping().await.is_ok(),
        }
    }

    fn is_due(&self) -> bool {
        self.in_use.as_ref().is_some_and(InUse::is_due)
    }

    async fn claim(&mut self, view: i64, members: usize) -> Result<bool, StoreError> {
        match &mut self.in_use {
            Some(in_use) => in_use.claim(&mut self.connection, view, members).await,
            None => Ok(true),
        }
    }

    async fn history(&mut self) -> Result<Option<History>, StoreError> {
        let asked = async {
            let rows = sqlx::raw_sql(TAKES_WRITES).fetch_all(&mut self.connection);
            let server = Described::read(&rows.await?)?;
            let takes_writes = server.takes_writes(self.is_node);
            if takes_writes && self.is_node {
                sqlx::raw_sql(CATCH_UP).execute(&mut self.connection).await?;
                if let Some(in_use) = &mut self.in_use {
                    return Ok(Some(in_use.history(&mut self.connection).await?));
                }
            }
            // These servers tell no history that could be compared.
            Ok(takes_writes.then(History::default))
        };
        asked.await.map_err(error::of_connect)
    }
}

/// The user's options for a connection of the store. Statements are not logged, because they contain keys.
/// sqlx makes no settings, because [`SETTINGS`] makes them all in one round trip.
fn for_us(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging()
}

/// Opens a connection with our settings. With `any_server` also to a server that is known to grant a lock
/// twice. `version_table` is for several servers.
pub(super) async fn open(
    options: &OptionsSource<MySqlConnectOptions>,
    any_server: bool,
    version_table: Option<String>,
) -> Result<Session, StoreError> {
    let options = for_us(options.get().await?);
    let mut connection = MySqlConnection::connect_with(&options)
        .await
        .map_err(|error| error::of_connect_to(error, &options))?;
    // Checked before the settings, because such a server may not know some of them.
    if !any_server {
        let about = sqlx::raw_sql(ABOUT).fetch_optional(&mut connection).await;
        let about = about.and_then(|row| row.map(|row| row.try_get::<String, _>(0)).transpose());
        // With `sql_select_limit` = 0 there is no row.
        check(&about.map_err(error::of_connect)?.unwrap_or_default())?;
    }
    let settings = format!("{SETTINGS};{IS_NODE};{HAS_ONE_PRIMARY}");
    let answers = sqlx::raw_sql(AssertSqlSafe(settings))
        .fetch_all(&mut connection)
        .await;
    let known = answers
        .and_then(|rows| Known::read(&rows))
        .map_err(error::of_connect)?;
    let name = if known.has_one_writer() {
        named(&mut connection).await.map_err(error::of_connect)?
    } else {
        None
    };
    Ok(Session {
        connection,
        writes_alone: known.writes_alone,
        is_node: known.is_node,
        in_use: version_table.filter(|_| known.is_node).map(InUse::in_table),
        name,
    })
}

/// The answers to [`SETTINGS`], [`IS_NODE`] and [`HAS_ONE_PRIMARY`].
struct Known {
    /// The server supports the statements of [`one`](super::one).
    writes_alone: bool,
    /// It is a node of Galera.
    is_node: bool,
    /// It is in a group of which all take writes, or would be.
    is_one_of_several: bool,
}

impl Known {
    fn read(rows: &[MySqlRow]) -> Result<Self, sqlx::Error> {
        let Some((settings, variables)) = rows.split_first() else {
            return Err(sqlx::Error::RowNotFound);
        };
        let variables = Described::read(variables)?;
        Ok(Self {
            writes_alone: settings.try_get::<i64, _>(0)? == 1,
            is_node: variables.is_on("wsrep_on"),
            is_one_of_several: variables.is_off("group_replication_single_primary_mode"),
        })
    }

    fn has_one_writer(&self) -> bool {
        !(self.is_node || self.is_one_of_several)
    }
}

/// Gives the session a [name](Session::name). `None` where the server refuses.
async fn named(connection: &mut MySqlConnection) -> Result<Option<String>, sqlx::Error> {
    let name = format!("dblock:{}", Uuid::now_v7());
    // No setting changes these characters.
    let lock = format!("SELECT CAST(GET_LOCK('{name}', 0) AS SIGNED)");
    let got = match sqlx::raw_sql(AssertSqlSafe(lock)).fetch_one(connection).await {
        Ok(row) => row.try_get::<Option<i64>, _>(0)?,
        Err(sqlx::Error::Database(_)) => None,
        Err(error) => return Err(error),
    };
    Ok((got == Some(1)).then_some(name))
}

/// Refuses a server that describes itself, in `about`, as one that does not lock rows.
fn check(about: &str) -> Result<(), StoreError> {
    let Some(name) = LOCK_NOTHING.iter().find(|name| about.contains(**name)) else {
        return Ok(());
    };
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        format!(
            "the server is {name} ({about}), which accepts SELECT … FOR UPDATE SKIP LOCKED but locks no row for it, so \
             that two processes could be granted one lock; use MySQL or MariaDB, or if you know better, \
             `LockManagerBuilder::trust_any_server`"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_galera_is_asked_for_in_no_dialect_of_one_maker() {
        let asked = format!("{SETTINGS};{IS_NODE}");
        let comments = asked.split("/*").skip(1).filter_map(|part| part.split_once("*/"));
        let skipped = |name| comments.clone().any(|(comment, _)| comment.contains(name));
        assert!(asked.contains("wsrep_on") && !skipped("wsrep_on"), "{asked}");
    }

    #[test]
    fn servers_that_lock_nothing_are_refused_by_name() {
        for about in [
            "8.0.11-TiDB-v7.5.0 TiDB Server (Apache License 2.0)",
            "8.0.33 Dolt",
        ] {
            let error = check(about).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported);
            let text = error.to_string();
            assert!(
                text.contains(about) && text.contains("trust_any_server"),
                "{text}"
            );
        }
        for about in [
            "10.11.14-MariaDB-0+deb12u2 Debian 12",
            "8.4.3 MySQL Community Server - GPL",
        ] {
            check(about).unwrap();
        }
    }
}
