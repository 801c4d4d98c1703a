//! A handle to the engine: to run a task on its runtime, to shut it down, and to acquire (`acquire`).

mod reads;
mod tasks;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::env::Time;
#[cfg(feature = "sql")]
use dblock_core::machine::key::Left;
use tokio::sync::{mpsc, oneshot};

use self::reads::Reads;
use self::tasks::Task;
pub(crate) use self::tasks::{Permit, Permits};
use super::shared::Shared;
#[cfg(feature = "sql")]
use crate::Key;
use crate::meter::Site;
use crate::store::LockRow;
#[cfg(feature = "sql")]
use crate::store::fence::FenceSource;
#[cfg(feature = "run_once")]
use crate::store::{Record, kept};
use dblock_core::Wait;

/// Time limit of the store for a caller that does not wait for the lock.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to the engine. The engine stops when the last handle is dropped and everything is released.
#[derive(Clone)]
pub(crate) struct EngineHandle(Arc<Alive>);

/// Exists while there is a handle. The driver's inbox ends when the last handle is dropped. See
/// [`Cell`](super::cells::Cell) for its place in memory.
#[repr(align(128))]
pub(crate) struct Alive {
    pub(super) shared: Arc<Shared>,
    commands: mpsc::UnboundedSender<Command>,
    #[cfg(any(feature = "sql", feature = "run_once"))]
    rows: Reads<LockRow>,
    /// Rows that nobody needs to go on.
    looks: Reads<LockRow>,
    #[cfg(feature = "sql")]
    free_rows: Reads<bool>,
    #[cfg(feature = "run_once")]
    records: Reads<Record>,
}

/// A command to the driver. The rest of its work is in the schedule.
pub(super) enum Command {
    /// Work on the store outside of the lock protocol: migration, inspection, an operator's call, a record.
    Run(Box<Task>),
    /// Refuse new outermost acquires, end the leases that are left after the grace, then stop.
    Shutdown {
        grace: Duration,
        done: oneshot::Sender<()>,
    },
}

impl EngineHandle {
    pub(super) fn new(shared: Arc<Shared>, commands: mpsc::UnboundedSender<Command>) -> Self {
        Self(Arc::new(Alive {
            shared,
            commands,
            #[cfg(any(feature = "sql", feature = "run_once"))]
            rows: Reads::new(Permit::Rows, |store, keys| store.rows(keys)),
            looks: Reads::new(Permit::Admin, |store, keys| store.rows(keys)),
            #[cfg(feature = "sql")]
            free_rows: Reads::new(Permit::Rows, |store, keys| {
                Box::pin(async {
                    let made = store.make_free_rows(keys).await;
                    keys.iter().map(|_| made.clone().map(Some)).collect()
                })
            }),
            #[cfg(feature = "run_once")]
            records: Reads::new(Permit::Records, kept::read_all),
        }))
    }

    /// Identifies the engine among those of this process.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// The metrics of a function that takes locks here.
    pub(crate) fn site(&self, function: Option<&'static str>) -> &Site {
        self.shared.meter.site(function)
    }

    /// The time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// The data for a fence check in a user's transaction. To be asked for when there is a lease: by then the store
    /// has been connected.
    #[cfg(feature = "sql")]
    pub(crate) fn fence_source(&self, key: &Key) -> Option<&FenceSource> {
        self.fence_source_if(key, |_| true)
    }

    /// The data for a transaction that takes the key itself, if it can.
    #[cfg(feature = "sql")]
    pub(crate) fn source_to_take(&self, key: &Key) -> Option<&FenceSource> {
        self.fence_source_if(key, FenceSource::takes)
    }

    #[cfg(feature = "sql")]
    fn fence_source_if(&self, key: &Key, test: impl FnOnce(&FenceSource) -> bool) -> Option<&FenceSource> {
        let part = self.shared.store.part_of(key);
        let known = self.shared.fence_sources.get(part)?;
        if let Some(source) = known.get() {
            return test(source).then_some(source);
        }
        let source = FenceSource::of(&*self.shared.store, part).filter(test)?;
        Some(known.get_or_init(|| source))
    }

    /// When the timeout of a caller that came at `since` passes.
    pub(crate) fn deadline(since: Time, wait: Wait) -> Option<Time> {
        match wait {
            Wait::No => Some(since + STORE_TIMEOUT),
            Wait::For(wait) => Some(since + wait),
            Wait::Forever => None,
        }
    }

    /// The lease of a key that a transaction keeps although the call that took it has returned. The
    /// transaction may have ended unnoticed.
    #[cfg(feature = "sql")]
    pub(crate) fn left_in_transaction(&self, key: &Key) -> Option<Left> {
        self.shared.left_in_transaction(key)
    }

    pub(crate) async fn shutdown(&self, grace: Duration) {
        let (done, answer) = oneshot::channel();
        self.shared.stop_granting();
        self.send(Command::Shutdown { grace, done });
        // An engine that has ended has nothing left to shut down.
        let _ = answer.await;
    }

    /// Completes when no new outermost lock is granted any more.
    pub(crate) async fn stopping(&self) {
        // Registers first, so that a stop before the await is seen.
        let told = self.shared.stops.notified();
        if !self.shared.stopping.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// A stopped engine drops the command, and with it the reply's sender. The caller sees that.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

impl Deref for EngineHandle {
    type Target = Alive;

    fn deref(&self) -> &Alive {
        &self.0
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineHandle").field(&self.shared.id).finish()
    }
}
