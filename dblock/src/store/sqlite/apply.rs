//! Carries out requests: usual ones by one statement each, others by the rules.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::row::{get, lock_row, now, outcome, unexpected};
use super::sql::{BEGIN, COMMIT};
use super::{SqliteStore, error, query};
use crate::Key;
use crate::store::RecordChange;
use crate::store::clock::{Timestamp, micros};
use crate::store::rules::still_busy;
use crate::store::sharing::{self, asks_to_share};
use crate::store::sql_row::with_shared;
use crate::store::{Action, LockRow, Outcome, Request, StoreError, StoreErrorKind, rules, schema};

type Answer = Result<Outcome, StoreError>;

/// [`Store::apply`](crate::store::Store::apply).
pub(super) async fn apply(store: &SqliteStore, requests: &[Request]) -> Vec<Answer> {
    let answers = store.carry_out(requests).await;
    store.busy.note(requests, &answers);
    answers
}

impl SqliteStore {
    /// Carries out one request in a transaction of its own.
    async fn alone(&self, request: &Request) -> Answer {
        let mut connection = self.connections.take().await?;
        let answer = self.alone_on(&mut connection, request).await;
        connection.finish(answer)
    }

    async fn alone_on(&self, connection: &mut SqliteConnection, request: &Request) -> Answer {
        let was_busy = self.busy.contains(&request.key);
        if was_busy && let Some(busy) = self.still_busy(connection, request).await? {
            return Ok(busy);
        }
        // One statement changes one table.
        let alone = request.record.is_none();
        if alone && let Some(outcome) = self.usual(connection, request).await? {
            return Ok(outcome);
        }
        if !was_busy && let Some(busy) = self.still_busy(connection, request).await? {
            return Ok(busy);
        }
        self.control(connection, BEGIN).await?;
        let answer = if alone {
            self.decide(connection, request).await?
        } else {
            self.inside(connection, request).await?
        };
        self.control(connection, COMMIT).await?;
        answer
    }

    /// Carries out all requests in one transaction, or none of them.
    async fn together(&self, requests: &[Request]) -> Result<Vec<Answer>, Undone> {
        let mut connection = self.connections.take().await.map_err(Undone::all)?;
        let answers = self.together_on(&mut connection, requests).await;
        // Closing the connection rolls a failed batch back.
        if answers.is_ok() {
            connection.keep();
        }
        answers
    }

    async fn together_on(
        &self,
        connection: &mut SqliteConnection,
        requests: &[Request],
    ) -> Result<Vec<Answer>, Undone> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let busy = if self.busy.contains(&request.key) {
                self.still_busy(connection, request).await.map_err(Undone::one)?
            } else {
                None
            };
            answers.push(busy.map(Ok));
        }
        if answers.iter().any(Option::is_none) {
            self.control(connection, BEGIN).await.map_err(Undone::all)?;
            for (request, known) in requests.iter().zip(&mut answers) {
                if known.is_none() {
                    *known = Some(self.inside(connection, request).await.map_err(Undone::one)?);
                }
            }
            self.control(connection, COMMIT).await.map_err(Undone::all)?;
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// The answer to an acquire of a busy key, if nothing must be written.
    async fn still_busy(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
    ) -> Result<Option<Outcome>, StoreError> {
        if !matches!(request.action, Action::Acquire(_)) {
            return Ok(None);
        }
        let row = if asks_to_share(&request.action) {
            self.read_shared(connection, &request.key).await?
        } else {
            self.read_row(connection, &request.key).await?
        };
        Ok(still_busy(request, &row))
    }

    /// Carries out one request in a write transaction. Returns its answer, or the database's error.
    async fn inside(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
    ) -> Result<Answer, StoreError> {
        // A release that changes the record needs the token in the row.
        let reads = request.record.is_some() && matches!(request.action, Action::Release);
        let usual = if reads {
            None
        } else {
            self.usual(connection, request).await?
        };
        let Some(outcome) = usual else {
            return self.decide(connection, request).await;
        };
        let token = rules::granted_token(&outcome);
        let change = token.and_then(|token| Some(request.record.as_ref()?.of_lease(token)));
        self.with_record(connection, request, outcome, change)
            .await
            .map(Ok)
    }

    /// Changes the record of the request's key, in the same transaction.
    async fn with_record(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
        outcome: Outcome,
        change: Option<RecordChange>,
    ) -> Result<Outcome, StoreError> {
        let Some(change) = change else {
            return Ok(outcome);
        };
        let written = self.change(connection, &request.key, &change).await?;
        Ok(outcome.with_recorded(written))
    }

    /// Carries out the usual case of a request, in one statement. `None`: another case, and nothing was done. What
    /// concerns a shared hold is no usual case.
    async fn usual(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
    ) -> Result<Option<Outcome>, StoreError> {
        let statement = match &request.action {
            action if asks_to_share(action) => return Ok(None),
            Action::Acquire(_) => &self.statements.take,
            Action::Extend(_) => &self.statements.extend,
            Action::Release => &self.statements.free,
            _ => return Ok(None),
        };
        let query = query(statement, &request.key).bind(request.lease_id);
        let query = match &request.action {
            Action::Acquire(ask) => query
                .bind(ask.owner)
                .bind(micros(ask.ttl))
                .bind(&*ask.holder)
                .bind(ask.spare_tokens),
            Action::Extend(ask) => {
                let to = ask.handed_over.as_ref();
                query
                    .bind(ask.count)
                    .bind(micros(ask.ttl))
                    .bind(to.map(|to| to.owner))
                    .bind(to.map(|to| &*to.holder))
                    .bind(to.map(|to| to.fence_token))
            }
            _ => query,
        };
        match self.rows(connection, query).await?.first() {
            Some(row) => outcome(request, row).map(Some),
            None => Ok(matches!(request.action, Action::Extend(_)).then_some(Outcome::Lost)),
        }
    }

    /// Carries out any case of a request, by the rules, in a write transaction.
    async fn decide(
        &self,
        connection: &mut SqliteConnection,
        request: &Request,
    ) -> Result<Answer, StoreError> {
        let shares = asks_to_share(&request.action);
        let mut row = match request.action {
            _ if shares => self.read_shared(connection, &request.key).await?,
            // The lease may be a shared hold, unless the table has none.
            Action::Release => match self.read_shared(connection, &request.key).await {
                Err(error) if error.kind() == StoreErrorKind::Schema => {
                    self.read_row(connection, &request.key).await?
                }
                row => row?,
            },
            _ => self.read_row(connection, &request.key).await?,
        };
        let writes_shared = shares || !row.shared.is_empty();
        let carried_out = match rules::carry_out(request, &mut row) {
            Ok(carried_out) => carried_out,
            Err(refused) => return Ok(Err(refused)),
        };
        if carried_out.changed {
            self.write(connection, &row, writes_shared).await?;
        }
        self.with_record(connection, request, carried_out.outcome, carried_out.record)
            .await
            .map(Ok)
    }

    pub(super) async fn read_row(
        &self,
        connection: &mut SqliteConnection,
        key: &Key,
    ) -> Result<LockRow, StoreError> {
        let rows = self.rows(connection, query(&self.statements.read, key)).await?;
        Self::row_or_new(&rows, key)
    }

    /// The row with its column `shared`.
    async fn read_shared(&self, connection: &mut SqliteConnection, key: &Key) -> Result<LockRow, StoreError> {
        let read = query(&self.statements.read_shared, key)
            .fetch_all(connection)
            .await;
        let rows = read.map_err(|error| {
            if error::is_missing_column(&error) {
                schema::no_shared(&self.table).with_source(error)
            } else {
                self.failed(error)
            }
        })?;
        let row = Self::row_or_new(&rows, key)?;
        with_shared(&rows[0], row).map_err(unexpected)
    }

    /// The row that was read, or the one to use for a key that has none.
    fn row_or_new(rows: &[SqliteRow], key: &Key) -> Result<LockRow, StoreError> {
        let row = rows.first().ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "the lock table gave neither a row nor the time",
            )
        })?;
        match get::<Option<&str>>(row, 0)? {
            Some(_) => lock_row(row),
            None => Ok(LockRow::new(key.clone(), Timestamp::from_micros(now(row)?))),
        }
    }

    async fn write(
        &self,
        connection: &mut SqliteConnection,
        row: &LockRow,
        with_shared: bool,
    ) -> Result<(), StoreError> {
        let next = row.next.as_ref();
        let statement = if with_shared {
            &self.statements.write_shared
        } else {
            &self.statements.write
        };
        let mut write = query(statement, &row.key)
            .bind(row.owner)
            .bind(row.reentrant_count)
            .bind(row.expire_at.as_micros())
            .bind(row.lease_id)
            .bind(row.fence_token)
            .bind(row.fence_ceiling)
            .bind(row.wanted_until.as_micros())
            .bind(row.acquired_at.as_micros())
            .bind(&row.holder)
            .bind(row.revoked)
            .bind(next.map(|next| next.lease_id))
            .bind(next.map(|next| next.owner))
            .bind(next.map(|next| &next.holder))
            .bind(next.map(|next| micros(next.ttl)))
            .bind(next.map(|next| next.spare_tokens))
            .bind(next.map(|next| next.since.as_micros()))
            .bind(next.map(|next| next.until.as_micros()));
        if with_shared {
            write = write.bind(sharing::column(row));
        }
        self.rows(connection, write).await.map(drop)
    }

    /// Carries out the requests, together if possible.
    async fn carry_out(&self, requests: &[Request]) -> Vec<Answer> {
        if requests.len() > 1 {
            match self.together(requests).await {
                Ok(answers) => return answers,
                Err(Undone { error, of_one: false }) => return vec![Err(error); requests.len()],
                // One request made the batch fail. Each is tried alone, so that the others succeed.
                Err(Undone { of_one: true, .. }) => {}
            }
        }
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            answers.push(self.alone(request).await);
        }
        answers
    }
}

/// Why no request of a batch was carried out, and whether a single one may be the cause.
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
