//! A server whose handler is in the test's hands.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dblock::{LockManager, OnCrash};
use dblock_axum::{IdempotencyLayer, Scope};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::options;

/// The handler's work, and what has happened.
pub(crate) struct Work {
    /// How often it has begun.
    runs: AtomicU32,
    /// One permit for each time that it has begun.
    pub(crate) begun: Semaphore,
    /// Each run takes one permit before it answers.
    pub(crate) go: Semaphore,
    /// One permit for each request that the server has given up, because the client has gone away.
    pub(crate) gone: Semaphore,
    /// The answer of each run, counted from 1.
    answer: Box<dyn Fn(u32) -> Response + Send + Sync>,
}

impl Work {
    /// Work that answers at once.
    pub(crate) fn new<A: IntoResponse>(answer: impl Fn(u32) -> A + Send + Sync + 'static) -> Arc<Self> {
        let work = Self {
            runs: AtomicU32::new(0),
            begun: Semaphore::new(0),
            go: Semaphore::new(Semaphore::MAX_PERMITS / 2),
            gone: Semaphore::new(0),
            answer: Box::new(move |run| answer(run).into_response()),
        };
        Arc::new(work)
    }

    /// Work that answers when it is let go.
    pub(crate) fn paused<A: IntoResponse>(answer: impl Fn(u32) -> A + Send + Sync + 'static) -> Arc<Self> {
        let work = Self::new(answer);
        work.go.forget_permits(Semaphore::MAX_PERMITS);
        work
    }

    pub(crate) fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self) {
        self.go.add_permits(1);
    }

    async fn run(&self) -> Response {
        let run = self.runs.fetch_add(1, Ordering::SeqCst) + 1;
        self.begun.add_permits(1);
        event(&self.go).await;
        (self.answer)(run)
    }
}

/// Waits for one permit.
pub(crate) async fn event(semaphore: &Semaphore) {
    semaphore.acquire().await.unwrap().forget();
}

/// A layer with records of its own, whose keys are everybody's.
pub(crate) async fn layer() -> IdempotencyLayer {
    let locks = LockManager::connect("memory:").await.unwrap();
    of(locks)
}

pub(crate) fn of(locks: LockManager) -> IdempotencyLayer {
    IdempotencyLayer::new(locks, options(OnCrash::Stop), Scope::everyone())
}

/// Serves `work` at [`PATH`](crate::client::PATH), beneath the layer.
pub(crate) async fn start(work: &Arc<Work>, layer: IdempotencyLayer) -> SocketAddr {
    serve(
        router(work)
            .layer(layer)
            .layer(middleware::from_fn_with_state(Arc::clone(work), notice_who_goes)),
    )
    .await
}

pub(crate) fn router(work: &Arc<Work>) -> Router {
    let handler = async |State(work): State<Arc<Work>>| work.run().await;
    Router::new()
        .route("/payments", post(handler).patch(handler).get(handler))
        .with_state(Arc::clone(work))
}

pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

async fn notice_who_goes(State(work): State<Arc<Work>>, request: Request, next: Next) -> Response {
    struct Gone(Option<Arc<Work>>);
    impl Drop for Gone {
        fn drop(&mut self) {
            if let Some(work) = &self.0 {
                work.gone.add_permits(1);
            }
        }
    }
    let mut gone = Gone(Some(work));
    let response = next.run(request).await;
    gone.0 = None;
    response
}
