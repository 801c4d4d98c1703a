//! Connections of the store's own.

use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use super::error;
use crate::store::StoreError;
use crate::store::connect_options::OptionsSource;
use crate::store::connections::Alive;

/// What a batch relies on, whatever the server's defaults are.
///
/// - READ COMMITTED takes no gap locks. It has a statement of its own because the variable is called
///   `tx_isolation` in MariaDB before 11.1 and `transaction_isolation` in MySQL 8.
/// - One second is the shortest `innodb_lock_wait_timeout` of MySQL. Batches skip locked rows; this one is
///   for inserts that meet an insert of the same key. `lock_wait_timeout` is for tables that are altered.
///   MariaDB allows 0, but then the `COMMIT` of a transaction that has skipped a locked row fails.
/// - `completion_type`: after a chained commit the next statement would not commit by itself.
/// - A client that is cut off between locking a row and writing it leaves the row locked until the server
///   finds its session idle, after 8 hours by default; `wait_timeout` makes that 30 seconds. MariaDB can end
///   just the idle transaction, sooner; to MySQL, which cannot, that setting is a comment. A connection
///   that was closed while idle is replaced when it is next needed.
/// - A fixed `sql_mode`: strict, so that nothing is cut off silently, and with assignments made from left to
///   right. The time zone makes `SYSDATE` a clock without jumps.
///
/// The last statement asks whether the server knows `SET STATEMENT`, as MariaDB does, and whether `SYSDATE` is
/// the time of day, which a server option can make the start of the statement.
const SETTINGS: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
    SET autocommit = 1, completion_type = 0, innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, \
    /*M!100300 idle_transaction_timeout = 5, */ wait_timeout = 30, \
    sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', NAMES utf8mb4;\
    SELECT 0 /*M!100300 OR (SLEEP(0.001) = 0 AND SYSDATE(6) > NOW(6)) */";

/// A connection that has not been used for so long may have been closed by the server or something on the way.
const STALE: Duration = Duration::from_secs(10);

/// A connection with our settings.
#[derive(Debug)]
pub(super) struct Session {
    connection: MySqlConnection,
    writes_alone: bool,
    used: Instant,
}

impl Session {
    /// Whether a request may be carried out by one autocommit statement here. The server must know the means of
    /// [`one`](super::one), and the connection must have worked just now: when a write that is sent first of all
    /// gets no answer, nobody knows whether it was carried out.
    pub(super) fn may_write_first(&self) -> bool {
        self.writes_alone && self.used.elapsed() < STALE
    }

    /// Says goodbye to the server.
    pub(super) async fn close(self) {
        // The answer does not matter; dropping the connection closes it too.
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
        self.used = Instant::now();
        &mut self.connection
    }
}

impl Alive for Session {
    async fn is_alive(&mut self) -> bool {
        self.connection.ping().await.is_ok()
    }
}

/// The user's options for a connection of ours: no logging of statements, which have keys in them, and
/// none of the settings that sqlx makes, because [`SETTINGS`] has them all in one round trip.
fn for_us(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .set_names(false)
        .disable_statement_logging()
}

/// Opens a connection with our settings.
pub(super) async fn open(options: &OptionsSource<MySqlConnectOptions>) -> Result<Session, StoreError> {
    let options = for_us(options.get().await?);
    let mut connection = MySqlConnection::connect_with(&options)
        .await
        .map_err(error::of_connect)?;
    let settings = sqlx::raw_sql(SETTINGS).fetch_one(&mut connection).await;
    let writes_alone: i64 = settings
        .and_then(|row| row.try_get(0))
        .map_err(error::of_connect)?;
    Ok(Session {
        connection,
        writes_alone: writes_alone == 1,
        used: Instant::now(),
    })
}
