//! Tests of what is special to the PostgreSQL store. The rules that all stores share are in the conformance
//! suite.
//!
//! Needs a throw-away server: `DBLOCK_TEST_POSTGRES_URL` is the URL of a superuser on it. Each test has a
//! table of its own.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::too_many_lines,
    reason = "one sequence of events reads better in one piece"
)]

mod bench;
mod connections;
mod credentials;
mod failures;
mod names;
mod pass_on;
mod plans;
mod poolers;
mod refusals;
mod schema;
mod shared;
mod standby;
mod users;
mod wake_ups;
