//! The page without a browser: what the server answers, whatever the pages show.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod actions;
mod hostile;
mod pages;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use dblock::LockManager;
use tower::ServiceExt as _;

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

async fn get(app: &Router, address: &str) -> Answer {
    send(app, Request::get(address).body(Body::empty()).unwrap()).await
}

fn encoded(key: &str) -> String {
    form_urlencoded::byte_serialize(key.as_bytes()).collect()
}

/// The text between two others.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("no {begin:?} in {text}"));
    rest.split_once(end).unwrap().0
}

async fn memory() -> LockManager {
    LockManager::connect("memory:").await.unwrap()
}
