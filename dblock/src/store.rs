//! The contract between the engine and the stores, which keep the rows.
//!
//! A store executes requests. It has no memory of its own, decides nothing about waiting, and never
//! retries an acquire. The clock of its database alone decides when a lease expires.
//!
//! # The row
//! `lock_key` (primary key), `lock_owner`, `reentrant_count`, `expire_at`, `lease_id`, `fence_token`,
//! `fence_ceiling`, `wanted_until`, `acquired_at`, `holder`, `revoked`. All times are µs since the Unix
//! epoch on the store's clock, read at the statement (called *now* below). A row is **free** when
//! `reentrant_count` is 0, **held** when the count is above 0 and `expire_at > now`, and **expired**
//! otherwise. Rows stay after a release.
//!
//! A held row may name a **successor**, the lease of another process that waits for the key: `next_lease`,
//! `next_owner`, `next_holder`, `next_ttl`, `next_spare`, `next_since` and `next_until`. It is *live* while
//! `next_until > now`. The release of the row passes it on to a live successor. On a row that is free or
//! expired these columns mean nothing.

#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod busy_keys;
#[cfg(feature = "sql")]
pub(crate) mod conflict;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) mod connect_options;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod connections;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod diagnosis;
#[cfg(feature = "sql")]
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(
        dead_code,
        unused_imports,
        unused_macros,
        reason = "without a database there is the trait alone"
    )
)]
pub(crate) mod fence;
#[cfg(feature = "run_once")]
pub(crate) mod kept;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod schema;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod servers;
pub(crate) mod source;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) mod sql_error;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sql_row;
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql", feature = "sqlite")),
    allow(dead_code, reason = "without a database a table is only named")
)]
pub(crate) mod table;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod url;

pub(crate) mod memory;
#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(crate) use dblock_core::OpenTransaction;
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
pub(crate) use dblock_core::Severity;
pub(crate) use dblock_core::store::Kind;
pub use dblock_core::store::{
    Acquire, Action, Capabilities, Extend, HandedOver, Holder, NEXT_TTL, Outcome, Purged, QUEUE_AHEAD,
    Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordVersion, RecordWrite, Records,
    Released, Request, RunState, Store, StoreError, StoreErrorKind, StoreFuture, Successor, WakeUp,
    WriteLease, clock, rules,
};
pub(crate) use dblock_core::{Finding, InspectFilter, LockRow};

pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
#[doc(hidden)]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub use postgres::PostgresStore;
