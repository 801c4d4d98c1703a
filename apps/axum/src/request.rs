//! A request before it runs.

use axum::body::{Body, Bytes};
use axum::extract::{OriginalUri, Request};
use axum::http::{Method, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::key::{fingerprint, read, record_key};
use crate::layer::IdempotencyLayer;
use crate::problem::Problem;

/// The parts of a request that identify it.
pub(crate) struct Admitted {
    /// Of the record.
    pub(crate) key: String,
    pub(crate) fingerprint: String,
}

impl IdempotencyLayer {
    /// Reads what the layer needs to know of a request before it runs; `None` where it is not to be
    /// remembered.
    pub(crate) async fn admit(&self, request: Request) -> Result<(Request, Option<Admitted>), Problem> {
        let (parts, body) = request.into_parts();
        if !matches!(parts.method, Method::POST | Method::PATCH) {
            return Ok((Request::from_parts(parts, body), None));
        }
        let Some(key) = read(&parts.headers)? else {
            if self.required {
                return Err(Problem::new(
                    StatusCode::BAD_REQUEST,
                    "Idempotency-Key is missing",
                    "Send an Idempotency-Key that is new for each request, such as a UUID, and the same one when you send \
                     the request again.",
                ));
            }
            return Ok((Request::from_parts(parts, body), None));
        };
        let caller = self.scope.of(&parts).map_err(|_| {
            tracing::error!(
                "a request with an Idempotency-Key is refused, because `Scope::caller` gave no caller: put the layer that sets \
                 it around the `IdempotencyLayer`"
            );
            Problem::internal()
        })?;
        let body = whole(body, self.max_request).await?;
        // A nested router takes its prefix off the path.
        let original = parts.extensions.get().map(|OriginalUri(uri)| uri);
        let uri = original.unwrap_or(&parts.uri);
        let admitted = Admitted {
            key: record_key(&parts.method, uri.path(), caller.as_deref(), &key),
            fingerprint: fingerprint(uri.query().unwrap_or_default(), &body),
        };
        Ok((Request::from_parts(parts, body.into()), Some(admitted)))
    }
}

/// The whole body of a request.
async fn whole(body: Body, limit: usize) -> Result<Bytes, Problem> {
    match Limited::new(body, limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The request is too large",
            "A request with an Idempotency-Key may have no body of this length here. Send a shorter one.",
        )),
        Err(error) => {
            tracing::debug!(%error, "the body of a request broke off");
            Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "The request broke off",
                "Its body could not be read to the end. Send the request again, with the same key.",
            ))
        }
    }
}
