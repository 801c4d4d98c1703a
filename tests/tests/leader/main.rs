//! One leader among several nodes: `LockBuilder::lead`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod nodes;
mod processes;
mod terms;

use std::time::Duration;

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

const KEY: &str = "scheduler";
