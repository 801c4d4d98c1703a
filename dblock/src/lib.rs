//! Distributed locks kept in the database you already have.

mod body;
mod builder;
mod chain;
#[cfg(feature = "conformance")]
pub mod conformance;
mod current;
mod engine;
pub mod error;
#[cfg(feature = "sql")]
mod fence;
mod guard;
mod health;
pub mod key;
mod manager;
pub mod options;
pub mod store;

pub use builder::{LockManagerBuilder, StoreSource};
pub use current::{CurrentLock, current, inherit};
pub use error::{LockError, LostReason};
#[cfg(feature = "sql")]
pub use fence::FenceConnection;
pub use guard::LockGuard;
pub use health::Health;
pub use key::Key;
pub use manager::{LockManager, install};
pub use options::{LockOptions, OnLost};
pub use store::{InspectFilter, LockRow};

#[cfg(feature = "macros")]
pub use dblock_macros::distributed_lock;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
