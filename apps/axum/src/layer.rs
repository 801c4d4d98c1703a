//! The layer: its settings, and the service around yours.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};
use dblock::{LockManager, RunOptions};
use futures_util::future::BoxFuture;
use tower_layer::Layer;
use tower_service::Service;
use tracing::Instrument as _;

use crate::answer::REPLAYED;
use crate::problem::Problem;
use crate::run::IdempotentRun;
use crate::scope::Scope;

/// Runs each POST and PATCH request once for each `Idempotency-Key`, and gives the answer of the first to
/// those that are sent again. The [crate's page](crate) says what each request is answered.
///
/// The handler runs in a task of its own, which goes on when the client goes away: the request can be sent
/// again, and is then answered. Two things follow:
///
/// - Before the program ends, call [`LockManager::shutdown`] after the server has stopped: it waits for these
///   tasks. Otherwise they are crashes, about which [`OnCrash`](dblock::OnCrash) decides.
/// - Task-locals do not reach the handler, such as those of [`LockManager::scope`]; request extensions and
///   the current span do. A limit of concurrent requests or of time belongs inside this layer, if it is to
///   bound the work.
///
/// A limit of time inside breaks off the handler in the middle. So its 408 is no failure: under
/// [`OnCrash::Stop`](dblock::OnCrash::Stop) the request is in doubt, as after a crash, and under
/// [`Retry`](dblock::OnCrash::Retry) it runs again. The same holds for each 5xx but 503, for an error of the
/// inner service, and for a body that breaks off. An answer of 423, 425, 429 or 503, or another 4xx with
/// `Retry-After`, must mean that nothing was done: after it the request always runs again.
///
/// # Panics
/// A panic of the handler is passed on. For the record it is a crash.
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::post};
/// use dblock::{LockManager, OnCrash, RunOptions};
/// use dblock_axum::{IdempotencyLayer, Scope};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let day = Duration::from_secs(24 * 3600);
/// let once = IdempotencyLayer::new(locks, RunOptions::new(day, OnCrash::Stop), Scope::everyone());
/// let router: Router = Router::new().route("/payments", post(async || "paid")).layer(once);
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct IdempotencyLayer {
    pub(crate) locks: LockManager,
    pub(crate) options: RunOptions,
    pub(crate) scope: Scope,
    pub(crate) required: bool,
    pub(crate) replayed: Arc<[HeaderName]>,
    pub(crate) max_request: usize,
}

impl IdempotencyLayer {
    /// The longest body of a request where none is given: 2 MiB, as with axum's own extractors.
    pub const DEFAULT_REQUEST: usize = 2 << 20;

    /// A layer that keeps its records with `locks`. `options` says how long answers are remembered, what
    /// happens after a crash, how large an answer may be ([`max_result`](RunOptions::max_result), in bytes of
    /// the record's JSON), and with the lock's `wait` how long a request that is sent again waits for the
    /// first instead of being answered 409 at once. Its fingerprint is the layer's. `scope` says which
    /// callers share their keys.
    ///
    /// A key is required for each POST and PATCH request. Options that cannot work, such as
    /// `max_attempts(0)`, are an error of each request: 500, with the mistake in the log.
    pub fn new(locks: LockManager, options: RunOptions, scope: Scope) -> Self {
        Self {
            locks,
            options,
            scope,
            required: true,
            replayed: Arc::new(REPLAYED),
            max_request: Self::DEFAULT_REQUEST,
        }
    }

    /// Lets requests without a key through, each of which runs. Default: they are answered 400.
    pub fn optional(mut self) -> Self {
        self.required = false;
        self
    }

    /// Replays this header too. Think twice about `Set-Cookie`: whoever may send a request again gets the
    /// cookie of the first. Default: those on the [crate's page](crate).
    pub fn replay_header(mut self, name: HeaderName) -> Self {
        self.replayed = self.replayed.iter().cloned().chain([name]).collect();
        self
    }

    /// The longest body of a request with a key, in bytes. It is kept in memory while the request runs; a
    /// longer one is answered 413. Default: [`DEFAULT_REQUEST`](Self::DEFAULT_REQUEST).
    pub fn max_request(mut self, bytes: usize) -> Self {
        self.max_request = bytes;
        self
    }

    pub(crate) fn run(&self, run: Option<dblock::Run>) -> IdempotentRun {
        IdempotentRun {
            run,
            replayed: Arc::clone(&self.replayed),
        }
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> IdempotencyService<S> {
        IdempotencyService {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service in an [`IdempotencyLayer`].
#[derive(Debug, Clone)]
pub struct IdempotencyService<S> {
    inner: S,
    layer: IdempotencyLayer,
}

impl<S> Service<Request> for IdempotencyService<S>
where
    S: Service<Request, Response: IntoResponse, Error: Send + 'static, Future: Send> + Clone + Send + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // The one that was asked whether it is ready.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move {
            let (mut request, admitted) = match layer.admit(request).await {
                Ok(admitted) => admitted,
                Err(problem) => return Ok(problem.into_response()),
            };
            let Some(admitted) = admitted else {
                request.extensions_mut().insert(layer.run(None));
                return inner.call(request).await.map(IntoResponse::into_response);
            };
            let once = layer.once(inner, request, admitted).in_current_span();
            match tokio::spawn(once).await {
                Ok(answer) => answer,
                Err(ended) => match ended.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime is shut down.
                    Err(_) => Ok(Problem::internal().into_response()),
                },
            }
        })
    }
}
