//! Rows in a SQLite file, shared by the processes of one host.
//!
//! SQLite has one writer at a time, so one connection does everything and a batch is one transaction.

mod answers;
mod failure;
mod migrate;
mod open;
mod purge;
mod statements;
mod verify;

use std::sync::Arc;
use std::time::Duration;

use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteRow};
use sqlx::{AssertSqlSafe, SqliteConnection};
use uuid::Uuid;

use self::answers::{lock_row, outcome};
use self::statements::{BEGIN, COMMIT, Statements, Text};
use super::clock::micros;
use super::connections::{Borrowed, Connections};
use super::table::TableName;
use super::{
    Action, Capabilities, Database, FenceSource, InspectFilter, LockRow, Outcome, Purged, Request, Store,
    StoreError, StoreFuture,
};
use crate::key::Key;
use crate::store::busy_keys::BusyKeys;

pub(crate) use self::verify::verify;

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
        let options = open::settings(options);
        let statements = Statements::new(&table);
        let connections = Connections::new(1, move || open::open(options.clone()));
        Self {
            connections,
            table,
            statements,
            busy: BusyKeys::default(),
        }
    }

    /// Carries out one request as a transaction of its own.
    async fn alone(&self, request: &Request) -> Result<Outcome, StoreError> {
        let mut connection = self.connections.take().await?;
        let answer = async {
            let mut rows = Vec::new();
            for text in self.attempts(request).into_iter().flatten() {
                rows = self.run(&mut connection, request, text).await?;
                if !rows.is_empty() {
                    break;
                }
            }
            outcome(request, &rows)
        }
        .await;
        connection.settle(answer)
    }

    /// What to try until there is an answer. The last one has every case.
    fn attempts(&self, request: &Request) -> [Option<&Arc<str>>; 3] {
        let Text { usual, alone, .. } = self.text(request);
        let (usual, alone) = (usual.as_ref(), Some(alone));
        match request.action {
            Action::Acquire { .. } if self.busy.contains(&request.key) => {
                [Some(&self.statements.busy), usual, alone]
            }
            Action::Acquire { .. } => [usual, Some(&self.statements.busy), alone],
            _ => [usual, None, alone],
        }
    }

    /// Carries out the requests in one transaction, or none of them.
    async fn together(&self, requests: &[Request]) -> Result<Vec<Outcome>, Undone> {
        let mut connection = self.connections.take().await.map_err(Undone::all)?;
        let answer = async {
            let mut outcomes = Vec::with_capacity(requests.len());
            for request in requests {
                let busy = self.still_busy(&mut connection, request).await;
                outcomes.push(busy.map_err(Undone::one)?);
            }
            if outcomes.iter().all(Option::is_some) {
                return Ok(outcomes);
            }
            self.control(&mut connection, BEGIN).await.map_err(Undone::all)?;
            for (request, known) in requests.iter().zip(&mut outcomes) {
                if known.is_none() {
                    let text = &self.text(request).inside;
                    let rows = self.run(&mut connection, request, text).await;
                    *known = Some(
                        rows.and_then(|rows| outcome(request, &rows))
                            .map_err(Undone::one)?,
                    );
                }
            }
            self.control(&mut connection, COMMIT).await.map_err(Undone::all)?;
            Ok(outcomes)
        }
        .await;
        // Closing the connection of a failed batch rolls it back.
        if answer.is_ok() {
            connection.keep();
        }
        answer.map(|outcomes| outcomes.into_iter().flatten().collect())
    }

    /// The answer to an acquire of a key that was busy before and still is.
    async fn still_busy(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
    ) -> Result<Option<Outcome>, StoreError> {
        if !matches!(request.action, Action::Acquire { .. }) || !self.busy.contains(&request.key) {
            return Ok(None);
        }
        let rows = self.run(connection, request, &self.statements.busy).await?;
        if rows.is_empty() {
            return Ok(None);
        }
        outcome(request, &rows).map(Some)
    }

    /// Carries out the requests, together if possible.
    async fn carry_out(&self, requests: &[Request]) -> Vec<Result<Outcome, StoreError>> {
        if requests.len() > 1 {
            match self.together(requests).await {
                Ok(outcomes) => return outcomes.into_iter().map(Ok).collect(),
                Err(Undone { error, of_one: false }) => return for_each(&error, requests),
                // One request spoils the batch: find out which, and the others never notice.
                Err(Undone { of_one: true, .. }) => {}
            }
        }
        let mut outcomes = Vec::with_capacity(requests.len());
        for request in requests {
            outcomes.push(self.alone(request).await);
        }
        outcomes
    }

    fn text(&self, request: &Request) -> &Text {
        match request.action {
            Action::Acquire { .. } => &self.statements.acquire,
            Action::Extend { .. } => &self.statements.extend,
            Action::Release => &self.statements.release,
        }
    }

    async fn run(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
        text: &Arc<str>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        let query = query(text, &request.key).bind(request.lease_id);
        let query = match &request.action {
            Action::Acquire {
                owner,
                ttl,
                holder,
                wanted_for,
                spare_tokens,
                reserve: _,
            } => query
                .bind(owner)
                .bind(micros(*ttl))
                .bind(&**holder)
                .bind(wanted_for.map(micros))
                .bind(spare_tokens),
            Action::Extend {
                count,
                ttl,
                successor,
            } => {
                let successor = successor.as_ref();
                query
                    .bind(count)
                    .bind(micros(*ttl))
                    .bind(successor.map(|successor| successor.owner))
                    .bind(successor.map(|successor| &*successor.holder))
                    .bind(successor.map(|successor| successor.fence_token))
            }
            Action::Release => query,
        };
        self.rows(connection, query).await
    }

    async fn rows(
        &self,
        connection: &mut SqliteConnection,
        query: Query<'_>,
    ) -> Result<Vec<SqliteRow>, StoreError> {
        query
            .fetch_all(connection)
            .await
            .map_err(|error| failure::of_statement(error, &self.table))
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
            let rows = self.ask(query(&self.statements.revoke.alone, key)).await?;
            Ok(!rows.is_empty())
        })
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let rows = self
                .ask(query(&self.statements.force_release.alone, key).bind(Uuid::now_v7()))
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
        })
    }
}

/// Why no request of a batch was carried out, and whether it is the fault of one of them.
struct Undone {
    error: StoreError,
    of_one: bool,
}

impl Undone {
    fn all(error: StoreError) -> Self {
        Self { error, of_one: false }
    }

    fn one(error: StoreError) -> Self {
        Self { error, of_one: true }
    }
}

fn for_each(error: &StoreError, requests: &[Request]) -> Vec<Result<Outcome, StoreError>> {
    requests
        .iter()
        .map(|_| Err(StoreError::new(error.kind(), error.to_string())))
        .collect()
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Sqlite, SqliteArguments>;

/// A statement about one row; further parameters follow the key.
fn query<'q>(text: &Arc<str>, key: &'q Key) -> Query<'q> {
    sqlx::query(AssertSqlSafe(Arc::clone(text))).bind(key.as_str())
}
