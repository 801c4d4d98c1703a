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
//!         // Only one node runs this for a given order.
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
//! - [`macro@distributed_lock`] on the method, or [`locks.lock(keys)`](LockManager::lock)`.run(body)` around a
//!   future: the lock cannot outlive the work, and the work cannot outlive the lease.
//! - The attribute on a plain `fn`, or [`blocking_run(body)`](LockBuilder::blocking_run), for code that is not async:
//!   a lost lease cannot stop it. [`LockManager::block_on`] is for all other calls.
//! - `locks.lock(key).transaction(&pool, body)` for work in the database that keeps the lock: the commit of
//!   its transaction frees the lock, together with the work.
//! - [`locks.lock(keys).acquire()`](LockBuilder::acquire) for a [`LockGuard`] that your code passes around and
//!   releases; [`try_acquire()`](LockBuilder::try_acquire) when busy is an ordinary answer.
//! - [`locks.lock(key).lead(body)`](LockBuilder::lead) for work of one node at a time, for as long as it lives.
//! - [`locks.admin()`](LockManager::admin) for what operators ask and do. [`is_locked`](Admin::is_locked) and
//!   [`get`](Admin::get) look at a key without taking it.
//! - [`current`] in a body: the fence token, the time left of the lease, and the fence check in your
//!   transaction. [`current_locks`] lists all locks around it.
//! - [`inherit`] around a spawned future that shares the lock, [`inherit_blocking`] around a closure for another thread.
//! - [`macro@optimistic_retry`] on a method that changes a row by its version, without a lock: see
//!   [`optimistic`].
//!
//! # What holds
//! At most one owner holds a key at any time, across tasks, processes and machines. This needs bodies that
//! reach an await, a host that is not suspended, and a database whose clock does not jump ahead and that
//! loses no commit. Where one of these fails, the fence token protects: it grows with each owner of a key.
//! The README describes the limits.
//!
//! An owner is a call chain, not a thread: a nested call with the same key re-enters, and the row counts
//! the holds. A spawned task or thread is a new owner unless it is wrapped by [`inherit`] or [`inherit_blocking`].
//!
//! # Cancel safety
//! Every future of this crate can be dropped at any point. It runs no statement itself, except those in a
//! transaction of yours. So dropping it breaks no connection of the manager and leaves no lock behind: a lock
//! that was granted is released in the background.
//!
//! # Runtimes
//! A manager of a database has its own thread with a tokio runtime, and opens at most four connections. Its
//! futures can be awaited on any runtime, except those whose section "Panics" says that they need tokio, such
//! as that of [`lead`](LockBuilder::lead). Only a manager of the memory store runs on the tokio runtime that builds
//! it, and follows that runtime's paused time.
//!
//! # Features
//! - `macros`, which is on by default: the attributes.
//! - `postgres`, `mysql` and `sqlite`: the stores.
//! - `tls-…`: TLS for the drivers.
//! - `run_once`: work whose outcome is remembered ([`LockManager::run_once`]).
//! - `metrics`: records metrics through the crate `metrics`. Install its recorder before the first manager is
//!   built.
//! - `serde`: options and settings from a configuration file.
//!
//! The crate `dblock-conformance` has the suite for stores of your own.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod blocking;
mod body;
mod builder;
mod chain;
mod connect;
mod current;
mod engine;
#[cfg(feature = "sql")]
pub mod fence;
mod guard;
mod health;
mod manager;
mod meter;
#[cfg(feature = "run_once")]
mod once;
#[doc(hidden)]
pub mod open;
pub mod optimistic;
#[cfg(feature = "serde")]
mod settings;
pub mod store;
mod ticket;
#[cfg(feature = "sql")]
mod transaction;
mod url;

#[cfg(feature = "run_once")]
use dblock_core::runs;

pub use builder::LockManagerBuilder;
pub use current::{CurrentLock, current, current_locks, inherit, inherit_blocking};
pub use dblock_core::Waiting;
pub use dblock_core::{Finding, InspectFilter, LockRow, OpenTransaction, RowPosition, Severity};
pub use dblock_core::{InvalidKey, Key, LockError, LockOptions, LostReason, OnLost, RunError, TimeoutCause};
pub use guard::LockGuard;
pub use health::Health;
pub use manager::{Admin, AlreadyInstalled, LockBuilder, LockKeys, LockManager, install};
#[cfg(feature = "run_once")]
pub use once::{Fingerprint, Once, Remembered, Resolution, Run, RunOptions, RunRecord, current_run};
#[cfg(feature = "run_once")]
pub use runs::OnCrash;
#[cfg(feature = "serde")]
pub use settings::ManagerSettings;
pub use store::source::{Source, StoreSource};
pub use ticket::Ticket;
#[cfg(feature = "sql")]
pub use transaction::{LockedTransaction, begin};

#[cfg(all(feature = "macros", feature = "run_once"))]
pub use dblock_macros::run_once;
#[cfg(feature = "macros")]
pub use dblock_macros::{distributed_lock, optimistic_retry};

#[doc(hidden)]
#[path = "private.rs"]
pub mod __private;
