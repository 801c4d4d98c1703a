//! Rows in a SQLite file, shared by the processes of one host.
//!
//! SQLite has one writer at a time, so one connection does everything and a batch is one transaction.

mod apply;
mod error;
mod fence;
mod migrate;
mod purge;
mod row;
mod session;
mod sql;

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use self::row::lock_row;
use self::sql::Statements;
use super::busy_keys::BusyKeys;
use super::connections::{Borrowed, Connections};
use super::table::TableName;
use super::{
    Capabilities, Database, FenceSource, InspectFilter, LockRow, Outcome, Purged, Request, Store, StoreError,
    StoreFuture,
};
use crate::key::Key;

pub(crate) use self::fence::verify;

/// Rows in a SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    connections: Connections<SqliteConnection>,
    table: TableName,
    statements: Statements,
    busy: BusyKeys,
}

impl SqliteStore {
    /// A store in the file of `options`. Opens nothing yet.
    pub(crate) fn new(options: SqliteConnectOptions, table: TableName) -> Self {
        let options = session::settings(options);
        let statements = Statements::new(&table);
        let connections = Connections::new(1, 0, move || session::open(options.clone()));
        Self {
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
            .map_err(|error| error::of_statement(error, &self.table))
    }

    async fn control(&self, connection: &mut SqliteConnection, text: &'static str) -> Result<(), StoreError> {
        self.rows(connection, sqlx::query(text)).await.map(drop)
    }

    /// For statements by hand: runs one on the own connection.
    async fn ask(&self, query: Query<'_>) -> Result<Vec<SqliteRow>, StoreError> {
        let mut connection: Borrowed<'_, _> = self.connections.take().await?;
        let answer = self.rows(&mut connection, query).await;
        connection.settle(answer)
    }
}

impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            verify_in: true,
            ..Capabilities::new("sqlite")
        }
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let outcomes = self.carry_out(requests).await;
            self.busy.note(requests, &outcomes);
            outcomes
        })
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(self.check_version())
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(self.create_or_upgrade())
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(async move {
            let query = sqlx::query(AssertSqlSafe(Arc::clone(&self.statements.inspect)))
                .bind(filter.key_prefix())
                .bind(filter.is_held_only())
                .bind(filter.max_rows());
            self.ask(query).await?.iter().map(lock_row).collect()
        })
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let rows = self.ask(query(&self.statements.revoke, key)).await?;
            Ok(!rows.is_empty())
        })
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let rows = self
                .ask(query(&self.statements.force_release, key).bind(Uuid::now_v7()))
                .await?;
            Ok(!rows.is_empty())
        })
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(async move {
            let mut connection = self.connections.take().await?;
            let answer = self.purge_some(&mut connection, idle, after, limit).await;
            connection.settle(answer)
        })
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.connections.close() })
    }

    fn fence_source(&self) -> Option<FenceSource> {
        Some(FenceSource {
            database: Database::Sqlite,
            table: self.table.quoted('"').into(),
            idle_limit: None,
        })
    }
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, SqliteArguments>;

/// A statement about one row; further parameters follow the key.
fn query<'q>(text: &Arc<str>, key: &'q Key) -> Query<'q> {
    sqlx::query(AssertSqlSafe(Arc::clone(text))).bind(key.as_str())
}
