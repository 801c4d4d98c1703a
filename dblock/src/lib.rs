//! Run an async method under a distributed lock, kept in the database you already have.
//!
//! ```
//! use dblock::{LockError, LockManager, distributed_lock};
//!
//! struct Orders {
//!     locks: LockManager,
//! }
//!
//! impl Orders {
//!     #[distributed_lock(key = "order:{id}", ttl = "30s", wait = "5s", manager = self.locks)]
//!     async fn settle(&self, id: u64) -> Result<&'static str, LockError> {
//!         // Only one node is in here for this order.
//!         Ok("settled")
//!     }
//! }
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let orders = Orders { locks: LockManager::connect("memory:").await? };
//! assert_eq!(orders.settle(42).await?, "settled");
//! # Ok::<_, LockError>(()) }).unwrap();
//! ```
//!
//! # Which call
//! - [`macro@distributed_lock`] on the method, or [`LockManager::with`] around a future: the lock cannot
//!   outlive the work, and the work cannot outlive the lease.
//! - [`LockManager::acquire`] for a [`LockGuard`] that your code passes around and releases;
//!   [`LockManager::try_acquire`] when busy is an ordinary answer.
//! - [`current`] inside of a body: the fence token, what is left of the lease, the fence check in a
//!   transaction of yours.
//! - [`inherit`] around a future that is spawned and shares the lock.
//!
//! # What holds
//! At most one owner is inside of a key at any time, over tasks, processes and machines, as long as bodies
//! reach an await, the host is not suspended, and the database keeps its clock and its commits. Outside of that
//! the fence token protects: it is larger for each lease of a key. The README has the limits in plain words.
//!
//! An owner is a call chain, not a thread: a nested call with the same key re-enters, and the row counts
//! the holds. A spawned task is a new owner unless it is wrapped by [`inherit`].
//!
//! # Cancel safety
//! Every future of this crate can be dropped at any point. No statement is driven by the caller's future, so
//! dropping one breaks no connection and leaves no lock: what was granted is released in the background.
//!
//! # Runtimes
//! A manager of a database has a thread with a tokio runtime of its own, and at most four connections.
//! Its futures can be awaited on any runtime. The memory store alone runs on the tokio runtime
//! that builds its manager, and follows its paused time.
//!
//! # Features
//! `macros` (default), the stores `postgres`, `mysql` and `sqlite`, and TLS for the drivers as `tls-…`.
//!
//! The crate `dblock-conformance` has the suite for stores of your own.

mod body;
mod builder;
mod chain;
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
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation;
pub mod store;

pub use builder::{LockManagerBuilder, StoreSource};
pub use current::{CurrentLock, current, inherit};
pub use error::{LockError, LostReason, TimeoutCause};
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
