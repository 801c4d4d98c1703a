//! Opens sessions of the store, and detects a pooler that shares them with others.
//!
//! A pooler such as `PgBouncer` in transaction mode gives each transaction another session of the server. So
//! the session's state is not ours: settings, `LISTEN`, and prepared statements. Prepared statements do harm:
//! sqlx names them `sqlx_s_1`, `sqlx_s_2` and so on in every client, and prepares and executes in two
//! transactions. In between the name may become another client's statement.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};
use uuid::Uuid;

use super::error;
use super::sql::OWN_APPLICATION;
use crate::store::StoreError;
use crate::store::connect_options::OptionsSource;
use crate::store::fence::Identity;
use crate::store::servers::{Alive, History};

/// The isolation level that the statements need. Under a stricter one they fail and are tried again.
const ISOLATION: &str = "read committed";

/// The other settings of our own sessions. They affect only speed and waiting times.
///
/// The planner's switches keep a plan that was made for an empty table from reading the whole of a large one.
const SETTINGS: [(&str, &str); 9] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("lock_timeout", "1s"),
    ("statement_timeout", "5s"),
    ("idle_in_transaction_session_timeout", "10s"),
    ("client_min_messages", "warning"),
];

/// A setting without meaning to the server. A session that returns the value that we sent is not shared.
pub(super) struct Mark(String);

impl Mark {
    pub(super) const READ: &str = "SELECT pg_catalog.current_setting('dblock.session', true)";

    pub(super) fn new() -> Self {
        Self(Uuid::now_v7().to_string())
    }

    pub(super) fn on(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.options([("dblock.session", &self.0)])
    }

    /// Whether the answer to [`READ`](Self::READ) is this mark.
    pub(super) fn is_in(&self, row: &PgRow) -> Result<bool, sqlx::Error> {
        let found: Option<&str> = row.try_get(0)?;
        Ok(found == Some(&self.0))
    }
}

/// The server's processes, with the time in µs when each began.
const STARTED: &str = "(SELECT pid, (date_part('epoch', backend_start) * 1000000)::bigint AS began
    FROM pg_stat_get_activity(NULL)) started";

/// The process that answers, and whether its commits wait for a standby.
const THIS_PROCESS: &str = "SELECT pid, (date_part('epoch', backend_start) * 1000000)::bigint,
    current_setting('synchronous_standby_names') <> '' FROM pg_stat_get_activity(pg_backend_pid())";

/// Shows a server's history: the number of its timeline, which grows with each promotion. NULL where nothing
/// can be written.
const HISTORY: &str = "SELECT CASE WHEN pg_catalog.current_setting('transaction_read_only') = 'off' THEN
    ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint END";

/// Shows what a server has in common with its copies only. By default all users may read it.
const CLUSTER: &str = "SELECT system_identifier FROM pg_catalog.pg_control_system()";

/// A process of a server: the server's index, the process id, and when the process began, in µs.
type Process = (usize, i32, i64);

/// A connection, and whether the session behind it is ours.
#[derive(Debug)]
pub(super) struct Session {
    connection: PgConnection,
    /// `None` where the session is not ours.
    process: Option<Process>,
    /// A statement was sent that is not answered yet.
    waits: bool,
    /// Commits wait for a standby, or may, as far as was known when the session was opened.
    waits_for_standby: bool,
    /// The server warned while it answered: the commit may be on this server alone.
    warned: bool,
    shared: Arc<Shared>,
}

/// State that the sessions of a store share.
#[derive(Debug, Default)]
struct Shared {
    pooled: Arc<AtomicBool>,
    identity: Identity,
    /// Sessions that were given up while a statement was running.
    abandoned: Mutex<Vec<Process>>,
}

impl Shared {
    fn abandoned(&self) -> MutexGuard<'_, Vec<Process>> {
        self.abandoned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(process) = self.process.filter(|_| self.waits) {
            self.shared.abandoned().push(process);
        }
    }
}

impl Alive for Session {
    async fn is_alive(&mut self) -> bool {
        self.connection.ping().await.is_ok()
    }

    async fn history(&mut self) -> Result<Option<History>, StoreError> {
        let row = sqlx::raw_sql(HISTORY).fetch_one(&mut self.connection).await;
        let number: Option<i64> = row.and_then(|row| row.try_get(0)).map_err(error::of_connect)?;
        let Some(number) = number else { return Ok(None) };
        let cluster = match sqlx::raw_sql(CLUSTER).fetch_one(&mut self.connection).await {
            // The user may not read it.
            Err(sqlx::Error::Database(_)) => Ok(None),
            row => row.and_then(|row| row.try_get(0)).map(Some),
        };
        let cluster = cluster.map_err(error::of_connect)?;
        Ok(Some(History {
            cluster,
            number,
            ..History::default()
        }))
    }
}

impl Session {
    /// Whether settings, prepared statements and `LISTEN` last from one transaction to the next. Otherwise
    /// each transaction may run in another session, which others use in between.
    pub(super) fn is_ours(&self) -> bool {
        !self.shared.pooled.load(Ordering::Relaxed)
    }

    /// Whether a warning of the server's matters.
    pub(super) fn waits_for_standby(&self) -> bool {
        self.waits_for_standby
    }

    /// The connection, for a statement. Without a call of [`answered`](Self::answered) the next session that is
    /// opened ends this one on the server, where it could wait for a lock or a standby for hours without
    /// noticing that the client is gone.
    pub(super) fn for_statement(&mut self) -> &mut PgConnection {
        self.waits = true;
        &mut self.connection
    }

    /// Notes that the server has answered, and whether it warned.
    pub(super) fn answered(&mut self, warned: bool) {
        self.waits = false;
        self.warned |= warned;
    }

    /// Whether the server has warned since this was last asked.
    pub(super) fn take_warning(&mut self) -> bool {
        std::mem::take(&mut self.warned)
    }
}

impl Deref for Session {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

/// The user's current options, for a connection of the store.
pub(super) async fn options(
    source: &OptionsSource<PgConnectOptions>,
) -> Result<PgConnectOptions, StoreError> {
    let options = source.get().await?.application_name(OWN_APPLICATION);
    // No number here has a fraction, and `PgBouncer` refuses this setting by default.
    Ok(options.extra_float_digits(None).disable_statement_logging())
}

/// Opens sessions. Clones share the sessions' state.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    servers: Vec<OptionsSource<PgConnectOptions>>,
    shared: Arc<Shared>,
}

impl Opener {
    pub(super) fn new(servers: Vec<OptionsSource<PgConnectOptions>>) -> Self {
        Self {
            servers,
            shared: Arc::default(),
        }
    }

    /// Whether a pooler was found, from the first session on.
    pub(super) fn pooled(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.shared.pooled)
    }

    /// The table's identity, as the sessions last read it. A new session may be on another server.
    pub(super) fn identity(&self) -> Identity {
        self.shared.identity.clone()
    }

    /// Opens a session with our settings, or without them where a pooler refuses or ignores them.
    pub(super) async fn open(&self, server: usize) -> Result<Session, StoreError> {
        let opened = self.open_any(server).await;
        self.shared.identity.opened();
        opened
    }

    async fn open_any(&self, server: usize) -> Result<Session, StoreError> {
        let options = options(&self.servers[server]).await?;
        if !self.shared.pooled.load(Ordering::Relaxed) {
            match self.open_ours(server, options.clone()).await {
                Ok(Some(session)) => return Ok(session),
                Ok(None) => self.say_pooled(),
                Err(error) if error::is_refused_startup(&error) => self.say_pooled(),
                Err(error) => return Err(error::of_connect_to(error, &options)),
            }
        }
        let connection = options.connect().await;
        let connection = connection.map_err(|error| error::of_connect_to(error, &options))?;
        Ok(self.session(connection, None, true))
    }

    fn session(
        &self,
        connection: PgConnection,
        process: Option<Process>,
        waits_for_standby: bool,
    ) -> Session {
        Session {
            connection,
            process,
            waits: false,
            waits_for_standby,
            warned: false,
            shared: Arc::clone(&self.shared),
        }
    }

    /// `None` if the session is not ours. The settings are sent while connecting: behind a pooler, a later `SET`
    /// would change other programs' sessions.
    async fn open_ours(
        &self,
        server: usize,
        options: PgConnectOptions,
    ) -> Result<Option<Session>, sqlx::Error> {
        let mark = Mark::new();
        let options = options.options(SETTINGS);
        let options = options.options([("default_transaction_isolation", ISOLATION)]);
        let mut connection = mark.on(options).connect().await?;
        let row = sqlx::raw_sql(Mark::READ).fetch_one(&mut connection).await?;
        if !mark.is_in(&row)? {
            return Ok(None);
        }
        let trusted = AssertSqlSafe(trusted_names(Lasts::Session));
        sqlx::raw_sql(trusted).execute(&mut connection).await?;
        let row = sqlx::raw_sql(THIS_PROCESS).fetch_one(&mut connection).await?;
        let process = (server, row.try_get(0)?, row.try_get(1)?);
        let waits_for_standby = row.try_get(2)?;
        self.end_abandoned(server, &mut connection).await?;
        Ok(Some(self.session(connection, Some(process), waits_for_standby)))
    }

    /// Ends the sessions of this server that were given up. Another process may have got the id of one that has
    /// ended, so the start time is compared too.
    async fn end_abandoned(&self, server: usize, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
        let mut abandoned = self.shared.abandoned().clone();
        abandoned.retain(|process| process.0 == server);
        for (_, id, began) in &abandoned {
            let end = format!(
                "SELECT pg_terminate_backend(pid) FROM {STARTED} WHERE pid = {id} AND began = {began}"
            );
            // Without the permission, the server must notice by itself.
            match sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut *connection).await {
                Ok(_) | Err(sqlx::Error::Database(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.shared
            .abandoned()
            .retain(|process| !abandoned.contains(process));
        Ok(())
    }

    /// Logs once that a pooler is used.
    fn say_pooled(&self) {
        if !self.shared.pooled.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "a connection pooler shares the sessions of PostgreSQL: dblock prepares no statements in them"
            );
        }
    }
}

/// How long a setting lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lasts {
    Session,
    Transaction,
}

/// Makes all functions, types and operators the server's own, whatever the `search_path` of the user or the
/// database; tables are found as before. The answer is one row without meaning.
///
/// Names in this statement, and in statements for sessions without it, are qualified with `pg_catalog`.
pub(super) fn trusted_names(lasts: Lasts) -> String {
    let path = "pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path'))";
    let is_local = lasts == Lasts::Transaction;
    // The path may be empty.
    format!("SELECT pg_catalog.set_config('search_path', pg_catalog.rtrim({path}, ', '), {is_local})")
}

/// The settings for one transaction, sent before a statement in the same message. They add one row to the
/// answer.
pub(super) fn for_one_transaction() -> String {
    let settings = SETTINGS.map(|(name, value)| format!("SET LOCAL {name} = '{value}';"));
    format!(
        "SET TRANSACTION ISOLATION LEVEL {ISOLATION};{}{};",
        settings.concat(),
        trusted_names(Lasts::Transaction)
    )
}
