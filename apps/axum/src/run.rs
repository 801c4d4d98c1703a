//! The request's run, for handlers.

use std::sync::Arc;

use axum::extract::rejection::ExtensionRejection;
use axum::extract::{Extension, FromRequestParts};
use axum::http::HeaderName;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use dblock::fence::FenceConnection;
use dblock::{LockError, Run};

use crate::answer::Answer;

/// The run of the request, for a handler beneath [`IdempotencyLayer`](crate::IdempotencyLayer): an extractor.
/// Without the layer the request is answered with 500.
#[derive(Debug, Clone)]
pub struct IdempotentRun {
    /// `None` where the request is not remembered.
    pub(crate) run: Option<Run>,
    pub(crate) replayed: Arc<[HeaderName]>,
}

impl IdempotentRun {
    /// The run of this request: the number of its attempt, and the key of its record. Pass its
    /// [`full_key`](Run::full_key) on as the idempotency key of a service that the handler calls. `None` for a request without a key
    /// ([`optional`](crate::IdempotencyLayer::optional)) and for methods other than POST and PATCH.
    pub fn run(&self) -> Option<&Run> {
        self.run.as_ref()
    }

    /// Writes the answer into your transaction, as its last statement: the commit makes the work and the
    /// answer durable together, and after a rollback neither of them stands. With
    /// [`OnCrash::CompleteIn`](dblock::OnCrash::CompleteIn) the work then has exactly one effect, whatever
    /// crashes. Return the same answer from the handler. It is final, with any status.
    ///
    /// A client error (4xx) may be returned without this call: then there is no work. Any other answer
    /// without it is a mistake of the handler: the client gets 500, the log says why, and the request does
    /// not run again.
    ///
    /// For a request that is not remembered it writes nothing.
    ///
    /// # Errors
    /// Those of [`Run::complete_in`]: an answer that is too long for
    /// [`max_result`](dblock::RunOptions::max_result) is refused before anything is written.
    ///
    /// # Cancel safety
    /// As [`Run::complete_in`]: after dropping the future, roll the transaction back.
    ///
    /// ```no_run
    /// use axum::Json;
    /// use axum::extract::State;
    /// use axum::http::StatusCode;
    /// use axum::response::Response;
    /// use dblock::LockError;
    /// use dblock_axum::IdempotentRun;
    /// # enum Failure { Lock(LockError), Database(sqlx::Error) }
    /// # impl From<LockError> for Failure { fn from(error: LockError) -> Self { Self::Lock(error) } }
    /// # impl From<sqlx::Error> for Failure { fn from(error: sqlx::Error) -> Self { Self::Database(error) } }
    ///
    /// async fn pay(State(pool): State<sqlx::PgPool>, run: IdempotentRun) -> Result<Response, Failure> {
    ///     let mut tx = dblock::begin(&pool).await?;
    ///     sqlx::query("UPDATE accounts SET cents = cents - 5 WHERE id = 42").execute(&mut *tx).await?;
    ///     let answer = run.complete_in(&mut tx, (StatusCode::CREATED, Json("paid"))).await?;
    ///     tx.commit().await?;
    ///     Ok(answer)
    /// }
    /// ```
    pub async fn complete_in(
        &self,
        transaction: &mut dyn FenceConnection,
        answer: impl IntoResponse,
    ) -> Result<Response, LockError> {
        let response = answer.into_response();
        let Some(run) = &self.run else {
            return Ok(response);
        };
        let (answer, response) = Answer::of(response, &self.replayed)
            .await
            .unwrap_or_else(|error| Answer::broken(&error));
        run.complete_in(transaction, &answer).await?;
        Ok(response)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IdempotentRun {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ExtensionRejection> {
        let found = Extension::from_request_parts(parts, state).await;
        found.map(|Extension(run)| run)
    }
}
