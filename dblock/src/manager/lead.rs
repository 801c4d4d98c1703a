//! One leader among the nodes: a loop around a lock's body.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{LockBuilder, LockManager};
use crate::Key;
use crate::LockError;
use crate::body;
use crate::chain::Link;
use crate::current::{CurrentLock, current};
use crate::engine::Hold;
use crate::{LockOptions, OnLost};
use dblock_core::Wait;

/// How often a campaign asks whether the store fails, so that the log shows an outage.
const LOOK: Duration = Duration::from_secs(10);

/// The pause after a lost lease, in ms. Another node may lead meanwhile, and the loop does not spin when the
/// lease is lost again and again.
const PAUSE: std::ops::Range<u64> = 100..1_000;

const ONE_KEY: &str =
    "`lead` takes one key: a node leads, or does not; call it once for each key, each in a task of its own";

impl LockBuilder<'_> {
    /// Runs `body` while this node leads. The call waits for the lock, runs the body under it, and
    /// waits again when the lease was lost. At most one of the nodes that call this leads at any time.
    ///
    /// | what happens | what the call does |
    /// |---|---|
    /// | the body returns | releases the lock, which passes it on to a node that waits, and returns the value |
    /// | the lease is lost: store away, `revoke`, `force_release`, `max_hold` | drops the body at its next await, pauses for up to a second, and waits for the lock again |
    /// | another node leads | waits, however long that takes |
    /// | the store is away while this node waits | goes on waiting, and says so once in the log |
    /// | the manager is shut down | [`shutting_down`](LockManager::shutting_down) completes, and the body may go on for the grace. Then it is dropped, and the call returns [`LockError::Shutdown`] |
    ///
    /// So the body steps down by returning. The call returns its value, also an error: call `lead` again to
    /// take part in the next campaign. After a process was killed, another one leads when the `ttl` is over.
    ///
    /// Each lease begins a new body. The body gets its lock, whose [`fence_token`](CurrentLock::fence_token)
    /// is larger than that of every former leader. Other processes learn by [`get`](super::Admin::get) who leads
    /// (`holder`) and since when (`acquired_at`).
    ///
    /// With [`OnLost::Signal`](crate::OnLost::Signal) the body is not dropped. It must return soon after
    /// [`lost`](CurrentLock::lost). Its value is then dropped, and the call waits for the lock again.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] for a bad key or option, for several keys, for a `wait`, and under another lock, which would be
    ///   held for as long as this node leads.
    /// - [`LockError::Store`] for a failure that a new try does not cure, such as a missing table.
    /// - [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future drops the body first and then releases the lock in the background.
    ///
    /// # Panics
    /// If the body does: the lock is released, and then the panic goes on. Also outside of a tokio runtime,
    /// and in one without time.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::LockManager;
    ///
    /// async fn work(fence_token: i64) { /* … */ }
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let scheduler = locks.lock("scheduler").lead(async |leader| loop {
    ///     tokio::select! {
    ///         () = locks.shutting_down() => break,
    ///         () = tokio::time::sleep(Duration::from_secs(60)) => work(leader.fence_token()).await,
    ///     }
    /// });
    /// # let stop = async {
    /// #     while !locks.admin().is_locked("scheduler").await.unwrap() {}
    /// #     locks.shutdown(Duration::from_secs(5)).await;
    /// # };
    /// # let scheduler = async { tokio::join!(scheduler, stop).0 };
    /// scheduler.await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn lead<F: Future>(
        self,
        mut body: impl FnMut(CurrentLock) -> F,
    ) -> Result<F::Output, LockError> {
        let Self { locks, keys, options } = self;
        if let Wait::For(_) = options.wait {
            return Err(LockError::invalid(
                "`lead` takes no `wait`, because it waits until it leads; drop its future to stop waiting",
            ));
        }
        if Link::current().is_some() {
            return Err(LockError::invalid(
                "`lead` is refused under another lock, which would be held for as long; call it in a task of its own",
            ));
        }
        if options.limit.is_some() {
            return Err(LockError::invalid(
                "`lead` takes no `shared` and no `limit`, because one node leads; leave them out",
            ));
        }
        let key = Self::one_key(keys, ONE_KEY)?;
        let options = options.wait_forever();
        let signals = options.on_lost == OnLost::Signal;
        loop {
            let campaign = async { Ok(vec![locks.campaign(&key, &options).await?]) };
            let term = async {
                let leader = current().expect("the body runs under its lock");
                tracing::info!(key = %leader.key(), fence_token = leader.fence_token(), "leading");
                let value = body(leader.clone()).await;
                (value, signals && leader.remaining().is_zero())
            };
            match body::run(campaign, term).await {
                // The engine has logged why. After a shutdown the next campaign is refused.
                Err(LockError::Lost { .. }) | Ok((_, true)) => {
                    sleep(Duration::from_millis(fastrand::u64(PAUSE))).await;
                }
                Ok((value, false)) => return Ok(value),
                Err(error) => return Err(error),
            }
        }
    }
}

impl LockManager {
    /// Waits for the lock, and says when the store fails meanwhile: once for each outage.
    async fn campaign(&self, key: &Key, options: &LockOptions) -> Result<Hold, LockError> {
        let mut hold = pin!(self.hold(key, options));
        let mut said = false;
        loop {
            if let Ok(held) = timeout(LOOK, &mut hold).await {
                return held;
            }
            let health = self.health();
            if let (Some(failing_for), false) = (health.failing_for, said) {
                tracing::warn!(key = %key.typed(), ?failing_for, error = health.last_error,
                    "the lock store fails; still waiting to lead");
            }
            said = health.failing_for.is_some();
        }
    }

    /// Completes when [`shutdown`](Self::shutdown) was called on this manager or a clone of it. For bodies
    /// that would otherwise use up the whole grace, such as that of [`lead`](LockBuilder::lead).
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::LockManager;
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// tokio::join!(locks.shutdown(Duration::from_secs(5)), locks.shutting_down());
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn shutting_down(&self) {
        self.shared.engine.stopping().await;
    }
}
