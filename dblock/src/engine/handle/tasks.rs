//! Tasks on the engine's runtime: work on the store outside of the lock protocol.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::{Command, EngineHandle};
use crate::error::LockError;
use crate::store::{Store, StoreError, StoreErrorKind, StoreFuture};

/// A task on the store. It takes a permit before it uses the store.
pub(super) type AdminTask = dyn FnOnce(Arc<dyn Store>, Arc<Semaphore>) -> StoreFuture<'static, ()> + Send;

/// How many tasks run at once: most connections are for locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// One at a time.
    Admin,
    /// A look at records without a lock. Those of many calls go together, so what is done under a lock does
    /// not queue behind new calls.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs have records")
    )]
    Looks,
    /// Work on a record under its lock.
    #[cfg_attr(
        not(feature = "run_once"),
        allow(dead_code, reason = "only runs have records")
    )]
    Records,
}

impl Turn {
    /// How long a task may take, with the wait for its turn, if its work alone may take `limit`. Under a lock
    /// it waits as long as that takes: the lease is renewed meanwhile.
    fn limit_with_wait(self, limit: Duration) -> Duration {
        match self {
            Self::Admin | Self::Looks => limit,
            Self::Records => Duration::MAX,
        }
    }
}

impl EngineHandle {
    /// Runs `work` on the engine's runtime when it is its turn. It may take `limit`; what the wait may take,
    /// the turn says.
    pub(crate) async fn run<T, W, F>(&self, turn: Turn, limit: Duration, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.start(turn, limit, work, |result| {
            let _ = reply.send(result);
        });
        match answer.await {
            Ok(result) => result.map_err(LockError::store),
            Err(_) => Err(LockError::Shutdown { key: None }),
        }
    }

    /// Starts what [`run`](Self::run) runs. `done` gets the result; an engine that has stopped drops it.
    pub(crate) fn start<T, W, F>(
        &self,
        turn: Turn,
        limit: Duration,
        work: W,
        done: impl FnOnce(Result<T, StoreError>) + Send + 'static,
    ) where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.send(Command::Run(
            turn,
            Box::new(move |store, permits| {
                Box::pin(async move {
                    // Nobody closes these semaphores.
                    let in_turn = async {
                        let _permit = permits.acquire().await;
                        timeout(limit, work(store)).await
                    };
                    let in_time = timeout(turn.limit_with_wait(limit), in_turn).await;
                    let result = in_time.flatten().unwrap_or_else(|_| {
                        let message = format!("the database has not answered within {limit:?}");
                        Err(StoreError::new(StoreErrorKind::Interrupted, message))
                    });
                    done(result);
                })
            }),
        ));
    }
}
