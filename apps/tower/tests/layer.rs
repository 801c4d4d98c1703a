//! The layer on the memory store, whose time is that of the test: nothing waits for a real clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::{Ready, ready};
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::post;
use dblock::{LockError, LockManager, LockOptions};
use dblock_axum::LockProblem;
use dblock_tower::LockLayer;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tower::{Layer, Service, ServiceExt, service_fn};

/// Too long to run out, unless the test has failed. It takes no time.
const LONG: Duration = Duration::from_mins(10);

/// A request: the key that it names, or an empty one.
type Name = &'static str;

/// A request that is inside the inner service.
struct Inside {
    /// The keys that it holds, and the token of the innermost.
    keys: Vec<String>,
    fence_token: Option<i64>,
    /// Lets it answer. It is closed when the inner service is dropped.
    finish: oneshot::Sender<()>,
}

/// The inner service: what is inside of it, in order.
struct Entered(mpsc::UnboundedReceiver<Inside>);

/// A service that tells of each request, and answers it when the test says so.
fn held_back() -> (
    impl Service<Name, Response = Name, Error = LockError, Future: Send> + Clone + Send + 'static,
    Entered,
) {
    let (entered, inside) = mpsc::unbounded_channel();
    let service = service_fn(move |request| {
        // Not in the future: a call that comes too early is told of, too.
        let (finish, finished) = oneshot::channel();
        let locks = dblock::current_locks();
        let _ = entered.send(Inside {
            keys: locks.iter().map(|lock| lock.key().to_owned()).collect(),
            fence_token: dblock::current().map(|lock| lock.fence_token()),
            finish,
        });
        async move {
            finished.await.unwrap();
            Ok(request)
        }
    });
    (service, Entered(inside))
}

impl Entered {
    async fn next(&mut self) -> Inside {
        within(self.0.recv()).await.unwrap()
    }

    fn nobody(&mut self) -> bool {
        self.0.is_empty()
    }
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LONG, future)
        .await
        .expect("it never happened")
}

async fn manager() -> LockManager {
    LockManager::connect("memory:").await.unwrap()
}

fn named(request: &Name) -> Option<Name> {
    (!request.is_empty()).then_some(*request)
}

type Answer = Result<Name, LockError>;

fn send<S>(service: &S, request: Name) -> JoinHandle<Answer>
where
    S: Service<Name, Response = Name, Error = LockError, Future: Send> + Clone + Send + 'static,
{
    tokio::spawn(service.clone().oneshot(request))
}

async fn answer(request: JoinHandle<Answer>) -> Answer {
    within(request).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_key_take_turns() {
    let waits = Arc::new(Notify::new());
    let told = Arc::clone(&waits);
    let options = LockOptions::new().wait(LONG).on_wait(move |_| told.notify_one());
    let (service, mut entered) = held_back();
    let service = LockLayer::new(manager().await, named, Err)
        .options(options)
        .layer(service);
    let first = send(&service, "order:1");
    let one = entered.next().await;
    let second = send(&service, "order:1");
    within(waits.notified()).await;
    assert!(entered.nobody(), "it is beside the first");
    one.finish.send(()).unwrap();
    assert_eq!(answer(first).await.unwrap(), "order:1");
    let other = entered.next().await;
    assert!(other.fence_token > one.fence_token);
    other.finish.send(()).unwrap();
    assert_eq!(answer(second).await.unwrap(), "order:1");
}

#[tokio::test(start_paused = true)]
async fn requests_of_two_keys_run_beside_each_other() {
    let (service, mut entered) = held_back();
    let service = LockLayer::new(manager().await, named, Err).layer(service);
    let requests = [send(&service, "order:1"), send(&service, "order:2")];
    let inside = [entered.next().await, entered.next().await];
    for one in inside {
        one.finish.send(()).unwrap();
    }
    for (request, name) in requests.into_iter().zip(["order:1", "order:2"]) {
        assert_eq!(answer(request).await.unwrap(), name);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_takes_no_lock() {
    let (service, mut entered) = held_back();
    let locks = manager().await;
    let service = LockLayer::new(locks.clone(), named, Err).layer(service);
    locks.shutdown(Duration::ZERO).await;
    let refused = answer(send(&service, "order:1")).await.unwrap_err();
    assert!(refused.is_shutdown(), "{refused}");
    let request = send(&service, "");
    let inside = entered.next().await;
    assert!(inside.keys.is_empty());
    inside.finish.send(()).unwrap();
    assert_eq!(answer(request).await.unwrap(), "");
}

#[tokio::test(start_paused = true)]
async fn a_busy_key_is_answered_by_on_error() {
    let (service, mut entered) = held_back();
    let locks = manager().await;
    let on_error = |error: LockError| if error.is_busy() { Ok("later") } else { Err(error) };
    let service = LockLayer::new(locks.clone(), named, on_error).layer(service);
    let guard = locks.lock("order:1").acquire().await.unwrap();
    assert_eq!(answer(send(&service, "order:1")).await.unwrap(), "later");
    assert!(entered.nobody());
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_sees_its_locks() {
    let (service, mut entered) = held_back();
    let both = |_: &Name| Some(["account:7", "account:3"]);
    let service = LockLayer::new(manager().await, both, Err).layer(service);
    let request = send(&service, "");
    let inside = entered.next().await;
    assert_eq!(inside.keys, ["account:7", "account:3"]);
    assert!(inside.fence_token.is_some());
    inside.finish.send(()).unwrap();
    answer(request).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_dropped_leaves_no_lock() {
    let (service, mut entered) = held_back();
    let locks = manager().await;
    let service = LockLayer::new(locks.clone(), named, Err).layer(service);
    let request = send(&service, "order:1");
    let inside = entered.next().await;
    request.abort();
    let next = locks.lock("order:1").wait(LONG).acquire().await.unwrap();
    assert!(inside.finish.is_closed());
    assert!(Some(next.fence_token()) > inside.fence_token);
    next.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_stops_the_inner_service_and_is_answered() {
    let (service, mut entered) = held_back();
    let locks = manager().await;
    let service = LockLayer::new(locks.clone(), named, Err).layer(service);
    let request = send(&service, "order:1");
    let inside = entered.next().await;
    assert!(locks.admin().force_release("order:1").await.unwrap());
    let lost = answer(request).await.unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    assert!(inside.finish.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_passed_on_and_leaves_no_lock() {
    let locks = manager().await;
    let service = service_fn(async |_: Name| -> Answer { panic!("a bug") });
    let service = LockLayer::new(locks.clone(), named, Err).layer(service);
    assert!(within(send(&service, "order:1")).await.unwrap_err().is_panic());
    assert!(locks.lock("order:1").try_acquire().await.unwrap().is_some());
}

/// Takes one request each time that it was asked whether it is ready. A clone must be asked anew.
struct Asked {
    is_ready: bool,
}

impl Clone for Asked {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Name> for Asked {
    type Response = Name;
    type Error = LockError;
    type Future = Ready<Answer>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LockError>> {
        assert!(
            !mem::replace(&mut self.is_ready, true),
            "asked twice for one request"
        );
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Name) -> Ready<Answer> {
        assert!(mem::take(&mut self.is_ready), "called without being asked");
        ready(Ok(request))
    }
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_asked_is_the_one_that_is_called() {
    let mut service = LockLayer::new(manager().await, named, Err).layer(Asked { is_ready: false });
    for request in ["order:1", "", "order:1", ""] {
        let called = service.ready().await.unwrap().call(request);
        assert_eq!(called.await.unwrap(), request);
    }
}

#[tokio::test(start_paused = true)]
async fn in_axum_a_lock_error_is_an_answer() {
    let locks = manager().await;
    let layer = LockLayer::new(
        locks.clone(),
        |request: &Request| Some(request.uri().path().to_owned()),
        |error| Ok(LockProblem(error).into_response()),
    );
    let router: Router = Router::new()
        .route("/orders/{id}", post(async || "settled"))
        .layer(layer);
    let guard = locks.lock("/orders/1").acquire().await.unwrap();
    for (path, status) in [("/orders/1", StatusCode::CONFLICT), ("/orders/2", StatusCode::OK)] {
        let request = Request::post(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
    guard.release().await.unwrap();
}
