//! The checks that go through a [`LockManager`](dblock::LockManager) over the store: what a program sees.
//!
//! Leases are 30 seconds long where a check must not pass because one ran out, and 1 second, the shortest,
//! where one must run out.

#![allow(
    clippy::unwrap_used,
    clippy::async_yields_async,
    clippy::large_futures,
    reason = "a check fails by panicking; bodies are nested, and hand out tasks that outlive them"
)]

mod capabilities;
mod exclusion;
#[cfg(feature = "fence")]
mod fence;
mod keys;
mod loss;
mod operators;
mod reentry;
mod release;
mod resent;
mod setup;
mod sharing;
mod tokens;
mod waiting;

pub use self::capabilities::*;
pub use self::exclusion::*;
#[cfg(feature = "fence")]
pub use self::fence::*;
pub use self::keys::*;
pub use self::loss::*;
pub use self::operators::*;
pub use self::reentry::*;
pub use self::release::*;
pub use self::resent::*;
pub use self::sharing::*;
pub use self::tokens::*;
pub use self::waiting::*;
