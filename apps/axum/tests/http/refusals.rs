//! Requests that are refused, and what they leave.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use dblock::{LockManager, OnCrash, RunOptions};
use dblock_axum::{IdempotencyLayer, Scope};
use futures_util::stream;

use crate::client::{BODY, KEY, PATH, payment, request, send};
use crate::options;
use crate::service::{Work, layer, start};

fn without_key() -> Request {
    Request::post(PATH).body(Body::from(BODY)).unwrap()
}

#[tokio::test]
async fn another_body_or_query_under_the_same_key_is_refused() {
    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await).await;
    send(address, payment()).await;
    for other in [
        request(KEY, PATH, r#"{"cents":9999}"#),
        request(KEY, PATH, ""),
        request(KEY, "/payments?dry-run", BODY),
    ] {
        send(address, other).await.is_problem(422);
    }
    assert_eq!(send(address, payment()).await.text(), "1");
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn another_body_is_refused_while_the_first_request_runs() {
    let work = Work::paused(|run| run.to_string());
    let address = start(&work, layer().await).await;
    let first = tokio::spawn(send(address, payment()));
    crate::service::event(&work.begun).await;
    send(address, request(KEY, PATH, "{}")).await.is_problem(422);
    work.let_go();
    assert_eq!(first.await.unwrap().text(), "1");
}

#[tokio::test]
async fn a_key_is_required_unless_it_is_optional() {
    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await).await;
    send(address, without_key()).await.is_problem(400);
    assert_eq!(work.runs(), 0);

    let address = start(&work, layer().await.optional()).await;
    assert_eq!(send(address, without_key()).await.text(), "1");
    assert_eq!(send(address, without_key()).await.text(), "2");
    assert_eq!(send(address, payment()).await.text(), "3");
    assert_eq!(send(address, payment()).await.text(), "3");
}

#[tokio::test]
async fn a_bad_key_is_refused_also_where_it_is_optional() {
    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await.optional()).await;
    for bad in [
        "",
        "\"\"",
        "\"open",
        "two words",
        "\"a\";v=1",
        "a, b",
        &"k".repeat(256),
    ] {
        send(address, request(bad, PATH, BODY)).await.is_problem(400);
    }
    let mut twice = payment();
    twice
        .headers_mut()
        .append("idempotency-key", "\"b\"".parse().unwrap());
    send(address, twice).await.is_problem(400);
    assert_eq!(work.runs(), 0);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await.max_request(10)).await;
    send(address, request("a", PATH, "x".repeat(11)))
        .await
        .is_problem(413);
    let chunks = stream::iter(["123456"; 2].map(Ok::<_, std::io::Error>));
    send(address, request("b", PATH, Body::from_stream(chunks)))
        .await
        .is_problem(413);
    assert_eq!(work.runs(), 0);
    let fits = send(address, request("c", PATH, "x".repeat(10))).await;
    assert_eq!(fits.status, StatusCode::OK);
}

/// A client that hangs up in the middle of its request has sent none.
#[tokio::test]
async fn half_a_request_does_not_run() {
    use tokio::io::AsyncWriteExt as _;

    let work = Work::new(|run| run.to_string());
    let address = start(&work, layer().await).await;
    let mut half = tokio::net::TcpStream::connect(address).await.unwrap();
    let head =
        "POST /payments HTTP/1.1\r\nhost: test\r\nidempotency-key: a\r\ncontent-length: 10\r\n\r\n12345";
    half.write_all(head.as_bytes()).await.unwrap();
    half.shutdown().await.unwrap();
    drop(half);
    // It holds no key: the whole request runs.
    assert_eq!(send(address, request("a", PATH, "1234567890")).await.text(), "1");
}

/// As in docs/run-once.md: the work is done, so it is not done again, and the first caller has its answer.
#[tokio::test]
async fn an_answer_that_is_too_large_is_given_once() {
    let streamed = || {
        let chunk = Bytes::from(vec![b'x'; 1 << 20]);
        Body::from_stream(stream::iter(
            (0..8).map(move |_| Ok::<_, std::io::Error>(chunk.clone())),
        ))
    };
    for (length, work) in [
        (2_000, Work::new(|_| "x".repeat(2_000))),
        (8 << 20, Work::new(move |_| streamed())),
    ] {
        let locks = LockManager::connect("memory:").await.unwrap();
        let small = options(OnCrash::Stop).max_result(1_000);
        let address = start(&work, IdempotencyLayer::new(locks, small, Scope::everyone())).await;
        let first = send(address, payment()).await;
        assert_eq!((first.status, first.body.len()), (StatusCode::OK, length));
        let again = send(address, payment()).await;
        again.is_problem(410);
        assert_eq!(again.header("retry-after"), None);
        assert_eq!(work.runs(), 1);
    }
}

#[tokio::test]
async fn attempts_that_are_used_up_are_locked_and_a_pause_is_told() {
    let work = Work::new(|_| StatusCode::SERVICE_UNAVAILABLE);
    let start = async |options: RunOptions| {
        let locks = LockManager::connect("memory:").await.unwrap();
        start(&work, IdempotencyLayer::new(locks, options, Scope::everyone())).await
    };
    let address = start(options(OnCrash::Stop).max_attempts(1)).await;
    assert_eq!(
        send(address, payment()).await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    send(address, payment()).await.is_problem(423);

    let address = start(options(OnCrash::Stop).backoff(crate::LONG)).await;
    assert_eq!(
        send(address, payment()).await.status,
        StatusCode::SERVICE_UNAVAILABLE
    );
    let later = send(address, payment()).await;
    later.is_problem(503);
    assert_eq!(later.header("retry-after"), Some("30"));
}

#[tokio::test]
async fn options_that_cannot_work_run_nothing() {
    let work = Work::new(|run| run.to_string());
    let locks = LockManager::connect("memory:").await.unwrap();
    let never = options(OnCrash::Stop).max_attempts(0);
    let address = start(&work, IdempotencyLayer::new(locks, never, Scope::everyone())).await;
    send(address, payment()).await.is_problem(500);
    assert_eq!(work.runs(), 0);
}

/// "Down" never means "not sent before".
#[tokio::test]
async fn nothing_runs_while_the_database_is_down() {
    let work = Work::new(|run| run.to_string());
    let pool = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/none").unwrap();
    let locks = LockManager::builder(&pool).build_lazy().unwrap();
    let address = start(&work, crate::service::of(locks)).await;
    let down = send(address, payment()).await;
    down.is_problem(503);
    assert_eq!(down.header("retry-after"), Some("1"));
    assert_eq!(work.runs(), 0);
}
