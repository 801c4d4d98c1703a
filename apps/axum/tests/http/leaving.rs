//! Clients that go away, handlers that panic, and servers that stop.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use dblock::store::RecordState;
use dblock::{LockManager, OnCrash};
use dblock_axum::{IdempotencyLayer, Scope, record_key};
use dblock_tests::{Backend, on_every_store};

use crate::client::{KEY, PATH, payment, send, try_send};
use crate::service::{Work, event, layer, of, start};
use crate::{LONG, options};

on_every_store!(
    the_work_of_a_client_that_goes_away_is_finished_and_replayed,
    a_shutdown_waits_for_the_work_of_clients_that_went_away
);

/// Sends a payment, and goes away while the server works on it.
async fn leave(work: &Arc<Work>, address: std::net::SocketAddr) {
    let client = tokio::spawn(send(address, payment()));
    event(&work.begun).await;
    client.abort();
    event(&work.gone).await;
}

/// The key of the payment's record.
pub(crate) fn key() -> String {
    record_key(&axum::http::Method::POST, PATH, None, KEY.trim_matches('"'))
}

pub(crate) async fn state(locks: &LockManager) -> RecordState {
    let found = locks.admin().record::<serde_json::Value>(key()).await.unwrap();
    found.expect("there is a record").record.state
}

async fn the_work_of_a_client_that_goes_away_is_finished_and_replayed(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let locks = backend.manager().await;
    let address = start(&work, of(locks.clone())).await;
    leave(&work, address).await;
    send(address, payment()).await.is_problem(409);
    work.let_go();
    // As a client does that is told to try again.
    let answer = loop {
        let answer = send(address, payment()).await;
        if answer.status != StatusCode::CONFLICT {
            break answer;
        }
    };
    assert_eq!((answer.text(), answer.is_replayed()), ("1", true));
    assert_eq!(work.runs(), 1);
    assert_eq!(state(&locks).await, RecordState::Succeeded);
}

async fn a_shutdown_waits_for_the_work_of_clients_that_went_away(backend: Backend) {
    let work = Work::paused(|run| run.to_string());
    let locks = backend.manager().await;
    let address = start(&work, of(locks.clone())).await;
    leave(&work, address).await;
    let other = locks.clone();
    let stopping = tokio::spawn(async move { locks.shutdown(LONG).await });
    // The shutdown has begun when the manager takes no new locks. A request that came before would wait for
    // `let_go`.
    while other.lock("other").run(async {}).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(!stopping.is_finished());
    work.let_go();
    stopping.await.unwrap();
    assert_eq!(state(&backend.manager().await).await, RecordState::Succeeded);
}

#[tokio::test]
async fn a_panic_reaches_the_server_and_is_a_crash() {
    let panics = || {
        Work::new(|run| {
            if run == 1 {
                panic!("as the test wants")
            } else {
                run.to_string()
            }
        })
    };
    let work = panics();
    let address = start(&work, layer().await).await;
    try_send(address, payment()).await.unwrap_err();
    send(address, payment()).await.is_problem(423);
    assert_eq!(work.runs(), 1);

    let (work, locks) = (panics(), LockManager::connect("memory:").await.unwrap());
    let retries = IdempotencyLayer::new(locks, options(OnCrash::Retry), Scope::everyone());
    let address = start(&work, retries).await;
    try_send(address, payment()).await.unwrap_err();
    assert_eq!(send(address, payment()).await.text(), "2");
}
