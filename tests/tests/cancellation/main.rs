//! Cancellation: every kind of call is dropped at each of its awaits, while the store answers in every way.
//!
//! Afterwards no lock is held longer than its rule says, no connection is broken, no task is left, and the
//! manager is as good as before. Under paused time each bound is exact; `faults/servers.rs` drops calls on
//! real servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod memory;
