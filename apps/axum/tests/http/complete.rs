//! Answers that are written in the handler's transaction.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::routing::post;
use dblock::OnCrash;
use dblock_axum::{IdempotencyLayer, IdempotentRun, Scope};
use dblock_tests::{Backend, on_every_store};

use crate::books::{Books, payments};
use crate::client::{PATH, payment, send};
use crate::options;
use crate::service::serve;

on_every_store!(databases:
    the_answer_stands_with_the_work,
    the_answer_that_was_committed_counts_and_not_the_one_that_was_returned,
    work_that_was_not_committed_runs_again,
    an_answer_that_is_too_large_is_refused_before_the_commit,
    a_request_without_a_key_is_not_remembered,
    a_request_that_is_refused_needs_nothing_completed,
    an_answer_that_was_not_completed_is_told_as_a_mistake,
);

async fn start(books: Books) -> SocketAddr {
    let options = options(books.on_crash).max_result(1_000);
    let layer = IdempotencyLayer::new(books.manager().await, options, Scope::everyone());
    serve(books.router(layer.optional())).await
}

async fn the_answer_stands_with_the_work(backend: Backend) {
    let address = start(Books::create(&backend, OnCrash::CompleteIn).await).await;
    for replayed in [false, true] {
        let answer = send(address, payment()).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "\"1xxxx\""));
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.is_replayed(), replayed);
    }
    assert_eq!(payments(&backend).await, 1);
}

async fn the_answer_that_was_committed_counts_and_not_the_one_that_was_returned(backend: Backend) {
    let mut books = Books::create(&backend, OnCrash::CompleteIn).await;
    books.instead = Some(StatusCode::INTERNAL_SERVER_ERROR);
    let address = start(books).await;
    for _ in 0..2 {
        let answer = send(address, payment()).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "\"1xxxx\""));
    }
    assert_eq!(payments(&backend).await, 1);
}

async fn work_that_was_not_committed_runs_again(backend: Backend) {
    let mut books = Books::create(&backend, OnCrash::CompleteIn).await;
    books.commits = false;
    send(start(books.clone()).await, payment()).await.is_problem(500);
    books.commits = true;
    let answer = send(start(books).await, payment()).await;
    assert_eq!((answer.text(), answer.is_replayed()), ("\"2xxxx\"", false));
    assert_eq!(payments(&backend).await, 1);
}

async fn an_answer_that_is_too_large_is_refused_before_the_commit(backend: Backend) {
    let mut books = Books::create(&backend, OnCrash::CompleteIn).await;
    books.length = 2_000;
    send(start(books.clone()).await, payment()).await.is_problem(500);
    books.length = 1;
    assert_eq!(send(start(books).await, payment()).await.text(), "\"2x\"");
    assert_eq!(payments(&backend).await, 1);
}

async fn a_request_without_a_key_is_not_remembered(backend: Backend) {
    let address = start(Books::create(&backend, OnCrash::CompleteIn).await).await;
    for _ in 0..2 {
        let without = Request::post(PATH).body(Body::empty()).unwrap();
        assert_eq!(send(address, without).await.text(), "\"0xxxx\"");
    }
    assert_eq!(payments(&backend).await, 2);
}

async fn a_request_that_is_refused_needs_nothing_completed(backend: Backend) {
    let mut books = Books::create(&backend, OnCrash::CompleteIn).await;
    books.refuses = Some(StatusCode::NOT_FOUND);
    let address = start(books).await;
    for replayed in [false, true] {
        let answer = send(address, payment()).await;
        assert_eq!(
            (answer.status, answer.is_replayed()),
            (StatusCode::NOT_FOUND, replayed)
        );
    }
    assert_eq!(payments(&backend).await, 0);
}

/// It is recorded all the same: whatever was done is not done again.
async fn an_answer_that_was_not_completed_is_told_as_a_mistake(backend: Backend) {
    let mut books = Books::create(&backend, OnCrash::CompleteIn).await;
    books.refuses = Some(StatusCode::ACCEPTED);
    let address = start(books).await;
    send(address, payment()).await.is_problem(500);
    let again = send(address, payment()).await;
    assert_eq!((again.status, again.is_replayed()), (StatusCode::ACCEPTED, true));
    assert_eq!(payments(&backend).await, 0);
}

#[tokio::test]
async fn a_handler_that_needs_the_layer_says_so() {
    let handler = async |_: IdempotentRun| "ran";
    let address = serve(Router::new().route(PATH, post(handler))).await;
    let answer = send(address, payment()).await;
    assert_eq!(answer.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(answer.text().contains("IdempotentRun"), "{}", answer.text());
}
