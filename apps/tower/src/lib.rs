#![doc = include_str!("../README.md")]

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use dblock::{LockError, LockKeys, LockManager, LockOptions};
use tower_layer::Layer;
use tower_service::Service;

/// Runs each request under a lock, whose key it takes from the request. The [crate's page](crate) has an
/// example with axum, and says what the lock covers.
///
/// The lock is taken before the inner service is called. It is held until that service's future has ended:
/// for HTTP until the head of the response is there. A body that streams afterwards runs without the lock.
/// The inner service sees the lock as [`dblock::current`], and locks of the same key in it re-enter. A lost
/// lease stops it at its next await, unless [`on_lost`](LockOptions::on_lost) says otherwise.
///
/// # Errors
/// `on_error` turns each [`LockError`] into an answer, or into an error of the service. The errors are those of
/// [`LockBuilder::run`](dblock::LockBuilder::run). After [`LockError::Lost`] the work of the inner service may
/// be done, in part or wholly; after all others it has not been called. Answers and errors of the inner service pass
/// through.
///
/// # Cancel safety
/// A request can be dropped at any point, as when its client goes away. This drops the inner service's
/// future first, and then releases the lock in the background. Work that the service has spawned goes on without it.
///
/// # Panics
/// A panic of the inner service is passed on when the lock is released. Panics of `key` and `on_error` are
/// passed on too.
///
/// ```
/// use dblock::{LockError, LockManager};
/// use dblock_tower::LockLayer;
/// use tower::{Layer as _, ServiceExt as _, service_fn};
///
/// /// A request of a service that is not about HTTP.
/// struct Job {
///     account: u64,
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let layer = LockLayer::new(locks, |job: &Job| Some(format!("account:{}", job.account)), Err);
/// let service = layer.layer(service_fn(async |job: Job| {
///     // Only one node runs this for a given account.
///     Ok::<_, LockError>(job.account)
/// }));
/// assert_eq!(service.oneshot(Job { account: 7 }).await?, 7);
/// # Ok::<_, LockError>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use]
pub struct LockLayer<K, E> {
    locks: LockManager,
    options: LockOptions,
    key: K,
    on_error: E,
}

impl<K, E> LockLayer<K, E> {
    /// A layer that takes its locks from `locks`.
    ///
    /// `key` gives the key of a request, such as a `String`, or several keys, such as a `Vec<String>`: see
    /// [`LockKeys`]. A request for which it returns `None` runs without a lock. Name the type of its
    /// argument: `|request: &Request| …`.
    ///
    /// `on_error` gives the answer where the lock could not be taken, or was lost. For axum this is
    /// `|error| Ok(LockProblem(error).into_response())` with the `LockProblem` of dblock-axum, and for tonic
    /// `|error| Ok(status(&error).into_http())` with a function of yours. A service whose error type can be
    /// made of a [`LockError`] takes `|error| Err(error.into())`. A layer that is made far from its service
    /// may need the type of the error: `Ok::<_, Infallible>(…)`.
    pub fn new<Request, Keys, Answer>(locks: LockManager, key: K, on_error: E) -> Self
    where
        K: Fn(&Request) -> Option<Keys>,
        E: Fn(LockError) -> Answer,
    {
        Self {
            locks,
            options: LockOptions::new(),
            key,
            on_error,
        }
    }

    /// How the locks are taken. [`ttl`](LockOptions::ttl) is the length of the lease, which is renewed while
    /// the request runs: the longest time for which a node that dies keeps the key. [`wait`](LockOptions::wait)
    /// is how long a request waits for a busy key. Default: 30 seconds, and no waiting.
    pub fn options(mut self, options: LockOptions) -> Self {
        self.options = options;
        self
    }
}

impl<S, K: Clone, E: Clone> Layer<S> for LockLayer<K, E> {
    type Service = LockService<S, K, E>;

    fn layer(&self, inner: S) -> LockService<S, K, E> {
        LockService {
            inner,
            layer: self.clone(),
        }
    }
}

impl<K, E> fmt::Debug for LockLayer<K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer")
            .field("locks", &self.locks)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A service in a [`LockLayer`].
#[derive(Clone)]
pub struct LockService<S, K, E> {
    inner: S,
    layer: LockLayer<K, E>,
}

impl<S: fmt::Debug, K, E> fmt::Debug for LockService<S, K, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService")
            .field("inner", &self.inner)
            .field("layer", &self.layer)
            .finish()
    }
}

impl<S, K, E, Request, Keys> Service<Request> for LockService<S, K, E>
where
    S: Service<Request, Future: Send> + Clone + Send + 'static,
    S::Response: Send,
    S::Error: Send,
    K: Fn(&Request) -> Option<Keys>,
    E: Fn(LockError) -> Result<S::Response, S::Error> + Clone + Send + 'static,
    Request: Send + 'static,
    Keys: LockKeys + Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    // Boxed, because the future of `run` borrows the manager.
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let Some(keys) = (self.layer.key)(&request) else {
            return Box::pin(self.inner.call(request));
        };
        // Calls the one that was asked whether it is ready. Its clone is asked for the next request.
        let next = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, next);
        let locks = self.layer.locks.clone();
        let options = self.layer.options.clone();
        let on_error = self.layer.on_error.clone();
        Box::pin(async move {
            let body = async move { inner.call(request).await };
            let ended = locks.lock(keys).options(&options).run(body).await;
            ended.unwrap_or_else(on_error)
        })
    }
}
