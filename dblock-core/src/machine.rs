//! The core decides what to do, and does none of it itself. It has no await, no clock, no randomness, no
//! store, no channel, no tracing.
//!
//! - [`key`] is one key: a machine that is called and polled.
//! - [`call`] is what a caller wants, and [`out`] what it is told.
//! - [`dispatch`] says which requests go together in a batch, and when it is sent.
//! - [`env`] are the inputs beside the calls: the time, fresh ids, jitter.
//! - [`ownership`] and `end` are read by bodies directly, without locking the machine.
//!
//! A driver or a simulation carries out what a machine wants done, and gives the results back to it.

pub mod call;
pub mod dispatch;
mod end;
pub mod env;
pub mod key;
pub mod out;
pub mod ownership;
