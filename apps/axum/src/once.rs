//! Running a request once, which answers are final, and which leave it in doubt.

use std::fmt;

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use dblock::{LockError, Once, RunError};
use tokio::sync::oneshot;
use tower_service::Service;

use crate::answer::Answer;
use crate::layer::IdempotencyLayer;
use crate::problem::{LockProblem, Problem};
use crate::request::Admitted;

impl IdempotencyLayer {
    /// Runs the request, or replays the answer.
    pub(crate) async fn once<S>(
        self,
        mut inner: S,
        mut request: Request,
        admitted: Admitted,
    ) -> Result<Response, S::Error>
    where
        S: Service<Request, Response: IntoResponse>,
    {
        let options = self.options.clone().fingerprint(&admitted.fingerprint);
        // Beside the run: a record's value can be shared among threads, and a response cannot.
        let (answered, mut answer) = oneshot::channel();
        let run = self.locks.run_once(&admitted.key, options, async |run| {
            request.extensions_mut().insert(self.run(Some(run.clone())));
            let response = match inner.call(request).await {
                Ok(response) => response.into_response(),
                Err(error) => {
                    run.leave_in_doubt();
                    let _ = answered.send(Err(error));
                    return Err(Failed::Service);
                }
            };
            if !is_final(&response) {
                let status = response.status();
                if !says_later(&response) {
                    run.leave_in_doubt();
                }
                let _ = answered.send(Ok(response));
                return Err(Failed::Answered(status));
            }
            let read = Answer::of(response, &self.replayed).await;
            let (kept, response) = read.map_err(|error| {
                run.leave_in_doubt();
                Failed::Body(error)
            })?;
            let _ = answered.send(Ok(response));
            Ok(kept)
        });
        let ended = run.await;
        let answer = answer.try_recv().ok();
        match (ended, answer) {
            (Ok(Once::Replayed(kept)), _) => Ok(kept.replay()),
            (Ok(Once::Ran(_)), Some(Ok(response))) if is_final(&response) => Ok(response),
            // The handler's transaction has written another answer than it returned: that one stands.
            (Ok(Once::Ran(kept)), _) => Ok(kept.into_response()),
            // A handler that refuses the request has no work to complete.
            (
                Err(Failed::Lock(LockError::Run {
                    reason: RunError::NotCompleted,
                    ..
                })),
                Some(Ok(response)),
            ) if response.status().is_client_error() => Ok(response),
            (Err(Failed::Lock(error)), _) => Ok(LockProblem(error).of_layer()),
            (Err(Failed::Service | Failed::Answered(_)), Some(answer)) => answer,
            (Err(failed), _) => {
                tracing::error!(key = admitted.key, %failed, "a request failed");
                Ok(Problem::internal().into_response())
            }
        }
    }
}

/// Why an attempt failed. Its text is in the record, unless it is left in doubt.
enum Failed {
    Lock(LockError),
    /// With a status that is not final.
    Answered(StatusCode),
    /// With an error instead of an answer.
    Service,
    /// In the middle of the answer.
    Body(axum::Error),
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Answered(status) => write!(f, "answered {status}"),
            Self::Service => f.write_str("the service failed"),
            Self::Body(error) => write!(f, "the answer's body broke off: {error}"),
        }
    }
}

/// Whether a request that is sent again gets this answer again. A server error and a handler that took too
/// long are no answer to it.
fn is_final(response: &Response) -> bool {
    let status = response.status();
    !status.is_server_error() && status != StatusCode::REQUEST_TIMEOUT && !says_later(response)
}

/// Whether the answer says that nothing was done, and that the client may try again later. After any other
/// that is not final, such as that of a timeout in the middle of the work, nobody knows what was done.
fn says_later(response: &Response) -> bool {
    match response.status() {
        StatusCode::LOCKED
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::SERVICE_UNAVAILABLE => true,
        StatusCode::REQUEST_TIMEOUT => false,
        status => status.is_client_error() && response.headers().contains_key(header::RETRY_AFTER),
    }
}
