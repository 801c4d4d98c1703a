//! How long the page takes on a large table: 100,000 rows, all of them held, which is the most that there is
//! to sort.
//!
//! ```sh
//! cargo test --release -p dblock-web --test rows -- --ignored --nocapture --test-threads 1
//! ```
//!
//! It prints the times and judges nothing, because they are the machine's.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use dblock_tests::{Backend, Kind};
use dblock_web::{Access, router};
use tower::ServiceExt as _;

/// In no order of keys or times. Every thousandth row is waited for.
fn fill(kind: Kind) -> String {
    let (source, owner, lease, no, clock, key) = match kind {
        Kind::Postgres => (
            "generate_series(1::bigint, 100000) AS it(n)",
            "gen_random_uuid()",
            "gen_random_uuid()",
            "false",
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
            "'order:' || (n * 7919 % 100003)",
        ),
        Kind::MySql => (
            "(SELECT seq AS n FROM seq_1_to_100000) it",
            "UNHEX(MD5(n))",
            "UNHEX(MD5(-n))",
            "FALSE",
            "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
            "CONCAT('order:', n * 7919 % 100003)",
        ),
        _ => (
            "(WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 100000) SELECT n FROM r) it",
            "randomblob(16)",
            "randomblob(16)",
            "0",
            "CAST(unixepoch('subsec') * 1000 AS INTEGER) * 1000",
            "'order:' || (n * 7919 % 100003)",
        ),
    };
    format!(
        "INSERT INTO {{table}} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
         wanted_until, acquired_at, holder, revoked) \
         SELECT {key}, {owner}, 1, now + 3600000000, {lease}, now, now, \
         CASE WHEN n % 1000 = 0 THEN now + 3600000000 ELSE 0 END, now - n * 104729 % 100003 * 1000000, \
         'host/1 shop::orders::settle', {no} FROM {source}, (SELECT {clock} AS now) clock"
    )
}

async fn took(app: &Router, address: &str) -> (Duration, String) {
    let mut times = Vec::new();
    let mut page = String::new();
    for _ in 0..11 {
        let begin = Instant::now();
        let request = Request::get(address).body(Body::empty()).unwrap();
        let answer = app.clone().oneshot(request).await.unwrap();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        times.push(begin.elapsed());
        page = String::from_utf8(body.to_vec()).unwrap();
    }
    times.sort_unstable();
    (times[5], page)
}

async fn measure(kind: Kind) {
    let Some(backend) = Backend::new(kind).await else {
        return;
    };
    backend.execute(&fill(kind)).await;
    if kind == Kind::Postgres {
        backend.execute("ANALYZE {table}").await;
    }
    let app: Router = router(backend.manager().await, Access::read_only());
    let (_, first) = took(&app, "/list").await;
    let next = first
        .split_once("\" rel=\"next\"")
        .unwrap()
        .0
        .rsplit_once("href=\"")
        .unwrap()
        .1;
    let next = format!("/{}", next.replace("&amp;", "&"));
    for address in [
        "/list",
        &next,
        "/list?prefix=order:77",
        "/list?show=all",
        "/key?key=order:77777",
    ] {
        let (time, _) = took(&app, address).await;
        println!("{kind:?}: {:4} ms {address}", time.as_millis());
    }
    backend.clean_up().await;
}

#[tokio::test]
#[ignore = "prints times"]
async fn a_hundred_thousand_rows() {
    for kind in [Kind::Postgres, Kind::MySql, Kind::Sqlite] {
        measure(kind).await;
    }
}
