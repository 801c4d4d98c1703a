//! dblock

pub mod error;
pub mod key;
pub mod options;
pub mod store;

pub use error::{LockError, LostReason};
pub use key::Key;
pub use options::{LockOptions, OnLost};

pub use __private::LockManager;

#[cfg(feature = "macros")]
pub use dblock_macros::distributed_lock;

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
