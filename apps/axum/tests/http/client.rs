//! A client: each request has a connection of its own, which breaks when its future is dropped.

use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// The parts of the request that the tests send.
pub(crate) const PATH: &str = "/payments";
pub(crate) const KEY: &str = "\"8e03978e-40d5-43e8-bc93-6894a57f9324\"";
pub(crate) const BODY: &str = r#"{"cents":1250}"#;

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Checks that it is a problem as JSON, with this status.
    #[track_caller]
    pub(crate) fn is_problem(&self, status: u16) {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{self:?}"
        );
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], status, "{problem}");
        assert!(
            problem["title"].is_string() && problem["detail"].is_string(),
            "{problem}"
        );
    }
}

/// A payment with a key.
pub(crate) fn payment() -> Request<Body> {
    request(KEY, PATH, BODY)
}

/// A POST request with a key.
pub(crate) fn request(key: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header("idempotency-key", key);
    request.body(body.into()).unwrap()
}

/// Sends a request. Fails when the server closes the connection instead of answering.
pub(crate) async fn try_send(address: SocketAddr, request: Request<Body>) -> hyper::Result<Answer> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let (mut parts, body) = request.into_parts();
    parts.headers.insert("host", "test".parse().unwrap());
    let answer = async {
        let (parts, body) = sender
            .send_request(Request::from_parts(parts, body))
            .await?
            .into_parts();
        Ok(Answer {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await?.to_bytes(),
        })
    };
    let connection = async {
        let _ = connection.await;
        std::future::pending().await
    };
    tokio::select! {
        answer = answer => answer,
        never = connection => never,
    }
}

pub(crate) async fn send(address: SocketAddr, request: Request<Body>) -> Answer {
    try_send(address, request).await.unwrap()
}
