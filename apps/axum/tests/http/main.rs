//! The layer over real sockets: a server on loopback, and a client that may go away.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod books;
mod client;
mod complete;
mod doubt;
mod kills;
mod leaving;
mod once;
mod refusals;
mod service;

use std::time::Duration;

use dblock::{LockOptions, OnCrash, RunOptions};

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// Remembered for as long as the test runs, under a lock that does not run out.
fn options(on_crash: OnCrash) -> RunOptions {
    RunOptions::new(Duration::from_hours(1), on_crash).lock(LockOptions::new().ttl(LONG))
}
