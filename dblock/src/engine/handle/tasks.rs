//! Tasks on the engine's runtime: work on the store outside of the lock protocol.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::time::timeout;

use super::{Command, EngineHandle};
use crate::Key;
use crate::LockError;
use crate::store::{Store, StoreError, StoreErrorKind, StoreFuture};

/// A task on the store. It waits for its permit before it uses the store.
pub(super) type Task = dyn FnOnce(Arc<dyn Store>, Arc<Permits>) -> StoreFuture<'static, ()> + Send;

/// How many tasks run at once: most connections are for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Permit {
    /// What an operator asks, and looks for deadlocks. One at a time. Nothing that a call of a lock waits for may be one.
    Admin,
    /// A read of lock rows, for calls that are inside a lock. One at a time: those of many calls go together.
    #[cfg_attr(
        not(any(feature = "sql", feature = "run_once")),
        allow(dead_code, reason = "only transactions and runs read them")
    )]
    Rows,
    /// A record before its lock is taken, or when its run begins. It is left out when the caller is gone
    /// before it has its permit.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs have records")
    )]
    Records,
    /// The outcome of a run. It goes ahead of [`Records`](Self::Records), so that what is done never waits
    /// for what is new.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs have records")
    )]
    Outcomes,
}

/// What the tasks wait for.
#[derive(Debug)]
pub(crate) struct Permits {
    /// All connections but one are for locks.
    admin: Semaphore,
    rows: Semaphore,
    /// Tasks on records are short, and share the connections of acquires and releases, which a record comes
    /// before and after.
    records: Semaphore,
    /// Only one task may wait for `records` that is no outcome.
    next: Semaphore,
}

impl Permits {
    /// For a store that carries out so many batches at once.
    pub(crate) fn new(concurrency: usize) -> Self {
        Self {
            admin: Semaphore::new(1),
            rows: Semaphore::new(1),
            // One connection is left for batches, although PostgreSQL listens on one too.
            records: Semaphore::new(concurrency.saturating_sub(2).max(1)),
            next: Semaphore::new(1),
        }
    }

    pub(crate) async fn permit(&self, which: Permit) -> SemaphorePermit<'_> {
        let permit = match which {
            Permit::Admin => self.admin.acquire().await,
            Permit::Rows => self.rows.acquire().await,
            Permit::Outcomes => self.records.acquire().await,
            Permit::Records => {
                let _next = self.next.acquire().await;
                self.records.acquire().await
            }
        };
        permit.expect("nobody closes these semaphores")
    }
}

impl EngineHandle {
    /// Runs `work` on the engine's runtime when it has its permit. It may take `limit`; an operator's work
    /// with the wait for its permit. An error names the `key` that the work is for.
    ///
    /// Work that has begun goes on when the future is dropped.
    pub(crate) async fn run<T, W, F>(
        &self,
        which: Permit,
        key: Option<&Key>,
        limit: Duration,
        work: W,
    ) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (mut reply, answer) = oneshot::channel();
        self.spawn(move |store, permits| async move {
            let permit = async {
                tokio::select! {
                    biased;
                    permit = permits.permit(which) => Some(permit),
                    () = reply.closed(), if which == Permit::Records => None,
                }
            };
            let result = if which == Permit::Admin {
                timeout(limit, async { (permit.await, work(store).await).1 }).await
            } else {
                let Some(_permit) = permit.await else { return };
                timeout(limit, work(store)).await
            };
            let _ = reply.send(result.unwrap_or_else(|_| Err(unanswered(limit))));
        });
        match answer.await {
            Ok(result) => result.map_err(|error| LockError::store_for(key, error)),
            Err(_) => Err(LockError::shutdown(key.map(Key::to_typed))),
        }
    }

    /// The answer of `future` unless that takes longer than `limit`. It needs no timer of the caller's
    /// runtime.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) async fn within<T>(
        &self,
        limit: Option<Duration>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(limit) = limit else {
            return Some(future.await);
        };
        tokio::select! {
            biased;
            answer = future => Some(answer),
            () = self.pause(limit) => None,
        }
    }

    /// Completes after so long, or when the engine has ended.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) async fn pause(&self, pause: Duration) {
        let (mut over, is_over) = oneshot::channel::<()>();
        self.spawn(move |_, _| async move {
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = over.closed() => {}
            }
        });
        let _ = is_over.await;
    }

    /// Spawns a task on the engine's runtime. An engine that has stopped drops it.
    pub(in crate::engine) fn spawn<F>(
        &self,
        task: impl FnOnce(Arc<dyn Store>, Arc<Permits>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        self.send(Command::Run(Box::new(|store, permits| {
            Box::pin(task(store, permits))
        })));
    }
}

/// The store has not answered within `limit`.
pub(super) fn unanswered(limit: Duration) -> StoreError {
    let message = format!("the database has not answered within {limit:?}");
    StoreError::new(StoreErrorKind::Interrupted, message)
}
