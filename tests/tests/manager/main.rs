//! The invariants, seen through the manager, on every store. Tests read the row on a connection of their own.
//!
//! Leases are 30 seconds long where a test must not pass because one ran out, and 1 second, the shortest,
//! where one must run out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    clippy::async_yields_async,
    reason = "bodies hand out tasks that outlive them"
)]
#![allow(clippy::large_futures, reason = "bodies are nested on purpose")]

mod attribute;
mod blocking;
mod errors;
mod exclusion;
mod fairness;
mod hand_over;
mod in_transaction;
mod inherit;
mod loss;
mod operators;
mod places;
mod purge;
mod purge_in_background;
mod release;
mod several;
mod several_bank;
mod shared;
mod shutdown;
mod stores;
mod tickets;
mod tokens;
mod transaction;
mod verify;
mod waiting;
mod wake_ups;

use std::time::Duration;

use dblock::LockOptions;

/// The program of [`dblock_tests::child::Holder`].
const HOLDER: &str = env!("CARGO_BIN_EXE_holder");

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// The shortest ttl.
const SHORT: Duration = Duration::from_secs(1);

/// A lease that is renewed: a renewal is due after a third of it, and may be late by five seconds on a
/// machine that stalls.
const RENEWED: Duration = Duration::from_secs(9);

/// A lease that does not run out during a test. No waiting.
fn long() -> LockOptions {
    LockOptions::new().ttl(LONG)
}

/// The shortest lease. No waiting.
fn short() -> LockOptions {
    LockOptions::new().ttl(SHORT)
}

/// For a lease that is renewed soon, and is not over when its process is stopped for a second.
fn briefly() -> LockOptions {
    LockOptions::new().ttl(4 * SHORT)
}

/// A lease and a wait that do not run out during a test.
fn patient() -> LockOptions {
    long().wait(LONG)
}
