//! A request handler that locks, answers 202, and leaves the work to a worker in another process. The lock
//! goes with the work, in a ticket: the key is busy from the request until the worker has finished.
//!
//! `cargo run --example tickets` starts the service and a worker as two processes.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use dblock::{LockError, LockManager, Ticket};
use sqlx::SqlitePool;

/// How long the work may wait for a worker. Then the order is free for another request.
const QUEUED_FOR: Duration = Duration::from_mins(5);

/// What the service needs.
#[derive(Debug, Clone)]
pub struct Service {
    /// The locks.
    pub locks: LockManager,
    /// The database of the queue.
    pub pool: SqlitePool,
}

/// The failure of a request or of a worker.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The lock, or its ticket.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The queue.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

/// Makes the queue. A row holds a secret: only workers may read this table.
///
/// # Errors
/// Those of the database.
pub async fn create_queue(pool: &SqlitePool) -> Result<(), Failure> {
    let table = "CREATE TABLE IF NOT EXISTS export_queue (id INTEGER PRIMARY KEY, ticket TEXT NOT NULL)";
    sqlx::query(table).execute(pool).await?;
    Ok(())
}

/// `POST /orders/{id}/export` answers 202; 409 while the order is queued, exported or changed by others.
pub fn router(service: Service) -> Router {
    Router::new()
        .route("/orders/{id}/export", post(export))
        .with_state(service)
}

async fn export(State(service): State<Service>, Path(id): Path<i64>) -> StatusCode {
    match service.queue(id).await {
        Ok(()) => StatusCode::ACCEPTED,
        Err(Failure::Lock(error)) if error.is_busy() => StatusCode::CONFLICT,
        Err(error) => {
            tracing::error!(id, %error, "the export was not queued");
            StatusCode::SERVICE_UNAVAILABLE
        }
    }
}

impl Service {
    /// Locks the order, and queues its export with the lock.
    ///
    /// # Errors
    /// The order is busy, or the database failed. If the ticket could not be queued, the order is free again
    /// after [`QUEUED_FOR`].
    pub async fn queue(&self, id: i64) -> Result<(), Failure> {
        let guard = self.locks.lock(format!("order:{id}")).acquire().await?;
        // Here the handler looks whether the order can be exported.
        let ticket = guard.into_ticket(QUEUED_FOR).await?;
        sqlx::query("INSERT INTO export_queue (ticket) VALUES (?)")
            .bind(ticket.secret())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// The worker takes one job from the queue, and does it under the lock of the request. Returns the key, or
    /// `None` when there is no job, or its ticket is over.
    ///
    /// # Errors
    /// The database failed, or the lease was lost while the work was done.
    pub async fn work(&self, work: impl AsyncFnOnce(&str)) -> Result<Option<String>, Failure> {
        let oldest =
            "DELETE FROM export_queue WHERE id = (SELECT min(id) FROM export_queue) RETURNING ticket";
        let job: Option<String> = sqlx::query_scalar(oldest).fetch_optional(&self.pool).await?;
        let Some(ticket) = job else { return Ok(None) };
        let ticket: Ticket = ticket.parse()?;
        let guard = match self.locks.adopt(&ticket).await {
            // It has waited for too long, or an operator has freed the order.
            Err(error) if error.is_lost() => {
                tracing::warn!(key = ticket.full_key(), %error, "the export is left out");
                return Ok(None);
            }
            adopted => adopted?,
        };
        let key = guard.key().to_owned();
        guard.enter(work(&key)).await?;
        guard.release().await?;
        Ok(Some(key))
    }
}
