//! Servers that are killed in the middle of a request, and what another one answers when it is sent again.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use axum::http::StatusCode;
use dblock::{LockOptions, OnCrash, Resolution};
use dblock_axum::{IdempotencyLayer, Scope};
use dblock_tests::{Backend, on_every_store};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::books::{
    AFTER_THE_COMMIT, AFTER_THE_WORK, BEFORE_THE_COMMIT, BEFORE_THE_WORK, Books, Point, payments,
};
use crate::client::{Answer, payment, send, try_send};
use crate::leaving::key;
use crate::service::serve;
use crate::{LONG, options};

on_every_store!(databases:
    what_may_not_be_repeated_is_in_doubt_until_somebody_decides,
    what_took_effect_is_replayed_as_somebody_has_decided,
    what_may_be_repeated_is_repeated,
    what_was_not_committed_is_done_once,
    what_was_committed_is_replayed,
);

/// The variable that tells a server what to do, with these words between the parts.
const VARIABLE: &str = "DBLOCK_AXUM_TEST_SERVER";
const AND: &str = " and ";

/// How long the lease of a killed server lives on.
const TTL: Duration = Duration::from_secs(3);

/// The point of a server that is not killed.
const NOWHERE: Point = "nowhere";

/// A server in a process of its own.
struct Server {
    process: Child,
    output: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

impl Server {
    async fn start(backend: &Backend, on_crash: OnCrash, stops: Option<Point>) -> Self {
        let url = backend.url().unwrap();
        let arguments = [&url, &backend.table, word(on_crash), stops.unwrap_or(NOWHERE)];
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["kills::server", "--exact", "--ignored", "--nocapture"])
            .env(VARIABLE, arguments.join(AND))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
        let address = loop {
            let line = output.next_line().await.unwrap().expect("the server starts");
            if let Some((_, address)) = line.split_once("listening on ") {
                break address.parse().unwrap();
            }
        };
        Self {
            process,
            output,
            address,
        }
    }

    /// Sends a payment, and kills the server at the point where its handler stops.
    async fn dies_in_a_payment(mut self) {
        let client = tokio::spawn(try_send(self.address, payment()));
        assert_eq!(self.output.next_line().await.unwrap().as_deref(), Some("reached"));
        // SIGKILL.
        self.process.kill().await.unwrap();
        client.await.unwrap().unwrap_err();
    }

    /// Sends a payment as a client does that is told to try again while the lease of the killed server lives.
    async fn pay(&self) -> Answer {
        loop {
            let answer = send(self.address, payment()).await;
            if answer.status != StatusCode::CONFLICT {
                return answer;
            }
            assert!(answer.header("retry-after").is_some());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn word(on_crash: OnCrash) -> &'static str {
    match on_crash {
        OnCrash::Retry => "retry",
        OnCrash::Stop => "stop",
        _ => "complete_in",
    }
}

/// Kills a server at `point`, and starts another one.
async fn killed(backend: &Backend, on_crash: OnCrash, point: Point) -> (Books, Server) {
    let books = Books::create(backend, on_crash).await;
    let first = Server::start(backend, on_crash, Some(point)).await;
    first.dies_in_a_payment().await;
    (books, Server::start(backend, on_crash, None).await)
}

/// Decides about the run, as a person would who has seen its record.
async fn decide(books: &Books, resolution: Resolution) {
    let locks = books.manager().await;
    let seen = locks
        .admin()
        .record::<serde_json::Value>(key())
        .await
        .unwrap()
        .unwrap();
    assert!(locks.admin().resolve(&seen.record, resolution).await.unwrap());
}

async fn what_may_not_be_repeated_is_in_doubt_until_somebody_decides(backend: Backend) {
    let (books, server) = killed(&backend, OnCrash::Stop, BEFORE_THE_WORK).await;
    for _ in 0..2 {
        server.pay().await.is_problem(423);
    }
    decide(&books, Resolution::RunAgain).await;
    let answer = server.pay().await;
    assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "\"1xxxx\""));
    assert_eq!(payments(&backend).await, 1);
}

async fn what_took_effect_is_replayed_as_somebody_has_decided(backend: Backend) {
    let (books, server) = killed(&backend, OnCrash::Stop, AFTER_THE_WORK).await;
    server.pay().await.is_problem(423);
    let answer = serde_json::json!({
        "status": 201,
        "headers": [["content-type", "application/json"]],
        "text": "\"found in the books\"",
    });
    let succeeded = Resolution::succeeded(&answer, LONG * 60).unwrap();
    decide(&books, succeeded).await;
    let answer = server.pay().await;
    assert_eq!(
        (answer.status, answer.text()),
        (StatusCode::CREATED, "\"found in the books\"")
    );
    assert!(answer.is_replayed());
    assert_eq!(payments(&backend).await, 1);
}

async fn what_may_be_repeated_is_repeated(backend: Backend) {
    let (_, server) = killed(&backend, OnCrash::Retry, AFTER_THE_WORK).await;
    for replayed in [false, true] {
        let answer = server.pay().await;
        assert_eq!((answer.text(), answer.is_replayed()), ("\"2xxxx\"", replayed));
    }
    // Once for each attempt.
    assert_eq!(payments(&backend).await, 2);
}

async fn what_was_not_committed_is_done_once(backend: Backend) {
    let (_, server) = killed(&backend, OnCrash::CompleteIn, BEFORE_THE_COMMIT).await;
    let answer = server.pay().await;
    assert_eq!((answer.text(), answer.is_replayed()), ("\"2xxxx\"", false));
    assert_eq!(payments(&backend).await, 1);
}

async fn what_was_committed_is_replayed(backend: Backend) {
    let (_, server) = killed(&backend, OnCrash::CompleteIn, AFTER_THE_COMMIT).await;
    let answer = server.pay().await;
    assert_eq!((answer.status, answer.text()), (StatusCode::CREATED, "\"1xxxx\""));
    assert!(answer.is_replayed());
    assert_eq!(payments(&backend).await, 1);
}

/// The program of a [`Server`].
#[tokio::test]
#[ignore = "a process that other tests start and kill"]
async fn server() {
    let Ok(arguments) = std::env::var(VARIABLE) else {
        return;
    };
    let [url, table, on_crash, stops] = arguments.split(AND).collect::<Vec<_>>().try_into().unwrap();
    let on_crash = match on_crash {
        "retry" => OnCrash::Retry,
        "stop" => OnCrash::Stop,
        _ => OnCrash::CompleteIn,
    };
    let mut books = Books::connect(url, table, on_crash);
    books.stops = Some(stops.into());
    let ttl = if stops == NOWHERE { LONG } else { TTL };
    let options = options(on_crash).lock(LockOptions::new().ttl(ttl));
    let layer = IdempotencyLayer::new(books.manager().await, options, Scope::everyone());
    println!("listening on {}", serve(books.router(layer)).await);
    std::future::pending::<()>().await;
}
