//! The calls of a manager: acquire a lock, run a task on the engine's runtime, shut down.

#[cfg(any(feature = "sql", feature = "run_once"))]
mod reads;
mod tasks;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
#[cfg(feature = "sql")]
use uuid::Uuid;

#[cfg(any(feature = "sql", feature = "run_once"))]
pub(super) use self::reads::Reads;
use self::tasks::Task;
pub(crate) use self::tasks::{Turn, Turns};
use super::cells::{Cell, Machine, ToAcquire};
use super::core::call::Call;
use super::core::env::Env;
use super::core::time::Time;
use super::hold::Hold;
use super::resumption::Resuming;
use super::shared::{Shared, Unscheduled};
use crate::error::LockError;
use crate::key::Key;
use crate::meter::{AcquireOutcome, Site};
use crate::options::Wait;
#[cfg(feature = "sql")]
use crate::store::fence::FenceSource;

/// Time limit of the store for a caller that does not wait for the lock.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A handle to the engine. The engine stops when the last handle is dropped and everything is released.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    shared: Arc<Shared>,
    alive: Arc<Alive>,
}

/// Exists while there is a handle. The driver's inbox ends when the last handle is dropped.
pub(super) struct Alive {
    pub(super) commands: mpsc::UnboundedSender<Command>,
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
    pub(super) fn new(shared: Arc<Shared>, alive: Arc<Alive>) -> Self {
        Self { shared, alive }
    }

    /// Identifies the engine among those of this process.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// The metrics of a function that takes locks here.
    pub(crate) fn site(&self, function: Option<&'static str>) -> Site {
        self.shared.meter.site(function)
    }

    /// The time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// The data for a fence check in a user's transaction.
    #[cfg(feature = "sql")]
    pub(crate) fn fence_source(&self, key: &Key) -> Option<&FenceSource> {
        let part = self.shared.store.part_of(key);
        let source = self.shared.fence_sources.get(part)?;
        source
            .get_or_init(|| FenceSource::of(&*self.shared.store, part))
            .as_ref()
    }

    /// When the timeout of a caller that comes now passes.
    pub(crate) fn deadline(&self, wait: Wait) -> Option<Time> {
        match wait {
            Wait::No => Some(self.now() + STORE_TIMEOUT),
            Wait::For(wait) => Some(self.now() + wait),
            Wait::Forever => None,
        }
    }

    /// Takes a lock. It is asked for at once, so that the future need not keep the call: it only waits for
    /// the answer. Dropping it at any point leaves no lock behind: a grant that arrives later goes to the
    /// next caller of this process, or is released. The row may say for 3 s more that somebody waits.
    pub(crate) fn acquire(
        &self,
        key: &Key,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        self.ask_alone(key, call, Machine::acquire)
    }

    /// The lease of a key that a transaction keeps although the call that took it has returned. The
    /// transaction may have ended unnoticed.
    #[cfg(feature = "sql")]
    pub(crate) fn left_in_transaction(&self, key: &Key) -> Option<(Uuid, i64)> {
        self.shared.left_in_transaction(key)
    }

    /// Another call in the transaction that keeps this lease. Fails when the lease is over meanwhile.
    #[cfg(feature = "sql")]
    pub(crate) fn enter_again(
        &self,
        key: &Key,
        lease_id: Uuid,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        self.ask_alone(key, call, move |machine, env, call, to| {
            machine.enter_in_transaction(env, lease_id, call, to);
            // It does not wait.
            0
        })
    }

    /// Takes several locks. Their requests go together. Returns the holds on the keys before the first one
    /// that is refused, and why that is; the rest is given up. Dropping the future at any point leaves
    /// nothing behind.
    pub(crate) async fn acquire_together(
        &self,
        keys: &[&Key],
        call: &Arc<Call>,
    ) -> (Vec<Hold>, Option<LockError>) {
        let mut all = Vec::with_capacity(keys.len());
        let mut unscheduled = Vec::with_capacity(keys.len());
        for key in keys {
            all.push(
                self.ask(key, Arc::clone(call), Machine::acquire)
                    .map(|(asked, more)| {
                        unscheduled.extend(more);
                        asked
                    }),
            );
        }
        self.shared.put(unscheduled);
        let mut holds = Vec::with_capacity(all.len());
        for asked in all {
            let answer = match asked {
                Ok(asked) => asked.answer().await,
                Err(refused) => Err(refused),
            };
            match answer {
                Ok(hold) => holds.push(hold),
                Err(refused) => return (holds, Some(refused)),
            }
        }
        (holds, None)
    }

    fn ask_alone(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> u64,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        let asked = self.ask(key, call, asks).map(|(asked, unscheduled)| {
            self.shared.put(unscheduled);
            asked
        });
        async { asked?.answer().await }
    }

    /// Puts a caller into the wait queue of its key. The key still has to be put into the schedule.
    fn ask(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> u64,
    ) -> Result<(Asked<'_>, Option<Unscheduled>), LockError> {
        let shared = &self.shared;
        let site = shared.meter.site(call.options.function);
        let refused = |site: &Site| {
            site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
            LockError::shutdown(Some(key.to_typed()))
        };
        if shared.stopping.load(Ordering::Acquire) && !call.nested || shared.stopped.load(Ordering::Acquire) {
            return Err(refused(&site));
        }
        let since = self.now();
        let (to, answer) = oneshot::channel();
        let (of_key, number, unscheduled) = shared.step_new(key, |machine, env| asks(machine, env, call, to));
        let asked = Asked {
            answer,
            gone: GiveUp {
                shared,
                cell: Some(of_key),
                // A machine that panicked has answered.
                number: number.unwrap_or_default(),
                site,
                since,
            },
        };
        if shared.stopped.load(Ordering::Acquire) {
            // The engine may have ended just before this acquire.
            return Err(refused(&asked.gone.site));
        }
        Ok((asked, unscheduled))
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
        // Told from here on, so a stop between the look and the await is not missed.
        let told = self.shared.stops.notified();
        if !self.shared.stopping.load(Ordering::Acquire) {
            told.await;
        }
    }

    /// A stopped engine drops the command, and with it the reply's sender. The caller sees that.
    fn send(&self, command: Command) {
        let _ = self.alive.commands.send(command);
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineHandle").field(&self.shared.id).finish()
    }
}

/// An acquire that waits for its answer. Dropping it gives it up.
struct Asked<'a> {
    // Dropped before `gone`: a hold that arrived too late is released first.
    answer: oneshot::Receiver<(Result<Hold, LockError>, Option<Resuming>)>,
    gone: GiveUp<'a>,
}

impl Asked<'_> {
    async fn answer(mut self) -> Result<Hold, LockError> {
        let site = &self.gone.site;
        let mut waiting = None;
        let answer = poll_fn(|context| {
            let polled = Pin::new(&mut self.answer).poll(context);
            if polled.is_pending() {
                waiting.get_or_insert_with(|| site.waits());
            }
            polled
        });
        let answer = answer.await;
        let cell = self.gone.cell.take();
        answer.map_or_else(
            |_| {
                site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
                let key = cell.map(|cell| cell.key().to_typed());
                Err(LockError::shutdown(key))
            },
            |(answer, _)| answer,
        )
    }
}

/// Tells the machine when an acquire is dropped before its answer.
struct GiveUp<'a> {
    shared: &'a Arc<Shared>,
    cell: Option<Arc<Cell>>,
    number: u64,
    site: Site,
    since: Time,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            let waited = self.shared.clock.now().since(self.since);
            self.site.acquire_ended(AcquireOutcome::Dropped, waited);
            let number = self.number;
            self.shared
                .step(&cell, |machine, env| machine.give_up(env, number));
        }
    }
}
