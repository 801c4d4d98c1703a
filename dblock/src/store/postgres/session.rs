//! Opening a session of the store's own, and noticing that a pooler shares it with others.
//!
//! A pooler such as `PgBouncer` in transaction mode gives each transaction another session of the server. What
//! belongs to a session is then not ours: settings, `LISTEN`, and prepared statements. The last are worse than
//! useless: sqlx names them `sqlx_s_1`, `sqlx_s_2` and so on in every client, and sends preparation and execution
//! as two transactions, so the name may stand for another client's statement by then.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgConnection, Row as _};
use uuid::Uuid;

use super::errors;
use crate::store::error::StoreError;

/// The isolation level that the statements are written for. In a stricter one they fail and are tried again.
const ISOLATION: &str = "read committed";

/// What else our own sessions have. Nothing but speed and patience depends on it.
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

/// A setting of no meaning to the server. Whoever reads back what was sent has the session to themselves.
pub(super) struct Mark(String);

impl Mark {
    pub(super) const READ: &str = "SELECT pg_catalog.current_setting('dblock.session', true)";

    pub(super) fn new() -> Self {
        Self(Uuid::now_v7().to_string())
    }

    pub(super) fn on(&self, options: PgConnectOptions) -> PgConnectOptions {
        options.options([("dblock.session", &self.0)])
    }

    /// Whether the answer to [`READ`](Self::READ) is this one.
    pub(super) fn is_in(&self, row: &PgRow) -> Result<bool, sqlx::Error> {
        let found: Option<&str> = row.try_get(0)?;
        Ok(found == Some(&self.0))
    }
}

/// A connection, and whose the session behind it is.
#[derive(Debug)]
pub(super) struct Session {
    connection: PgConnection,
    pooled: Arc<AtomicBool>,
}

impl Session {
    /// Settings, prepared statements and `LISTEN` last from one transaction to the next. Otherwise each
    /// transaction may meet another session, which others use in between.
    pub(super) fn is_ours(&self) -> bool {
        !self.pooled.load(Ordering::Relaxed)
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

/// How sessions are opened. Clones know the same of the pooler.
#[derive(Debug, Clone)]
pub(super) struct Opener {
    options: PgConnectOptions,
    pooled: Arc<AtomicBool>,
}

impl Opener {
    pub(super) fn new(options: PgConnectOptions) -> Self {
        Self {
            options,
            pooled: Arc::default(),
        }
    }

    /// Opens a session with our settings, or one without where a pooler refuses or swallows them.
    pub(super) async fn open(&self) -> Result<Session, StoreError> {
        if !self.pooled.load(Ordering::Relaxed) {
            match self.open_ours().await {
                Ok(Some(connection)) => return Ok(self.session(connection)),
                Ok(None) => self.say_pooled(),
                Err(error) if errors::is_refused_startup(&error) => self.say_pooled(),
                Err(error) => return Err(errors::of_connect(error)),
            }
        }
        let connection = self.options.connect().await.map_err(errors::of_connect)?;
        Ok(self.session(connection))
    }

    fn session(&self, connection: PgConnection) -> Session {
        Session {
            connection,
            pooled: Arc::clone(&self.pooled),
        }
    }

    /// `None` when the session is not ours. The settings are sent while connecting: a `SET` afterwards would
    /// reach other programs' sessions behind a pooler.
    async fn open_ours(&self) -> Result<Option<PgConnection>, sqlx::Error> {
        let mark = Mark::new();
        let options = self.options.clone().options(SETTINGS);
        let options = options.options([("default_transaction_isolation", ISOLATION)]);
        let mut connection = mark.on(options).connect().await?;
        let row = sqlx::raw_sql(Mark::READ).fetch_one(&mut connection).await?;
        if !mark.is_in(&row)? {
            return Ok(None);
        }
        let trusted = AssertSqlSafe(trusted_names(Lasts::Session));
        sqlx::raw_sql(trusted).execute(&mut connection).await?;
        Ok(Some(connection))
    }

    /// Once in the log.
    fn say_pooled(&self) {
        if !self.pooled.swap(true, Ordering::Relaxed) {
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

/// Functions, types and operators are the server's own, whatever `search_path` the user or the database has; tables
/// are found as before. One row without meaning.
///
/// Names in this statement, and in what goes to sessions without it, say that they are of `pg_catalog`.
pub(super) fn trusted_names(lasts: Lasts) -> String {
    let path = "pg_catalog.concat('pg_catalog, ', pg_catalog.current_setting('search_path'))";
    let is_local = lasts == Lasts::Transaction;
    // A path may be empty.
    format!("SELECT pg_catalog.set_config('search_path', pg_catalog.rtrim({path}, ', '), {is_local})")
}

/// The settings for one transaction, to stand before a statement in the same message. One row of answer comes of it.
pub(super) fn for_one_transaction() -> String {
    let settings = SETTINGS.map(|(name, value)| format!("SET LOCAL {name} = '{value}';"));
    format!(
        "SET TRANSACTION ISOLATION LEVEL {ISOLATION};{}{};",
        settings.concat(),
        trusted_names(Lasts::Transaction)
    )
}
