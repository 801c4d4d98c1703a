//! Rows in PostgreSQL 13 or later.
//!
//! Each action is one autocommit statement, so an uncontended lock costs one round trip to acquire and one to
//! release. Only a row in an unusual state costs a second one. Rows are locked with `SKIP LOCKED`, so a
//! user's transaction that locks a row delays nobody else. `sql.rs` explains why the statements are
//! right.

mod admin;
mod apply;
mod certain;
mod diagnose;
mod error;
mod fence;
mod listen;
mod migrate;
mod purge;
mod record;
mod row;
mod session;
mod shared;
mod source;
mod sql;
mod statement;
mod warnings;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;
use uuid::Uuid;

pub(crate) use self::error::{code_of, is_conflict};
pub(crate) use self::source::from_url;
pub use self::source::open;

use self::session::{Opener, Session};
use super::busy_keys::BusyKeys;
use super::connect_options::{self, OptionsSource};
use super::connections::{Connections, MAX_CONNECTIONS};
use super::fence::{FenceSource, Identity, Pools};
use super::table::TableName;
use super::{
    Capabilities, Finding, InspectFilter, LockRow, Outcome, Purged, Records, Request, Store, StoreError,
    StoreFuture, WakeUp,
};
use crate::Key;

/// How many connections are reserved for extends. The others are for acquires, releases, operators, and the
/// listener, which keeps one while a caller waits.
const RESERVED: usize = 1;

/// A lock table in a PostgreSQL database.
pub struct PostgresStore {
    table: TableName,
    sql: sql::Sql,
    servers: Vec<OptionsSource<PgConnectOptions>>,
    connections: Connections<Session>,
    /// Keys that were busy, or that others waited for, when they were last asked for.
    contended: BusyKeys,
    /// Keys that this process shares.
    shared: BusyKeys,
    idle_limit: Option<Duration>,
    /// A pooler was found.
    pooled: Arc<AtomicBool>,
    identity: Identity,
}

impl PostgresStore {
    /// A store on the one of the `servers` that takes writes. It connects at its first request.
    pub(crate) fn new(servers: Vec<OptionsSource<PgConnectOptions>>, table: TableName) -> Self {
        let names = servers.iter().map(OptionsSource::server).collect();
        let opener = Opener::new(servers.clone());
        let (pooled, identity) = (opener.pooled(), opener.identity());
        let open = move |server| {
            let opener = opener.clone();
            async move { opener.open(server).await }
        };
        let of_place = servers.clone();
        let place = move || place(&of_place);
        let connections = Connections::new(
            "postgres",
            MAX_CONNECTIONS - RESERVED,
            RESERVED,
            names,
            place,
            open,
        );
        Self {
            sql: sql::Sql::new(&table),
            table,
            servers,
            connections,
            contended: BusyKeys::default(),
            shared: BusyKeys::default(),
            idle_limit: None,
            pooled,
            identity,
        }
    }

    /// How long a user's transaction may idle after a fence check.
    #[doc(hidden)]
    #[must_use]
    pub fn transaction_idle_limit(mut self, limit: Option<Duration>) -> Self {
        self.idle_limit = limit;
        self
    }

    /// A store without a manager, for the tests of this crate. Programs use `LockManager`.
    ///
    /// # Errors
    /// The reason why the URL or the table's name cannot be read.
    #[doc(hidden)]
    pub fn open(url: &str, table: &str) -> Result<Self, String> {
        // sqlx's error may quote a part of the URL, which may contain a password.
        let options = url
            .parse()
            .map_err(|_: sqlx::Error| "the database URL cannot be read")?;
        Ok(Self::new(
            vec![OptionsSource::fixed(options)],
            TableName::parse(table)?,
        ))
    }

    /// The user's current options, for a connection of the store to this server.
    async fn options(&self, server: usize) -> Result<PgConnectOptions, StoreError> {
        session::options(&self.servers[server]).await
    }

    /// Classifies an error of a statement on the lock table.
    fn failed(&self, error: sqlx::Error) -> StoreError {
        error::of_statement(error, &self.table)
    }

    /// For tests: the fence check.
    ///
    /// # Errors
    /// The database's answer.
    #[doc(hidden)]
    pub async fn verify_in(
        &self,
        connection: &mut PgConnection,
        key: &Key,
        lease_id: Uuid,
        fence_token: i64,
    ) -> Result<Option<Duration>, StoreError> {
        self.source().verify(connection, key, lease_id, fence_token).await
    }

    /// What a statement in a user's transaction concerns.
    fn source(&self) -> FenceSource {
        FenceSource {
            dialect: &fence::Postgres,
            table: self.table.quoted('"').into(),
            record_table: self.table.quoted_record('"').into(),
            idle_limit: self.idle_limit,
            pooled: Arc::clone(&self.pooled),
            takes: Arc::new(AtomicBool::new(true)),
            identity: self.identity.clone(),
            pools: Pools::default(),
            new_keys: Arc::default(),
        }
    }
}

/// Addresses and database, as far as the options are known.
fn place(servers: &[OptionsSource<PgConnectOptions>]) -> Option<String> {
    connect_options::place(servers, |options| {
        // Without a database the server uses the user's name.
        let database = options.get_database().unwrap_or(options.get_username());
        (error::address(options), Some(database.to_owned()))
    })
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("table", &self.table)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new("postgres");
        can.verify_in = true;
        can.raises_tokens = true;
        can.concurrency = 3;
        can.wake_ups = true;
        can.purge = true;
        can.shares = true;
        can
    }

    fn location(&self) -> Option<String> {
        place(&self.servers)
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(apply::apply(self, requests))
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(migrate::check_schema(self))
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(migrate::migrate(self))
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(admin::inspect(self, filter))
    }

    fn rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<LockRow>, StoreError>>> {
        Box::pin(admin::rows_of(self, keys))
    }

    fn row<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<LockRow>, StoreError>> {
        Box::pin(admin::shown(self, key))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::revoke(self, key))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::force_release(self, key))
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(listen::listen(self, tell))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(diagnose::diagnose(self))
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(purge::purge(self, idle, after, limit))
    }

    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        let own = Self::new(self.servers.clone(), self.table.clone());
        Some(Arc::new(own.transaction_idle_limit(self.idle_limit)))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        drop(self.connections.close());
        Box::pin(std::future::ready(()))
    }

    fn transaction_source(&self, _: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(self.source()))
    }

    fn make_free_rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::make_free_rows(self, keys))
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}
