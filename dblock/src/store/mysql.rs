//! Rows in MySQL (8.0.1 or later) or MariaDB (10.6 or later): the first versions with `SKIP LOCKED`.
//!
//! Nothing here decides about waiting. No statement but those of [`fence`] runs on a user's connection.

mod admin;
mod apply;
mod busy;
mod diagnose;
mod error;
mod fence;
mod migrate;
mod node;
mod one;
mod purge;
mod record;
mod row;
mod session;
mod source;
mod sql;

use std::any::Any;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use uuid::Uuid;

pub(crate) use self::error::is_conflict;
pub(crate) use self::source::from_url;
pub use self::source::open;

use self::error::Rights;
use self::one::Statements;
use self::session::{Met, Session};
use super::busy_keys::BusyKeys;
use super::connect_options::{self, OptionsSource};
use super::connections::{Connections, MAX_CONNECTIONS};
use super::fence::{FenceSource, Pools};
use super::table::TableName;
use super::{
    Capabilities, Finding, InspectFilter, LockRow, Outcome, Purged, Records, Request, Store, StoreError,
    StoreFuture,
};
use crate::Key;

/// How many connections are reserved for extends. The others are for acquires, releases, records and operators.
const RESERVED: usize = 1;

/// How many batches may run at once: one of extends, one of releases and one of acquires.
const CONCURRENT_BATCHES: usize = 3;

/// Locks in one table of MySQL or MariaDB.
pub struct MySqlStore {
    connections: Connections<Session>,
    servers: Vec<OptionsSource<MySqlConnectOptions>>,
    any_server: bool,
    table: TableName,
    /// The quoted lock table.
    table_sql: String,
    statements: Statements,
    busy: BusyKeys,
    /// Keys that this process shares.
    shared: BusyKeys,
    met: Met,
}

impl MySqlStore {
    /// A store in `table` on the one of the `servers` that takes writes. It connects when first used. With
    /// `any_server` it also accepts a server that is known not to lock rows.
    pub(crate) fn new(
        servers: Vec<OptionsSource<MySqlConnectOptions>>,
        table: TableName,
        any_server: bool,
    ) -> Self {
        let names = servers.iter().map(OptionsSource::server).collect();
        let (of_place, for_opening) = (servers.clone(), servers.clone());
        let place = move || place(&of_place);
        let table_sql = table.quoted('`');
        // One server needs no choice.
        let version_table = (servers.len() > 1).then(|| table.quoted_version('`'));
        let met = Met::default();
        let by_sessions = met.clone();
        let open = move |server: usize| {
            let options = for_opening[server].clone();
            let (version_table, met) = (version_table.clone(), by_sessions.clone());
            async move { met.opened(session::open(&options, any_server, version_table).await) }
        };
        Self {
            connections: Connections::new("mysql", MAX_CONNECTIONS - RESERVED, RESERVED, names, place, open),
            servers,
            any_server,
            statements: Statements::new(&table_sql),
            busy: BusyKeys::default(),
            shared: BusyKeys::default(),
            met,
            table_sql,
            table,
        }
    }

    /// For tests: a store from a URL.
    ///
    /// # Errors
    /// The reason why the URL or the table's name cannot be read.
    #[doc(hidden)]
    pub fn open(url: &str, table: &str) -> Result<Self, String> {
        let options = MySqlConnectOptions::from_str(url)
            .map_err(|error| format!("the database URL cannot be read: {error}"))?;
        Ok(Self::new(
            vec![OptionsSource::fixed(options)],
            TableName::parse(table)?,
            false,
        ))
    }

    /// For tests: the fence check.
    #[doc(hidden)]
    pub async fn verify_on(
        &self,
        connection: &mut MySqlConnection,
        key: &Key,
        lease_id: Uuid,
        fence_token: i64,
    ) -> Result<Option<Duration>, StoreError> {
        self.source().verify(connection, key, lease_id, fence_token).await
    }

    /// Classifies an error of a statement on the lock table.
    fn failed(&self, error: sqlx::Error) -> StoreError {
        self.failed_without(error, Rights::Locks)
    }

    /// Classifies an error of a statement that needs these rights.
    fn failed_without(&self, error: sqlx::Error, rights: Rights) -> StoreError {
        error::of_statement(error, &self.table, rights)
    }

    /// The lock table with its database: a user's session may have selected another database.
    fn qualified_table(&self) -> String {
        self.qualified(&self.table_sql)
    }

    /// A quoted table with its database.
    fn qualified(&self, quoted: &str) -> String {
        // A lease exists, so there was a connection. All servers have the same database.
        let options = self.servers.iter().find_map(OptionsSource::latest);
        let database = options.as_ref().and_then(MySqlConnectOptions::get_database);
        match (self.table.schema(), database) {
            (None, Some(database)) => format!("`{}`.{quoted}", database.replace('`', "``")),
            _ => quoted.to_owned(),
        }
    }

    /// What a statement in a user's transaction concerns.
    fn source(&self) -> FenceSource {
        FenceSource {
            dialect: &fence::MySql,
            table: Arc::from(self.qualified_table()),
            record_table: Arc::from(self.qualified(&self.table.quoted_record('`'))),
            idle_limit: None,
            pooled: Arc::default(),
            takes: Arc::clone(&self.met.takes),
            identity: self.met.identity.clone(),
            pools: Pools::default(),
            new_keys: Arc::default(),
        }
    }
}

/// Addresses and database, as far as the options are known.
fn place(servers: &[OptionsSource<MySqlConnectOptions>]) -> Option<String> {
    connect_options::place(servers, |options| {
        let database = options.get_database().map(str::to_owned);
        (error::address(options), database)
    })
}

impl fmt::Debug for MySqlStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The options are left out: they contain the password.
        f.debug_struct("MySqlStore")
            .field("table", &self.table)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}

impl Store for MySqlStore {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new("mysql");
        can.verify_in = true;
        can.raises_tokens = true;
        can.concurrency = CONCURRENT_BATCHES;
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
        Box::pin(admin::rows(self, keys))
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
        Some(Arc::new(Self::new(
            self.servers.clone(),
            self.table.clone(),
            self.any_server,
        )))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        drop(self.connections.close());
        Box::pin(std::future::ready(()))
    }

    fn transaction_source(&self, _: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(self.source()))
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}
