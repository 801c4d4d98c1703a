//! The engine: everything between a manager and its store. It knows no SQL.
//!
//! - [`machine`](dblock_core::machine) decides, one machine a key, without I/O.
//! - [`cells`] keeps the machines.
//! - [`shared`] calls them, carries out what they want done, and schedules what is to be sent and looked at.
//! - [`handle`], [`acquire`], [`turn`], [`hold`] and [`lease`] are what the manager and its guards call. Callers step a
//!   machine themselves when they acquire, enter, leave, give up, or ask for a fence check or another ttl.
//!   None of their futures ever drives a statement.
//! - [`watch`] looks around once a second for a caller that waits.
//! - [`driver`] sends the requests and feeds the answers back. It has a thread of its own, so that nothing
//!   that the application does to its runtime can stop renewals and releases. Only a store that answers at
//!   once, in memory, is asked in the caller's own thread.

mod acquire;
mod cells;
mod clock;
mod driver;
mod handle;
mod hold;
mod lease;
mod report;
mod shared;
mod sync;
mod turn;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

pub(crate) use self::driver::purge;
#[cfg(any(feature = "sql", feature = "run_once"))]
pub(crate) use self::handle::STORE_TIMEOUT;
pub(crate) use self::handle::{EngineHandle, Permit};
#[cfg(feature = "sql")]
pub(crate) use self::hold::EndsOthers;
pub(crate) use self::hold::Hold;
#[cfg(feature = "run_once")]
pub(crate) use self::lease::InRun;
pub(crate) use self::lease::Lease;
pub(crate) use self::shared::Settings;
#[cfg(feature = "sql")]
pub(crate) use self::turn::{Entered, TurnToTake};
pub(crate) use dblock_core::machine::call::{Begin, Call};
pub(crate) use dblock_core::machine::env::Time;
pub(crate) use dblock_core::machine::out::Unconfirmed;

use self::driver::Driver;
use self::shared::Shared;
use crate::LockError;
use crate::health::HealthBoard;
use crate::store::{Store, StoreError, StoreErrorKind};

/// Starts an engine for `store`: on a thread with a runtime of its own, or on the caller's runtime if the
/// store asks for that and there is one.
pub(crate) fn start(
    store: Arc<dyn Store>,
    settings: Settings,
    health: Arc<HealthBoard>,
) -> Result<EngineHandle, LockError> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let on_callers_runtime = store.capabilities().callers_runtime;
    let callers = on_callers_runtime.then(tokio::runtime::Handle::try_current);
    let (commands, inbox) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::new(id, store, settings, health));
    let driver = Driver::new(Arc::clone(&shared), inbox);
    let purge_after = settings.purge_after;
    if let Some(Ok(runtime)) = callers {
        runtime.spawn(driver.run(purge_after));
    } else {
        let failed = |error: std::io::Error| {
            let error = StoreError::new(
                StoreErrorKind::Other,
                "the lock engine's thread cannot be started",
            )
            .with_source(error);
            LockError::store(error)
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        std::thread::Builder::new()
            .name("dblock-engine".into())
            .spawn(move || runtime.block_on(driver.run(purge_after)))
            .map_err(failed)?;
    }
    Ok(EngineHandle::new(shared, commands))
}
