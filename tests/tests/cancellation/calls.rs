//! The calls that are dropped. Each takes the lock on [`KEY`], enters it again, is inside for as long as it
//! is told, and leaves.

use std::time::Duration;

use dblock::{LockError, LockManager, LockOptions, distributed_lock, inherit};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::yield_now;
use tokio::time::sleep;

/// The key of the matrix.
pub(crate) const KEY: &str = "cancelled";

/// The keys of [`Call::Several`].
pub(crate) const KEYS: [&str; 3] = ["before", KEY, "later"];

/// The ways to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    /// A method with the attribute that calls another one.
    Attribute,
    /// `run` inside of `run`.
    With,
    /// A guard: acquired with a wait, entered, released.
    Guard,
    /// A guard without a wait.
    NonBlocking,
    /// A child that shares its parent's lock, and outlives the parent's body.
    Inherit,
    /// A guard of [`KEYS`].
    Several,
}

/// All of them.
pub(crate) const CALLS: [Call; 6] = [
    Call::Attribute,
    Call::With,
    Call::Guard,
    Call::NonBlocking,
    Call::Inherit,
    Call::Several,
];

struct Service {
    locks: LockManager,
    ttl: Duration,
    inside: Duration,
}

impl Service {
    #[distributed_lock(key = "{KEY}", ttl = self.ttl, wait = "1m", manager = self.locks)]
    async fn outer(&self) -> Result<(), LockError> {
        yield_now().await;
        self.inner().await?;
        stay(self.inside).await;
        Ok(())
    }

    #[distributed_lock(key = "{KEY}", ttl = self.ttl, wait = "1m", manager = self.locks)]
    async fn inner(&self) -> Result<(), LockError> {
        yield_now().await;
        Ok(())
    }
}

async fn stay(inside: Duration) {
    if inside.is_zero() {
        yield_now().await;
    } else {
        sleep(inside).await;
    }
}

impl Call {
    /// The call's future, with a lease of `ttl`. It is `inside` for so long.
    pub(crate) fn start(
        self,
        locks: &LockManager,
        ttl: Duration,
        inside: Duration,
    ) -> BoxFuture<'static, Result<(), LockError>> {
        let locks = locks.clone();
        let non_blocking = LockOptions::new().ttl(ttl);
        let options = non_blocking.clone().wait(Duration::from_mins(1));
        match self {
            Self::Attribute => {
                let service = Service { locks, ttl, inside };
                async move { service.outer().await }.boxed()
            }
            Self::With => async move {
                let body = async {
                    yield_now().await;
                    locks.lock(KEY).options(&options).run(yield_now()).await?;
                    stay(inside).await;
                    Ok(())
                };
                locks.lock(KEY).options(&options).run(body).await?
            }
            .boxed(),
            Self::Guard => by_hand(locks, options, inside).boxed(),
            Self::NonBlocking => by_hand(locks, non_blocking, inside).boxed(),
            Self::Inherit => async move {
                let parent = locks.lock(KEY).options(&options).run(async {
                    yield_now().await;
                    [inherit(stay(inside))]
                });
                let [child] = parent.await?;
                child.await
            }
            .boxed(),
            Self::Several => async move {
                let guard = locks.lock(KEYS).options(&options).acquire().await?;
                yield_now().await;
                let body = async {
                    locks.lock(KEYS).options(&options).run(yield_now()).await?;
                    stay(inside).await;
                    Ok::<_, LockError>(())
                };
                guard.enter(body).await??;
                guard.release().await
            }
            .boxed(),
        }
    }
}

async fn by_hand(locks: LockManager, options: LockOptions, inside: Duration) -> Result<(), LockError> {
    let guard = locks.lock(KEY).options(&options).acquire().await?;
    yield_now().await;
    guard
        .enter(async {
            locks.lock(KEY).options(&options).run(yield_now()).await?;
            stay(inside).await;
            Ok::<_, LockError>(())
        })
        .await??;
    guard.release().await
}
