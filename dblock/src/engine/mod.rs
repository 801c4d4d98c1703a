//! The engine: one task that owns every statement of a manager.
//!
//! Callers send it commands and get replies; none of their futures ever drives a statement, so cancelling
//! one can neither break a connection nor leave a grant that nobody took. The engine knows no SQL.
//!
//! - [`driver`] is the loop: commands in, batches out, timers.
//! - [`key_state`] decides what to ask the store for one key next: its [`holding`] is the grant that this
//!   process has, its [`queue`] says when to ask for another one, with [`turns`] among processes that want it, and its
//!   [`orphan`]s are the leases that nobody took.
//! - [`line`] and [`grant`] are what callers and the engine share: who waits, and who is inside. An owner that
//!   leaves lets the next in line in without the engine and the store. [`lease`] is an owner's view of a grant.
//! - [`lanes`] say when a batch may go out, and [`gather`] when a batch waits for more.
//! - [`listener`] hears of releases by other processes; [`purge`] deletes rows that nobody uses any more.

mod batch;
mod driver;
mod gather;
mod grant;
mod holding;
mod key_state;
mod lanes;
pub(crate) mod lease;
mod line;
mod listener;
mod orphan;
pub(crate) mod purge;
mod queue;
mod stop;
mod terms;
mod turns;
mod waiter;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::error::LockError;
use crate::health::HealthBoard;
use crate::store::{FenceSource, Store, StoreError, StoreErrorKind, StoreFuture};
use lease::{Hold, Lease, Left};
pub(crate) use waiter::{AcquireCall, STORE_PATIENCE};
use waiter::{Syncer, Waiter};

/// What callers tell the engine.
enum Command {
    /// A caller wants a lock.
    Acquire(Box<Waiter>),
    /// A caller in the queue for this key has gone away.
    Abandoned(crate::Key, u64),
    /// The holds of a lease have changed, or a caller wants them confirmed.
    Holds(Lease, Option<Syncer>),
    /// Work on the store outside the lock protocol: migration, inspection, an operator's orders.
    Run(Box<Errand>),
    /// Refuse new outermost acquires, end what is left after the grace, then stop.
    Shutdown {
        grace: Duration,
        done: oneshot::Sender<()>,
    },
}

/// Work that gets the store and the semaphore of which it must have a permit while it uses the store.
type Errand = dyn FnOnce(Arc<dyn Store>, Arc<Semaphore>) -> StoreFuture<'static, ()> + Send;

/// A line to the engine. The engine stops when the last one is gone and everything is released.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    about: Arc<About>,
    commands: mpsc::UnboundedSender<Command>,
}

/// What a manager's builder says of its engine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// Locks may be handed on inside the process without the store.
    pub(crate) hand_over: bool,
    /// How long a row must have been idle to be deleted in the background; `None` for never.
    pub(crate) purge_after: Option<Duration>,
}

/// What never changes about an engine.
#[derive(Debug)]
struct About {
    id: u64,
    #[cfg_attr(not(feature = "sql"), allow(dead_code))]
    fence_source: Option<FenceSource>,
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineHandle").field(&self.about).finish()
    }
}

/// A handle that does not keep the engine alive.
struct WeakEngine {
    about: Arc<About>,
    commands: mpsc::WeakUnboundedSender<Command>,
}

impl WeakEngine {
    fn upgrade(&self) -> Option<EngineHandle> {
        self.commands.upgrade().map(|commands| EngineHandle {
            about: Arc::clone(&self.about),
            commands,
        })
    }
}

/// Starts an engine for `store`: on a thread with a runtime of its own, so that nothing the application
/// does to its own runtime can stop renewals and releases; or on the caller's runtime if the store asks
/// for that.
pub(crate) fn start(
    store: Arc<dyn Store>,
    settings: Settings,
    health: Arc<HealthBoard>,
) -> Result<EngineHandle, LockError> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    let (commands, inbox) = mpsc::unbounded_channel();
    let about = Arc::new(About {
        id,
        fence_source: store.fence_source(),
    });
    let weak = WeakEngine {
        about: Arc::clone(&about),
        commands: commands.downgrade(),
    };
    let on_callers_runtime = store.capabilities().callers_runtime;
    let engine = driver::drive(store, settings, inbox, weak, health);
    if on_callers_runtime {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            LockError::invalid(
                "this store runs on the caller's runtime: build the manager inside a tokio runtime",
            )
        })?;
        runtime.spawn(engine);
    } else {
        let failed = |error: std::io::Error| {
            LockError::store(
                StoreError::new(
                    StoreErrorKind::Other,
                    "the lock engine's thread cannot be started",
                )
                .with_source(error),
            )
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        std::thread::Builder::new()
            .name("dblock-engine".into())
            .spawn(move || runtime.block_on(engine))
            .map_err(failed)?;
    }
    Ok(EngineHandle { about, commands })
}

impl EngineHandle {
    /// Tells the engines of one process apart.
    pub(crate) fn id(&self) -> u64 {
        self.about.id
    }

    /// What a fence check in a transaction of the user's reads.
    #[cfg(feature = "sql")]
    pub(crate) fn fence_source(&self) -> Option<&FenceSource> {
        self.about.fence_source.as_ref()
    }

    /// Takes a lock. Dropping the future at any point leaves nothing behind: a grant that comes too late is
    /// released at once.
    pub(crate) async fn acquire(&self, call: AcquireCall) -> Result<Hold, LockError> {
        static NEXT_WAITER: AtomicU64 = AtomicU64::new(1);
        let key = call.key.clone();
        let (reply, answer) = oneshot::channel();
        let id = NEXT_WAITER.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter::new(id, call, reply);
        // `answer` is dropped before `gone`, so that the engine finds the caller gone when it looks.
        let mut gone = TellAbandoned {
            engine: self,
            call: Some((key.clone(), id)),
        };
        let answer = answer;
        self.send(Command::Acquire(Box::new(waiter)));
        let result = answer.await;
        gone.call = None;
        result.unwrap_or(Err(LockError::Shutdown { key: Some(key) }))
    }

    /// Waits until the row counts a hold that was entered, and the store says that the lease still holds.
    pub(crate) async fn confirm_entered(&self, lease: &Lease, deadline: Instant) -> Result<(), LockError> {
        let (reply, answer) = oneshot::channel();
        let since = Instant::now();
        let syncer = Syncer::Entering {
            since,
            deadline,
            reply,
        };
        self.confirm(lease, syncer, answer).await
    }

    /// Waits until the row names the lease's owner.
    #[cfg(feature = "sql")]
    pub(crate) async fn confirm_named(&self, lease: &Lease, deadline: Instant) -> Result<(), LockError> {
        let (reply, answer) = oneshot::channel();
        let since = Instant::now();
        let syncer = Syncer::Naming {
            since,
            deadline,
            reply,
        };
        self.confirm(lease, syncer, answer).await
    }

    async fn confirm(
        &self,
        lease: &Lease,
        syncer: Syncer,
        answer: oneshot::Receiver<Result<(), LockError>>,
    ) -> Result<(), LockError> {
        self.send(Command::Holds(lease.clone(), Some(syncer)));
        answer.await.unwrap_or_else(|_| {
            Err(LockError::Shutdown {
                key: Some(lease.terms.key.clone()),
            })
        })
    }

    async fn confirm_left(&self, lease: &Lease, deadline: Instant) -> Left {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Holds(
            lease.clone(),
            Some(Syncer::Leaving { deadline, reply }),
        ));
        answer.await.unwrap_or(Left::Unconfirmed(None))
    }

    fn note_holds(&self, lease: &Lease) {
        self.send(Command::Holds(lease.clone(), None));
    }

    /// Runs `work` on the engine's runtime, for at most `limit`.
    pub(crate) async fn run<T, W, F>(&self, limit: Duration, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Run(Box::new(move |store, turn| {
            Box::pin(async move {
                let in_turn = async {
                    let _turn = turn.acquire().await;
                    work(store).await
                };
                let result = tokio::time::timeout(limit, in_turn).await.unwrap_or_else(|_| {
                    let message = format!("the database has not answered within {limit:?}");
                    Err(StoreError::new(StoreErrorKind::Interrupted, message))
                });
                let _ = reply.send(result);
            })
        })));
        match answer.await {
            Ok(result) => result.map_err(LockError::store),
            Err(_) => Err(LockError::Shutdown { key: None }),
        }
    }

    pub(crate) async fn shutdown(&self, grace: Duration) {
        let (done, answer) = oneshot::channel();
        self.send(Command::Shutdown { grace, done });
        // An engine that is gone has nothing left to shut down.
        let _ = answer.await;
    }

    /// An engine that has stopped drops the command, and with it the reply's sender: the caller sees that.
    fn send(&self, command: Command) {
        let _ = self.commands.send(command);
    }
}

/// Tells the engine when an acquire is dropped before its answer.
struct TellAbandoned<'a> {
    engine: &'a EngineHandle,
    call: Option<(crate::Key, u64)>,
}

impl Drop for TellAbandoned<'_> {
    fn drop(&mut self) {
        if let Some((key, id)) = self.call.take() {
            self.engine.send(Command::Abandoned(key, id));
        }
    }
}
