//! What the manager and its guards call: acquire, enter, leave, and what a lease looks like to its owner.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

use super::core::key::{Confirm, Event, Waiter};
use super::core::ownership::{Call, Ownership};
use super::core::time::Time;
use super::report;
use super::shared::{Cell, Shared};
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::options::{LockOptions, OnLost, Wait};
#[cfg(feature = "sql")]
use crate::store::FenceSource;
use crate::store::{Store, StoreError, StoreErrorKind, StoreFuture};

/// How long the store may take for a caller that does not wait for the lock.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A line to the engine. The engine stops when the last one is gone and everything is released.
#[derive(Clone)]
pub(crate) struct EngineHandle {
    shared: Arc<Shared>,
    alive: Arc<Alive>,
}

/// There is a handle. The driver hears when the last one goes.
pub(super) struct Alive {
    pub(super) commands: mpsc::UnboundedSender<Command>,
}

/// What the driver is told, beside what is in the schedule.
pub(super) enum Command {
    /// Work on the store outside of the lock protocol: migration, inspection, an operator's orders.
    Run(Box<AdminTask>),
    /// Refuse new outermost acquires, end what is left after the grace, then stop.
    Shutdown {
        grace: Duration,
        done: oneshot::Sender<()>,
    },
}

/// Work that gets the store and the semaphore of which it must have a permit while it uses the store.
pub(super) type AdminTask = dyn FnOnce(Arc<dyn Store>, Arc<Semaphore>) -> StoreFuture<'static, ()> + Send;

/// What a caller asks for.
#[derive(Debug)]
pub(crate) struct AcquireCall {
    pub(crate) key: Key,
    pub(crate) owner: Uuid,
    pub(crate) holder: Arc<str>,
    pub(crate) options: LockOptions,
    /// The call chain holds another lock: it is let in even while the manager shuts down.
    pub(crate) nested: bool,
}

/// Where the answer to a caller goes. The caller drops the second part as soon as it runs again.
#[derive(Debug)]
pub(crate) enum Ticket {
    Acquire(oneshot::Sender<(Result<Hold, LockError>, Option<Resuming>)>),
    Confirm(oneshot::Sender<(Result<(), Unconfirmed>, Option<Resuming>)>),
}

/// More callers than that keep everyone busy: the next batch is carried out while those of the last one come to run.
const MOST_WAITED_FOR: usize = 64;

/// The callers that a batch has answered and that do not run yet. They are likely to ask for something at once: the next
/// batch waits a moment for them.
pub(super) struct Resumption {
    callers: AtomicUsize,
    /// A batch waits.
    waited_for: AtomicBool,
    shared: Arc<Shared>,
}

impl Resumption {
    pub(super) fn new(shared: &Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            callers: AtomicUsize::new(0),
            waited_for: AtomicBool::new(false),
            shared: Arc::clone(shared),
        })
    }

    /// Whether to wait: some callers do not run yet. The last of them wakes the driver.
    pub(super) fn wait(&self) -> bool {
        self.waited_for.store(true, Ordering::SeqCst);
        (1..=MOST_WAITED_FOR).contains(&self.callers.load(Ordering::SeqCst))
    }
}

/// One of the callers.
pub(crate) struct Resuming(Arc<Resumption>);

impl Resuming {
    pub(super) fn new(resumption: &Arc<Resumption>) -> Self {
        resumption.callers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(resumption))
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        let last = self.0.callers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.0.waited_for.load(Ordering::SeqCst) {
            self.0.shared.wake.notify_one();
        }
    }
}

impl fmt::Debug for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resuming")
    }
}

/// Why the row does not say what a caller did.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// The lease had ended before.
    Lost(LostReason),
    /// The store did not answer in time. The engine goes on trying.
    NoAnswer(Option<StoreError>),
}

impl EngineHandle {
    pub(super) fn new(shared: Arc<Shared>, alive: Arc<Alive>) -> Self {
        Self { shared, alive }
    }

    /// Tells the engines of one process apart.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// The time on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// What a fence check in a transaction of the user's reads.
    #[cfg(feature = "sql")]
    pub(crate) fn fence_source(&self) -> Option<&FenceSource> {
        self.shared.fence_source.as_ref()
    }

    /// Takes a lock. Dropping the future at any point leaves nothing behind: a grant that comes too late is
    /// released at once.
    pub(crate) async fn acquire(&self, call: AcquireCall) -> Result<Hold, LockError> {
        let shared = &self.shared;
        let refused = || LockError::Shutdown {
            key: Some(call.key.clone()),
        };
        if shared.stopping.load(Ordering::Acquire) && !call.nested || shared.stopped.load(Ordering::Acquire) {
            return Err(refused());
        }
        let options = &call.options;
        let since = self.now();
        let (reply, answer) = oneshot::channel();
        let asks = Waiter {
            call: Call {
                owner: call.owner,
                holder: Arc::clone(&call.holder),
                ttl: options.ttl,
                renew: options.renew,
                on_lost: options.on_lost,
                max_hold: options.max_hold,
                hold_min: options.hold_min,
                nested: call.nested,
            },
            since,
            deadline: match options.wait {
                Wait::No => Some(since + STORE_TIMEOUT),
                Wait::For(wait) => Some(since + wait),
                Wait::Forever => None,
            },
            non_blocking: options.wait == Wait::No,
            ticket: Ticket::Acquire(reply),
        };
        let (asked, number) = shared.acquire(&call.key, Box::new(asks));
        // Dropped before `gone`: a hold that came too late is released first.
        let mut gone = GiveUp {
            shared,
            cell: Some(asked),
            number,
        };
        let answer = answer;
        if shared.stopped.load(Ordering::Acquire) {
            // The engine may have ended just before the caller came.
            return Err(refused());
        }
        let result = answer.await;
        gone.cell = None;
        result.map_or_else(|_| Err(refused()), |(answer, _)| answer)
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
        self.shared.stopping.store(true, Ordering::Release);
        self.send(Command::Shutdown { grace, done });
        // An engine that is gone has nothing left to shut down.
        let _ = answer.await;
    }

    /// An engine that has stopped drops the command, and with it the reply's sender: the caller sees that.
    fn send(&self, command: Command) {
        let _ = self.alive.commands.send(command);
    }
}

impl fmt::Debug for EngineHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineHandle").field(&self.shared.id).finish()
    }
}

/// Tells the machine when an acquire is dropped before its answer.
struct GiveUp<'a> {
    shared: &'a Arc<Shared>,
    cell: Option<Arc<Cell>>,
    number: u64,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.shared.step(&cell, Event::GiveUp(self.number));
        }
    }
}

/// An ownership as its owner sees it. Cloning is cheap, and keeps nothing locked.
#[derive(Clone)]
pub(crate) struct Lease {
    shared: Arc<Shared>,
    cell: Arc<Cell>,
    ownership: Arc<Ownership>,
}

impl Lease {
    pub(super) fn new(shared: Arc<Shared>, cell: Arc<Cell>, ownership: Arc<Ownership>) -> Self {
        Self {
            shared,
            cell,
            ownership,
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.ownership.key
    }

    pub(crate) fn owner(&self) -> Uuid {
        self.ownership.call.owner
    }

    pub(crate) fn fence_token(&self) -> i64 {
        self.ownership.fence_token
    }

    #[cfg(feature = "sql")]
    pub(crate) fn id(&self) -> Uuid {
        self.ownership.lease_id
    }

    pub(crate) fn on_lost(&self) -> OnLost {
        self.ownership.call.on_lost
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Why the lease has ended for this owner, if it has. The first reason stays.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let now = self.now();
        let (reason, first) = self.ownership.look(now);
        if first && let Some(reason) = reason {
            // Whoever looks first after its time tells the others.
            report::lost(&self.ownership, reason, now);
            self.ownership.tell();
        }
        reason
    }

    /// Fails when the lease has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.lost_reason().map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    pub(crate) fn lost(&self, reason: LostReason) -> LockError {
        LockError::Lost {
            key: self.key().clone(),
            reason,
            fence_token: self.fence_token(),
            held: self.held(),
        }
    }

    /// What is left until the local deadline; zero when the lease has ended.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.now();
        self.ownership
            .deadline()
            .map_or(Duration::ZERO, |deadline| deadline.since(now))
    }

    /// For how long the owner has, or had, the lock.
    pub(crate) fn held(&self) -> Duration {
        self.ownership.held(self.now())
    }

    /// Completes when an operator has revoked the lease.
    pub(crate) async fn revoked(&self) {
        self.ownership.until(Ownership::is_revoked).await;
    }

    /// Completes when the lease has ended. Borrows nothing.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ownership = Arc::clone(&self.ownership);
        async move { ownership.until(|ownership| ownership.deadline().is_none()).await }
    }

    /// From here on the lock goes on through the store. With `named` it waits until the row names the owner.
    #[cfg(feature = "sql")]
    pub(crate) async fn pin(&self, named: bool) -> Result<(), LockError> {
        let pin = |confirm| Event::Pin(Arc::clone(&self.ownership), confirm);
        if named {
            let (confirm, answer) = confirm(self.now() + self.remaining());
            self.shared.step(&self.cell, pin(Some(confirm)));
            return self.confirmed(answer).await;
        }
        self.shared.step(&self.cell, pin(None));
        self.check()
    }

    /// A fence check has shown that the lease is gone.
    #[cfg(feature = "sql")]
    pub(crate) fn end_as_gone(&self) {
        self.shared
            .step(&self.cell, Event::Gone(Arc::clone(&self.ownership)));
    }

    async fn confirmed(&self, answer: Confirmation) -> Result<(), LockError> {
        let since = self.now();
        match answer.await.map(|(answer, _)| answer) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Unconfirmed::Lost(reason))) => Err(self.lost(reason)),
            Ok(Err(Unconfirmed::NoAnswer(error))) => Err(LockError::Store {
                key: Some(self.key().clone()),
                waited: self.now().since(since),
                source: error.unwrap_or_else(|| {
                    StoreError::new(
                        StoreErrorKind::Unreachable,
                        "the database has not answered in the time given",
                    )
                }),
            }),
            // Nobody is left to answer: the lease was forgotten, or the engine has ended.
            Err(_) => {
                self.check()?;
                Err(LockError::Shutdown {
                    key: Some(self.key().clone()),
                })
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.ownership).finish()
    }
}

type Confirmation = oneshot::Receiver<(Result<(), Unconfirmed>, Option<Resuming>)>;

fn confirm(deadline: Time) -> (Confirm<Ticket>, Confirmation) {
    let (reply, answer) = oneshot::channel();
    let ticket = Ticket::Confirm(reply);
    (Confirm { ticket, deadline }, answer)
}

/// One entry by an owner. Dropping it ends the entry; the engine writes that to the row without the caller.
#[derive(Debug)]
pub(crate) struct Hold {
    lease: Lease,
    engine: EngineHandle,
    left: bool,
}

impl Hold {
    /// The hold that a grant comes with. `None` when no handle is left.
    pub(super) fn granted(lease: Lease) -> Option<Self> {
        let alive = lease.shared.alive.upgrade();
        let engine = alive.map(|alive| EngineHandle::new(Arc::clone(&lease.shared), alive));
        let Some(engine) = engine else {
            leave(&lease, false, None);
            return None;
        };
        Some(Self {
            lease,
            engine,
            left: false,
        })
    }

    /// One more hold of a lease that is held. Waits until the row counts it, and the store says that the lease still
    /// holds.
    pub(crate) async fn enter(
        lease: &Lease,
        engine: &EngineHandle,
        timeout: Duration,
    ) -> Result<Self, LockError> {
        let (confirm, answer) = confirm(lease.now() + timeout);
        let hold = Self::add(lease, engine, Some(confirm));
        lease.confirmed(answer).await?;
        lease.check()?;
        hold
    }

    /// The same in memory only: the row follows.
    pub(crate) fn enter_now(lease: &Lease, engine: &EngineHandle) -> Result<Self, LockError> {
        Self::add(lease, engine, None)
    }

    fn add(
        lease: &Lease,
        engine: &EngineHandle,
        confirm: Option<Confirm<Ticket>>,
    ) -> Result<Self, LockError> {
        let event = Event::Enter(Arc::clone(&lease.ownership), confirm);
        if !lease.shared.step(&lease.cell, event).entered {
            lease.check()?;
            return Err(lease.lost(LostReason::Released));
        }
        Ok(Self {
            lease: lease.clone(),
            engine: engine.clone(),
            left: false,
        })
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    /// Ends the hold and waits, at most `limit`, until the row says so. The hold has ended when the future
    /// is first polled, whether or not it is polled again. `in_order`: the body returned; the lock may be
    /// handed over inside the process.
    pub(crate) async fn leave(mut self, limit: Duration, in_order: bool) -> Result<(), Unconfirmed> {
        self.left = true;
        let (confirm, answer) = confirm(self.lease.now() + limit);
        leave(&self.lease, in_order, Some(confirm));
        let answer = answer.await.map(|(answer, _)| answer);
        answer.unwrap_or_else(|_| {
            // Nobody is left to answer: the lease was forgotten, or the engine has ended.
            let reason = self.lease.lost_reason();
            Err(reason.map_or(Unconfirmed::NoAnswer(None), Unconfirmed::Lost))
        })
    }
}

fn leave(lease: &Lease, in_order: bool, confirm: Option<Confirm<Ticket>>) {
    let ownership = Arc::clone(&lease.ownership);
    let event = Event::Leave {
        ownership,
        in_order,
        confirm,
    };
    lease.shared.step(&lease.cell, event);
    if lease.ownership.deadline().is_none() {
        lease.ownership.tell();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.left {
            leave(&self.lease, false, None);
        }
    }
}
