//! The command as a user has it: real processes, on every database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod doctor;
mod documents;
mod fields;
mod loss;
mod once;
mod operators;
mod program;
mod records;
#[cfg(feature = "redis")]
mod redis;
mod run;
mod serve;
mod signals;
mod terminal;
mod watch;
