//! Failures as answers: a status that a client can act on, and JSON that says what is going on.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use dblock::LockError;

use super::shop::ShopError;

/// A failed request.
#[derive(Debug)]
pub struct Failure(ShopError);

impl From<ShopError> for Failure {
    fn from(error: ShopError) -> Self {
        Self(error)
    }
}

impl Failure {
    /// The status, a word for programs, and a sentence for people. Causes are for the log, not for clients.
    fn answer(&self) -> (StatusCode, &'static str, String) {
        let key = |error: &LockError| error.key().map_or("the lock", dblock::Key::as_str).to_owned();
        match &self.0 {
            ShopError::NotFound(_) => (StatusCode::NOT_FOUND, "not_found", self.0.to_string()),
            ShopError::Settled(_) => (StatusCode::CONFLICT, "settled", self.0.to_string()),
            ShopError::Lock(error) if error.is_busy() => (
                StatusCode::CONFLICT,
                "busy",
                format!("another request is working on {}; try again soon", key(error)),
            ),
            ShopError::Lock(error) if error.is_lost() => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "lost",
                // The loss may have come between the commit and its answer.
                format!(
                    "{} was lost, and the work was stopped; look whether it was done, then try again",
                    key(error)
                ),
            ),
            ShopError::Lock(error) if error.is_shutdown() => (
                StatusCode::SERVICE_UNAVAILABLE,
                "shutting_down",
                "the service is shutting down; try again".into(),
            ),
            ShopError::Lock(error) if error.is_store() => unavailable(),
            ShopError::Database(sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => {
                unavailable()
            }
            ShopError::Lock(_) | ShopError::Database(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "something went wrong; the log of the service says what".into(),
            ),
        }
    }
}

fn unavailable() -> (StatusCode, &'static str, String) {
    let message = "the database cannot be asked; try again later".into();
    (StatusCode::SERVICE_UNAVAILABLE, "database_unavailable", message)
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, error, message) = self.answer();
        if status.is_server_error() {
            tracing::error!(%status, error = %self.0, "request failed");
        }
        let body = serde_json::json!({ "error": error, "message": message });
        (status, Json(body)).into_response()
    }
}
