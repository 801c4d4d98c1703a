//! Rows in a SQLite file, shared by the processes of one host.
//!
//! SQLite has one writer at a time, so one connection does everything and a batch is one transaction.

mod admin;
mod apply;
mod diagnose;
mod error;
mod fence;
mod migrate;
mod purge;
mod record;
mod row;
mod session;
mod source;
mod sql;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, SqliteConnection};

pub(crate) use self::error::is_conflict;
pub(crate) use self::source::from_url;
pub use self::source::open;

use self::sql::Statements;
use super::busy_keys::BusyKeys;
use super::connections::Connections;
use super::fence::{FenceSource, Identity, Pools};
use super::table::TableName;
use super::{
    Capabilities, Finding, InspectFilter, LockRow, Outcome, Purged, Records, Request, Store, StoreError,
    StoreFuture,
};
use crate::Key;

/// Rows in a SQLite file.
#[derive(Debug)]
pub(crate) struct SqliteStore {
    options: SqliteConnectOptions,
    connections: Connections<SqliteConnection>,
    table: TableName,
    statements: Arc<Statements>,
    busy: BusyKeys,
}

impl SqliteStore {
    /// A store in the file of `options`. Opens nothing yet.
    pub(crate) fn new(options: SqliteConnectOptions, table: TableName) -> Self {
        let settings = session::settings(options.clone());
        let statements = Arc::new(Statements::new(&table));
        let (tables, texts) = (table.clone(), Arc::clone(&statements));
        let file = options.get_filename().display().to_string();
        let place = move || Some(file.clone());
        let connections = Connections::new("sqlite", 1, 0, vec![Arc::default()], place, move |_| {
            let (options, table, statements) = (settings.clone(), tables.clone(), Arc::clone(&texts));
            async move { session::open(options, &table, &statements).await }
        });
        Self {
            options,
            connections,
            table,
            statements,
            busy: BusyKeys::default(),
        }
    }

    async fn rows(
        &self,
        connection: &mut SqliteConnection,
        query: Query<'_>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        query
            .fetch_all(connection)
            .await
            .map_err(|error| self.failed(error))
    }

    async fn control(&self, connection: &mut SqliteConnection, text: &'static str) -> Result<(), StoreError> {
        self.rows(connection, sqlx::query(text)).await.map(drop)
    }

    /// Classifies an error of a statement on the lock table.
    fn failed(&self, error: sqlx::Error) -> StoreError {
        error::of_statement(error, &self.table)
    }

    /// What a statement in a user's transaction concerns.
    fn source(&self) -> FenceSource {
        FenceSource {
            dialect: &fence::Sqlite,
            table: self.table.quoted('"').into(),
            record_table: self.table.quoted_record('"').into(),
            idle_limit: None,
            pooled: Arc::default(),
            takes: Arc::default(),
            identity: Identity::default(),
            pools: Pools::default(),
            new_keys: Arc::default(),
        }
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        let mut can = Capabilities::new("sqlite");
        can.verify_in = true;
        can.raises_tokens = true;
        can.purge = true;
        can.shares = true;
        can
    }

    fn location(&self) -> Option<String> {
        Some(self.options.get_filename().display().to_string())
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
        Some(Arc::new(Self::new(self.options.clone(), self.table.clone())))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            for connection in self.connections.close() {
                // The last connection to a file removes the `-wal` and `-shm` files, which takes a moment. A
                // program may end as soon as its manager has.
                if let Err(error) = sqlx::Connection::close(connection).await {
                    tracing::warn!(%error, "a connection to the SQLite file did not close");
                }
            }
        })
    }

    fn transaction_source(&self, _: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        Some(Arc::new(self.source()))
    }

    fn records(&self) -> Option<&dyn Records> {
        Some(self)
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, SqliteArguments>;

fn statement<'q>(text: &Arc<str>) -> Query<'q> {
    sqlx::query(AssertSqlSafe(Arc::clone(text)))
}

/// A statement about one row. Further parameters follow the key.
fn query<'q>(text: &Arc<str>, key: &'q Key) -> Query<'q> {
    statement(text).bind(key.as_str())
}
