//! Refusals and failures as answers (RFC 9457, `application/problem+json`). None of them names a key, a
//! holder or an error of the database: clients must not learn of these, and the log has them.

use std::error::Error;
use std::fmt;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use dblock::{LockError, RunError, TimeoutCause};

/// After how many seconds a client may try again where nothing better is known.
const SOON: u64 = 1;

/// An answer that says what went wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: &'static str,
    /// In seconds. Also says that the same request may be sent again.
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) const fn new(status: StatusCode, title: &'static str, detail: &'static str) -> Self {
        Self {
            status,
            title,
            detail,
            retry_after: None,
        }
    }

    pub(crate) const fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "Internal error",
            "The log of this service says what went wrong.",
        )
    }

    const fn unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Temporarily unavailable",
            "This service cannot say now whether the request may run. Send the same request again later.",
        )
        .again_after(SOON)
    }

    const fn again_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::json!({
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        let json = HeaderValue::from_static("application/problem+json");
        let mut response = (self.status, [(header::CONTENT_TYPE, json)], body.to_string()).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

impl From<&LockError> for Problem {
    fn from(error: &LockError) -> Self {
        match error {
            LockError::Timeout {
                cause: TimeoutCause::NoAnswer,
                ..
            }
            | LockError::Shutdown { .. } => Self::unavailable(),
            LockError::Busy { .. } | LockError::Timeout { .. } => Self::new(
                StatusCode::CONFLICT,
                "Another request is in progress",
                "It works on the same thing, or is the same request, sent twice. Send it again later.",
            )
            .again_after(SOON),
            LockError::Store { source, .. } if source.is_retryable() => Self::unavailable(),
            LockError::Lost { .. } => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Interrupted",
                "This service lost its lock while it worked on the request. Part of the work may be done.",
            ),
            LockError::Unconfirmed { .. } => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Interrupted",
                "This service could not confirm the end of its work on the request. The work may be done.",
            ),
            LockError::Run { reason, .. } => reason.into(),
            _ => Self::internal(),
        }
    }
}

impl From<&RunError> for Problem {
    fn from(reason: &RunError) -> Self {
        match reason {
            RunError::KeyReused => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Idempotency-Key is already used",
                "Another request was sent with this key before. Send each request with a key of its own.",
            ),
            RunError::InDoubt { .. } => Self::new(
                StatusCode::LOCKED,
                "Outcome unknown",
                "It is not known whether an earlier try of this request took effect. Do not send it with another key: ask \
                 the operator of this service.",
            ),
            RunError::GaveUp { .. } => Self::new(
                StatusCode::LOCKED,
                "Tried too often",
                "This request was tried several times without success, and is not tried again. Ask the operator of this \
                 service.",
            ),
            RunError::NotYet { retry_after, .. } => {
                // Rounded up: it is refused before.
                let seconds = retry_after.as_millis().div_ceil(1_000);
                Self::unavailable().again_after(u64::try_from(seconds).unwrap_or(u64::MAX).max(SOON))
            }
            RunError::NotStored { .. } => Self::new(
                StatusCode::GONE,
                "Done, and the answer was not kept",
                "An earlier try of this request took effect. Its answer could not be kept, so it cannot be given again.",
            ),
            RunError::Unrecorded { .. } => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "Outcome not recorded",
                "The work is done, and this service could not record that.",
            ),
            _ => Self::internal(),
        }
    }
}

/// A [`LockError`] as an answer, for handlers that return `Result<_, LockProblem>`; `?` makes it of a
/// `LockError`. The body is `application/problem+json` without names of keys, holders and databases. The
/// error goes to the log if an operator should know.
///
/// | status | errors | `Retry-After` |
/// |---|---|---|
/// | 409 | `Busy`, `Timeout` | yes |
/// | 410 | `NotStored`: done, and the answer was not kept | |
/// | 422 | `KeyReused` | |
/// | 423 | `InDoubt`, `GaveUp`: nothing happens before a person decides | |
/// | 500 | `Lost`, `Unconfirmed`, `Unrecorded`: work may be done. Mistakes of the program or the database's set-up | |
/// | 503 | a store that cannot be asked, `Shutdown`, `NotYet`, and a `Timeout` because of the store (`NoAnswer`) | yes |
///
/// The answers with `Retry-After` say that nothing was done. So a handler that takes a lock after work that
/// cannot be undone answers for that error itself.
///
/// ```
/// use axum::http::StatusCode;
/// use axum::response::IntoResponse;
/// use dblock::LockManager;
/// use dblock_axum::LockProblem;
///
/// async fn settle(locks: &LockManager) -> Result<&'static str, LockProblem> {
///     let body = async { /* the work */ Ok("settled") };
///     locks.lock("order:42").run(body).await?
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// let answer = settle(&locks).await.into_response();
/// assert_eq!(answer.status(), StatusCode::CONFLICT);
/// assert_eq!(answer.headers()["retry-after"], "1");
/// # guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct LockProblem(pub LockError);

impl From<LockError> for LockProblem {
    fn from(error: LockError) -> Self {
        Self(error)
    }
}

impl fmt::Display for LockProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for LockProblem {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

impl LockProblem {
    /// The answer of the layer itself, whose record decides about the request that is sent again.
    pub(crate) fn of_layer(&self) -> Response {
        self.answer(match &self.0 {
            LockError::Run {
                reason: RunError::Unrecorded { source, .. },
                ..
            } if source.is_retryable() => Problem::unavailable(),
            error => error.into(),
        })
    }

    fn answer(&self, problem: Problem) -> Response {
        let error = &self.0 as &(dyn Error + 'static);
        if problem.status.is_server_error() {
            tracing::error!(error, status = problem.status.as_u16(), "a request failed");
        } else if matches!(problem.status, StatusCode::LOCKED | StatusCode::GONE) {
            tracing::warn!(error, status = problem.status.as_u16(), "a request is refused");
        }
        problem.into_response()
    }
}

impl IntoResponse for LockProblem {
    fn into_response(self) -> Response {
        self.answer(Problem::from(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dblock::{LockManager, LockOptions, OnCrash, RunOptions, store::MemoryStore};

    use super::*;

    const MINUTE: Duration = Duration::from_mins(1);

    fn status(error: &LockError) -> (u16, Option<u64>) {
        let problem = Problem::from(error);
        (problem.status.as_u16(), problem.retry_after)
    }

    async fn manager() -> LockManager {
        LockManager::builder(MemoryStore::new()).build().await.unwrap()
    }

    fn options() -> RunOptions {
        RunOptions::new(MINUTE, OnCrash::Stop)
    }

    async fn fails(locks: &LockManager, options: RunOptions) -> LockError {
        let run = locks.run_once("k", options, async |_| {
            Err::<(), _>(locks.lock("").acquire().await.unwrap_err())
        });
        run.await.unwrap_err()
    }

    #[tokio::test]
    async fn what_is_busy_may_be_tried_again() {
        let locks = manager().await;
        let guard = locks.lock("k").acquire().await.unwrap();
        let busy = locks.lock("k").acquire().await.unwrap_err();
        assert_eq!(status(&busy), (409, Some(1)));
        let wait = LockOptions::new().wait(Duration::from_millis(1));
        let timeout = locks.lock("k").options(&wait).acquire().await.unwrap_err();
        assert_eq!(status(&timeout), (409, Some(1)));
        assert!(locks.admin().force_release("k").await.unwrap());
        let lost = guard.release().await.unwrap_err();
        assert_eq!(status(&lost), (500, None), "{lost}");
        locks.shutdown(Duration::ZERO).await;
        let shutdown = locks.lock("k").acquire().await.unwrap_err();
        assert_eq!(status(&shutdown), (503, Some(1)));
    }

    #[tokio::test]
    async fn a_run_that_needs_a_person_is_locked_and_one_that_may_run_soon_is_not() {
        let locks = manager().await;
        let later = options().backoff(Duration::from_millis(1_500));
        assert_eq!(
            status(&fails(&locks, later.clone()).await),
            (500, None),
            "the body's own"
        );
        assert_eq!(status(&fails(&locks, later.clone()).await), (503, Some(2)));
        assert_eq!(status(&fails(&locks, later.max_attempts(1)).await), (423, None));

        let seen = async || locks.admin().record::<u32>("k").await.unwrap().unwrap().record;
        locks.admin().forget(&seen().await).await.unwrap();
        let large = options().max_result(1);
        let run = async |options| {
            locks
                .run_once("k", options, async |_| Ok::<_, LockError>(77))
                .await
        };
        run(large.clone()).await.unwrap();
        assert_eq!(status(&run(large).await.unwrap_err()), (410, None));

        locks.admin().forget(&seen().await).await.unwrap();
        run(options().fingerprint("a")).await.unwrap();
        let reused = run(options().fingerprint("b")).await.unwrap_err();
        assert_eq!(status(&reused), (422, None));
    }

    #[tokio::test]
    async fn a_store_that_is_down_is_unavailable_and_a_mistake_is_internal() {
        let down = LockManager::connect("postgres://nobody@127.0.0.1:1/none")
            .await
            .unwrap_err();
        assert_eq!(status(&down), (503, Some(1)), "{down}");
        let mistake = manager().await.lock("").acquire().await.unwrap_err();
        assert_eq!(status(&mistake), (500, None));
        let answer = LockProblem(mistake).into_response();
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert!(!answer.headers().contains_key(header::RETRY_AFTER));
    }
}
