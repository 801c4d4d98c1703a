//! Opening a connection of the store's own.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions as _, Connection as _};

use super::error;
use crate::store::StoreError;

/// What a batch relies on, whatever the server's defaults are.
///
/// - READ COMMITTED takes no gap locks. It has a statement of its own because the variable is called
///   `tx_isolation` in MariaDB before 11.1 and `transaction_isolation` in MySQL 8.
/// - One second is the shortest `innodb_lock_wait_timeout` of MySQL. Batches skip locked rows; this one is
///   for inserts that meet an insert of the same key. `lock_wait_timeout` is for tables that are altered.
/// - `completion_type`: after a chained commit the next statement would not commit by itself.
/// - A client that is cut off between locking a row and writing it leaves the row locked until the server
///   finds its session idle, after 8 hours by default; `wait_timeout` makes that 30 seconds. MariaDB can end
///   just the idle transaction, sooner; to MySQL, which cannot, that setting is a comment. A connection
///   that was closed while idle is replaced when it is next needed.
/// - A fixed `sql_mode`: strict, so that nothing is cut off silently.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
    SET autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    /*M!100300 idle_transaction_timeout = 5, */ wait_timeout = 30, \
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', NAMES utf8mb4";

/// The user's options for a connection of ours: no logging of statements, which have keys in them, and
/// none of the settings that sqlx makes, because [`SETTINGS`] has them all in one round trip.
pub(super) fn options(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging()
}

/// Opens a connection with our settings.
pub(super) async fn open(options: MySqlConnectOptions) -> Result<MySqlConnection, StoreError> {
    let mut connection = MySqlConnection::connect_with(&options)
        .await
        .map_err(error::of_connect)?;
    sqlx::raw_sql(SETTINGS)
        .execute(&mut connection)
        .await
        .map_err(error::of_connect)?;
    Ok(connection)
}
