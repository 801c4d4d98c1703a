//! The parts that the tests share.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

pub mod around;
#[cfg(any(test, doctest))]
mod attributes;
pub mod backend;
pub mod busy_operator;
pub mod child;
pub mod counting;
pub mod deadlock;
pub mod faulty_store;
pub mod line;
pub mod own_server;
pub mod poll;
pub mod proxy;
pub mod run;
pub mod telling_store;
pub mod three_shards;
pub mod through_manager;
pub mod transaction;

pub use backend::{Backend, Kind, Row};
/// For `conformance!`.
#[doc(hidden)]
pub use dblock_conformance;

/// The PostgreSQL server for tests: `DBLOCK_TEST_POSTGRES_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn postgres_url() -> Option<String> {
    server_url("PostgreSQL", "DBLOCK_TEST_POSTGRES_URL")
}

/// The MySQL or MariaDB server for tests: `DBLOCK_TEST_MYSQL_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn mysql_url() -> Option<String> {
    server_url("MySQL", "DBLOCK_TEST_MYSQL_URL")
}

/// The etcd for tests: `DBLOCK_TEST_ETCD_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn etcd_url() -> Option<String> {
    server_url("etcd", "DBLOCK_TEST_ETCD_URL")
}

/// The Redis or Valkey server for tests: `DBLOCK_TEST_REDIS_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn redis_url() -> Option<String> {
    server_url("Redis", "DBLOCK_TEST_REDIS_URL")
}

/// The ZooKeeper server for tests: `DBLOCK_TEST_ZOOKEEPER_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn zookeeper_url() -> Option<String> {
    server_url("ZooKeeper", "DBLOCK_TEST_ZOOKEEPER_URL")
}

/// The Redis Cluster for tests: `DBLOCK_TEST_REDIS_CLUSTER_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn redis_cluster_url() -> Option<String> {
    server_url("Redis Cluster", "DBLOCK_TEST_REDIS_CLUSTER_URL")
}

/// A Redis server behind Sentinels for tests: `DBLOCK_TEST_REDIS_SENTINEL_URL`.
///
/// # Panics
/// When it is not set although `DBLOCK_TEST_REQUIRE_SERVERS` is 1.
pub fn redis_sentinel_url() -> Option<String> {
    server_url("Redis with Sentinels", "DBLOCK_TEST_REDIS_SENTINEL_URL")
}

/// A missing server fails a test: `DBLOCK_TEST_REQUIRE_SERVERS=1`.
fn servers_are_required() -> bool {
    std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").is_ok_and(|value| value == "1")
}

/// A test without its server passes, which must be seen: it says so on the process's own stderr, which the
/// test harness does not swallow.
fn server_url(server: &str, variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        let remedy = format!("set {variable}, or run `cargo xtask test`");
        left_out(&format!("a {server} server"), &remedy);
    }
    url
}

/// Says that the test is left out, and how it would run.
///
/// # Panics
/// When `DBLOCK_TEST_REQUIRE_SERVERS` is 1: then nothing is left out.
pub fn left_out(needs: &str, remedy: &str) {
    use std::io::Write;

    assert!(
        !servers_are_required(),
        "{needs} is missing, and DBLOCK_TEST_REQUIRE_SERVERS=1 requires it; {remedy}"
    );
    let test = std::thread::current();
    let test = test.name().unwrap_or("a test");
    let _ = writeln!(std::io::stderr(), "LEFT OUT: {test} needs {needs}; {remedy}");
}
