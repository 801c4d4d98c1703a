//! Requests that run once, requests that run again, and replays.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::routing::post;
use axum::{Extension, Router};
use dblock::{LockManager, LockOptions, OnCrash};
use dblock_axum::{IdempotencyLayer, Scope};
use dblock_tests::{Backend, on_every_store};
use tokio::task::JoinSet;

use crate::client::{BODY, KEY, PATH, payment, request, send};
use crate::service::{Work, event, layer, of, serve, start};
use crate::{LONG, options};

on_every_store!(
    concurrent_duplicates_run_once_and_are_told_to_wait,
    concurrent_duplicates_may_wait_for_the_answer
);

/// How many clients send the same request at once.
const CLIENTS: usize = 20;

#[tokio::test]
async fn the_same_key_and_body_replay_status_headers_and_body() {
    let work = Work::new(|run| {
        let headers = [
            (header::LOCATION, format!("/payments/{run}")),
            (header::CONTENT_TYPE, "text/x-receipt".to_owned()),
            (header::SET_COOKIE, format!("session={run}")),
        ];
        (StatusCode::CREATED, headers, format!("receipt {run}"))
    });
    let address = start(&work, layer().await).await;
    let first = send(address, payment()).await;
    assert_eq!((first.status, first.text()), (StatusCode::CREATED, "receipt 1"));
    assert_eq!(first.header("set-cookie"), Some("session=1"));
    assert!(!first.is_replayed());

    // With or without quotes: the same key.
    for key in [KEY, KEY.trim_matches('"')] {
        let again = send(address, request(key, PATH, BODY)).await;
        assert_eq!((again.status, again.text()), (StatusCode::CREATED, "receipt 1"));
        assert_eq!(again.header("location"), Some("/payments/1"));
        assert_eq!(again.header("content-type"), Some("text/x-receipt"));
        assert_eq!(again.header("set-cookie"), None);
        assert!(again.is_replayed());
    }
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn a_header_is_replayed_if_that_is_chosen() {
    let work = Work::new(|run| [("x-balance", run.to_string()), ("x-other", run.to_string())]);
    let address = start(&work, layer().await.replay_header("x-balance".parse().unwrap())).await;
    send(address, payment()).await;
    let again = send(address, payment()).await;
    assert_eq!(
        (again.header("x-balance"), again.header("x-other")),
        (Some("1"), None)
    );
}

async fn concurrent_duplicates_run_once_and_are_told_to_wait(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let address = start(&work, of(backend.manager().await)).await;
    let mut clients: JoinSet<_> = (0..CLIENTS).map(|_| send(address, payment())).collect();
    for _ in 1..CLIENTS {
        let busy = clients.join_next().await.unwrap().unwrap();
        busy.is_problem(409);
        assert_eq!(busy.header("retry-after"), Some("1"));
    }
    work.let_go();
    let first = clients.join_next().await.unwrap().unwrap();
    assert_eq!((first.status, first.text()), (StatusCode::OK, "1"));
    let again = send(address, payment()).await;
    assert_eq!((again.is_replayed(), again.text()), (true, "1"));
    assert_eq!(work.runs(), 1);
}

async fn concurrent_duplicates_may_wait_for_the_answer(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let waits = options(OnCrash::Stop).lock(LockOptions::new().ttl(LONG).wait(LONG));
    // Two nodes.
    let mut addresses = Vec::new();
    for _ in 0..2 {
        let layer = IdempotencyLayer::new(backend.manager().await, waits.clone(), Scope::everyone());
        addresses.push(start(&work, layer).await);
    }
    let to_each = addresses.iter().cycle().take(CLIENTS);
    let clients: JoinSet<_> = to_each.map(|address| send(*address, payment())).collect();
    event(&work.begun).await;
    work.let_go();
    for answer in clients.join_all().await {
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, "1"));
    }
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn what_the_client_did_wrong_is_final() {
    for status in [
        StatusCode::BAD_REQUEST,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
    ] {
        let work = Work::new(move |run| (status, run.to_string()));
        let address = start(&work, layer().await).await;
        send(address, payment()).await;
        let again = send(address, payment()).await;
        assert_eq!(
            (again.status, again.text(), again.is_replayed()),
            (status, "1", true)
        );
    }
}

#[tokio::test]
async fn an_accepted_request_with_a_time_to_look_again_is_final() {
    let work = Work::new(|run| {
        (
            StatusCode::ACCEPTED,
            [(header::RETRY_AFTER, "1")],
            run.to_string(),
        )
    });
    let address = start(&work, layer().await).await;
    send(address, payment()).await;
    assert_eq!(send(address, payment()).await.text(), "1");
}

#[tokio::test]
async fn methods_that_may_be_repeated_anyway_pass_through() {
    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await).await;
    for run in ["1", "2"] {
        let get = Request::get(PATH)
            .header("idempotency-key", KEY)
            .body(Body::empty())
            .unwrap();
        assert_eq!(send(address, get).await.text(), run);
    }
    let patch = || {
        let mut patch = payment();
        *patch.method_mut() = Method::PATCH;
        patch
    };
    assert_eq!(send(address, patch()).await.text(), "3");
    assert_eq!(send(address, patch()).await.text(), "3");
}

#[tokio::test]
async fn callers_with_the_same_key_do_not_get_each_others_answers() {
    #[derive(Clone)]
    struct Tenant(String);

    async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
        if let Some(tenant) = request.headers().get("x-tenant") {
            let tenant = Tenant(tenant.to_str().unwrap().to_owned());
            request.extensions_mut().insert(tenant);
        }
        next.run(request).await
    }

    let locks = LockManager::connect("memory:").await.unwrap();
    let scope = Scope::caller(|request| request.extensions.get::<Tenant>().map(|tenant| tenant.0.clone()));
    let once = IdempotencyLayer::new(locks, options(OnCrash::Stop), scope);
    let whose = async |Extension(Tenant(tenant)): Extension<Tenant>| tenant;
    let router = Router::new().route(PATH, post(whose)).layer(once);
    let address = serve(router.layer(middleware::from_fn(authenticate))).await;
    let of = |tenant: &str| {
        let mut payment = payment();
        payment.headers_mut().insert("x-tenant", tenant.parse().unwrap());
        payment
    };
    for replayed in [false, true] {
        for tenant in ["alice", "bob"] {
            let answer = send(address, of(tenant)).await;
            assert_eq!((answer.text(), answer.is_replayed()), (tenant, replayed));
        }
    }
    // Nobody's request must not run as somebody's.
    send(address, payment()).await.is_problem(500);
}

#[tokio::test]
async fn each_route_has_keys_of_its_own_beneath_a_nested_router_too() {
    let work = Work::new(|run| run.to_string());
    let inner = crate::service::router(&work).layer(layer().await);
    let address = serve(Router::new().nest("/a", inner.clone()).nest("/b", inner)).await;
    for (path, answer) in [("/a/payments", "1"), ("/b/payments", "2"), ("/a/payments", "1")] {
        assert_eq!(
            send(address, request(KEY, path, BODY)).await.text(),
            answer,
            "{path}"
        );
    }
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replayed() {
    let bytes: Vec<u8> = (0..=255).collect();
    let answered = bytes.clone();
    let work = Work::new(move |_| answered.clone());
    let address = start(&work, layer().await).await;
    for replayed in [false, true] {
        let answer = send(address, payment()).await;
        assert_eq!((&answer.body[..], answer.is_replayed()), (&bytes[..], replayed));
    }
}
