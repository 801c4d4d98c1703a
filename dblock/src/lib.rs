//! dblock

#[cfg(feature = "conformance")]
pub mod conformance;
pub mod error;
pub mod key;
pub mod options;
pub mod store;

pub use error::{LockError, LostReason};
pub use key::Key;
pub use options::{LockOptions, OnLost};

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
