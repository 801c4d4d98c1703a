//! The core decides; it does nothing. No await, no clock, no randomness, no store, no channel, no tracing.
//!
//! - [`key`] is one key: a machine that is called and polled.
//! - [`call`] is what a caller wants, and [`out`] what it is told.
//! - [`dispatch`] says which requests go together in a batch, and when it is sent.
//! - [`env`] are the inputs beside the calls: the time, fresh ids, jitter.
//! - [`ownership`] and [`end`] are what bodies read of a lease without the machine.
//!
//! A driver or a simulation carries out what a machine wants done, and gives the results back to it.

pub(crate) mod call;
pub(crate) mod dispatch;
pub(crate) mod end;
pub(crate) mod env;
#[cfg_attr(not(feature = "simulation"), allow(dead_code, unreachable_pub))]
pub(crate) mod key;
pub(crate) mod out;
pub(crate) mod ownership;
