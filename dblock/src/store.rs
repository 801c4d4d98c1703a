//! The contract between the engine and the stores, which keep the rows.
//!
//! [`dblock_core::store`] says what a store does and what a row is; the rules are those of [`Store::apply`].

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
#[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod sharing;
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
pub use dblock_core::store::schemes;
pub use dblock_core::store::{
    Acquire, Action, Capabilities, Enter, Extend, HandedOver, Holder, NEXT_TTL, Outcome, Purged, QUEUE_AHEAD,
    Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordVersion, RecordWrite, Records,
    Released, Request, RunState, Share, SharedHold, Store, StoreError, StoreErrorKind, StoreFuture,
    Successor, Transfer, WakeUp, WriteLease, clock, rules,
};
pub(crate) use dblock_core::{Finding, InspectFilter, LockRow};

pub use memory::MemoryStore;
#[cfg(feature = "mysql")]
#[doc(hidden)]
pub use mysql::MySqlStore;
#[cfg(feature = "postgres")]
#[doc(hidden)]
pub use postgres::PostgresStore;
