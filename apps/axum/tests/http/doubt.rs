//! Answers that are not final: which of them run again, and which leave the request in doubt.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use dblock::store::{RecordState, StoreErrorKind};
use dblock::{LockManager, OnCrash, Resolution};
use dblock_axum::{IdempotencyLayer, LockProblem, Scope};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::{Backend, on_every_store};
use futures_util::stream;

use crate::client::{payment, send};
use crate::leaving::{key, state};
use crate::options;
use crate::service::{Work, event, layer, of, router, serve, start};

on_every_store!(
    a_timeout_in_the_middle_of_the_work_is_in_doubt,
    a_timeout_in_the_middle_of_the_work_runs_again_where_that_is_chosen,
);

/// Inside the layer: the time of the first run is over as soon as it has begun, which drops it.
async fn time_out(State(work): State<Arc<Work>>, request: Request, next: Next) -> Response {
    tokio::select! {
        biased;
        answer = next.run(request) => answer,
        () = event(&work.begun), if work.runs() == 0 => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

/// A service whose first run never ends by itself.
async fn start_with_timeout(work: &Arc<Work>, locks: LockManager, on_crash: OnCrash) -> SocketAddr {
    let timeout = middleware::from_fn_with_state(Arc::clone(work), time_out);
    let once = IdempotencyLayer::new(locks, options(on_crash), Scope::everyone());
    serve(router(work).layer(timeout).layer(once)).await
}

async fn a_timeout_in_the_middle_of_the_work_is_in_doubt(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let locks = backend.manager().await;
    let address = start_with_timeout(&work, locks.clone(), OnCrash::Stop).await;
    assert_eq!(send(address, payment()).await.status, StatusCode::REQUEST_TIMEOUT);
    work.let_go();
    for _ in 0..2 {
        send(address, payment()).await.is_problem(423);
    }
    assert_eq!(work.runs(), 1);
    assert_eq!(state(&locks).await, RecordState::Processing);

    let seen = locks
        .admin()
        .record::<serde_json::Value>(key())
        .await
        .unwrap()
        .unwrap();
    locks
        .admin()
        .resolve(&seen.record, Resolution::RunAgain)
        .await
        .unwrap();
    assert_eq!(send(address, payment()).await.text(), "2");
}

async fn a_timeout_in_the_middle_of_the_work_runs_again_where_that_is_chosen(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let locks = backend.manager().await;
    let address = start_with_timeout(&work, locks.clone(), OnCrash::Retry).await;
    assert_eq!(send(address, payment()).await.status, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(state(&locks).await, RecordState::Failed);
    work.let_go();
    for replayed in [false, true] {
        let answer = send(address, payment()).await;
        assert_eq!((answer.text(), answer.is_replayed()), ("2", replayed));
    }
}

async fn retrying() -> IdempotencyLayer {
    let locks = LockManager::connect("memory:").await.unwrap();
    IdempotencyLayer::new(locks, options(OnCrash::Retry), Scope::everyone())
}

/// Work that answers `status` at first.
fn fails(status: u16, headers: &'static [(&'static str, &'static str)]) -> Arc<Work> {
    Work::new(move |run| {
        let mut response = run.to_string().into_response();
        if run == 1 {
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            for (name, value) in headers {
                response.headers_mut().insert(*name, value.parse().unwrap());
            }
        }
        response
    })
}

const LATER: &[(&str, &str)] = &[("retry-after", "1")];

#[tokio::test]
async fn an_error_that_does_not_say_what_was_done_is_in_doubt() {
    for (status, headers) in [
        (408, &[][..]),
        (408, LATER),
        (500, &[]),
        (500, LATER),
        (502, &[]),
        (504, &[]),
        (507, &[]),
    ] {
        let work = fails(status, headers);
        let address = start(&work, layer().await).await;
        let first = send(address, payment()).await;
        assert_eq!((first.status.as_u16(), first.text()), (status, "1"));
        send(address, payment()).await.is_problem(423);
        assert_eq!(work.runs(), 1, "{status}");
    }
}

#[tokio::test]
async fn an_answer_that_says_later_runs_again() {
    for (status, headers) in [(423, &[][..]), (425, &[]), (429, &[]), (503, &[]), (409, LATER)] {
        runs_again(&fails(status, headers), layer().await, status).await;
    }
}

#[tokio::test]
async fn every_answer_that_is_not_final_runs_again_where_that_is_chosen() {
    for status in [408, 423, 425, 429, 500, 502, 503, 504] {
        runs_again(&fails(status, &[]), retrying().await, status).await;
    }
}

async fn runs_again(work: &Arc<Work>, layer: IdempotencyLayer, status: u16) {
    let address = start(work, layer).await;
    let first = send(address, payment()).await;
    assert_eq!((first.status.as_u16(), first.text()), (status, "1"));
    for replayed in [false, true] {
        let again = send(address, payment()).await;
        assert_eq!(
            (again.status, again.text(), again.is_replayed()),
            (StatusCode::OK, "2", replayed)
        );
    }
}

#[tokio::test]
async fn an_answer_whose_body_breaks_off_is_in_doubt() {
    let work = || {
        Work::new(|run| {
            let body = move |part| {
                if part == 2 && run == 1 {
                    Err(std::io::Error::other("the disk is gone"))
                } else {
                    Ok(run.to_string())
                }
            };
            Body::from_stream(stream::iter((1..=2).map(body)))
        })
    };
    let stops = start(&work(), layer().await).await;
    send(stops, payment()).await.is_problem(500);
    send(stops, payment()).await.is_problem(423);

    let retries = start(&work(), retrying().await).await;
    send(retries, payment()).await.is_problem(500);
    assert_eq!(send(retries, payment()).await.text(), "22");
}

/// A handler that has paid, and then cannot confirm the end of its lock. Its error must not say "nothing was
/// done, send it again".
#[tokio::test(start_paused = true)]
async fn an_error_of_the_lock_after_the_work_is_in_doubt() {
    use tower_service::Service as _;

    for kind in [StoreErrorKind::Conflict, StoreErrorKind::Interrupted] {
        let store = FaultyStore::memory();
        store.always_for("order:42", Kind::Release, Fault::Fail(kind));
        let (locks, paid) = (store.manager(), Arc::new(AtomicU32::new(0)));
        let (lent, counted) = (locks.clone(), Arc::clone(&paid));
        let pay = async move || {
            let guard = lent.lock("order:42").acquire().await?;
            counted.fetch_add(1, Ordering::SeqCst);
            guard.release().await?;
            Ok::<_, LockProblem>("paid")
        };
        let mut router = Router::new().route("/payments", post(pay)).layer(of(locks));
        let mut statuses = Vec::new();
        for _ in 0..2 {
            let answer = router.call(payment()).await.unwrap();
            statuses.push(answer.status().as_u16());
        }
        assert_eq!(
            (paid.load(Ordering::SeqCst), statuses),
            (1, vec![500, 423]),
            "{kind:?}"
        );
    }
}
