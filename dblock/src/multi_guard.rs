//! Several locks taken together by hand.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::engine::{Hold, Lease};
use crate::error::LockError;
use crate::guard;

/// Held locks on several keys, from [`LockManager::acquire_all`](crate::LockManager::acquire_all). They are
/// released together by [`release`](Self::release), or when the guard is dropped, as those of a
/// [`LockGuard`](crate::LockGuard).
///
/// The guard counts as lost as soon as one of its leases is lost. The other leases go on, and are renewed,
/// until the guard is released or dropped.
///
/// ```
/// use dblock::{LockManager, LockOptions};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let guard = locks.acquire_all(["account:3", "account:7"], LockOptions::new()).await?;
/// for (key, token) in guard.fence_tokens() {
///     println!("{key} is ours with token {token}");
/// }
/// guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[must_use = "dropping the guard releases the locks: bind it to a name, `let guard = …`; `let _ = …` releases them at once"]
pub struct MultiLockGuard {
    /// At least one. In the order of their keys.
    holds: Vec<Hold>,
}

impl MultiLockGuard {
    pub(crate) fn new(holds: Vec<Hold>) -> Self {
        Self { holds }
    }

    fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.holds.iter().map(Hold::lease)
    }

    /// The keys, as they were typed: sorted, and each once.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.leases().map(|lease| lease.key().typed())
    }

    /// Each key with the token of its owner: larger than every token given for that key before.
    pub fn fence_tokens(&self) -> impl Iterator<Item = (&str, i64)> {
        self.leases()
            .map(|lease| (lease.key().typed(), lease.fence_token()))
    }

    /// Time left until the holder must stop because the first of the leases ends, as in
    /// [`LockGuard::remaining`](crate::LockGuard::remaining). Zero once one is lost.
    pub fn remaining(&self) -> Duration {
        guard::remaining(self.leases())
    }

    /// Whether one of the leases has been lost.
    pub fn is_lost(&self) -> bool {
        guard::check(self.leases()).is_err()
    }

    /// Completes when one of the leases is lost, with the [`LockError::Lost`] that says why.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn lost(&self) -> LockError {
        guard::lost(self.leases()).await
    }

    /// Completes when an operator has revoked one of the leases. Then finish soon: that lease is no longer
    /// renewed.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn revoked(&self) {
        guard::revoked(self.leases()).await;
    }

    /// Runs `body` under the locks: nested calls with one of the keys re-enter, and the body is stopped when
    /// one of the leases is lost. As [`LockGuard::enter`](crate::LockGuard::enter).
    ///
    /// # Errors
    /// [`LockError::Lost`] when one of the leases ended before the body did. With
    /// [`OnLost::Signal`](crate::OnLost::Signal) a lost lease is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps the locks.
    ///
    /// # Panics
    /// Only if the body does.
    pub async fn enter<T>(&self, body: impl Future<Output = T>) -> Result<T, LockError> {
        guard::enter(&self.holds, body).await
    }

    /// Releases all locks and waits until the store confirms it: for at most 3 seconds, and not beyond the
    /// end of the leases.
    ///
    /// # Errors
    /// Those of [`LockGuard::release`](crate::LockGuard::release), for the first key that has one. The others
    /// are released all the same.
    ///
    /// # Cancel safety
    /// Once polled, the locks are released whether or not the future is polled again.
    pub async fn release(self) -> Result<(), LockError> {
        guard::release(self.holds).await
    }

    /// Checks in your transaction that all leases are still held, and keeps others out of all keys until the
    /// transaction ends. See [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    ///
    /// # Errors
    /// As for [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    ///
    /// # Cancel safety
    /// As for [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    #[cfg(feature = "sql")]
    pub async fn verify_in(
        &self,
        transaction: &mut dyn crate::fence::FenceConnection,
    ) -> Result<(), LockError> {
        crate::fence::verify(self.leases(), self.holds[0].engine(), transaction).await
    }

    /// Ends all locks with a transaction of yours. See
    /// [`LockGuard::release_in`](crate::LockGuard::release_in).
    ///
    /// # Errors
    /// As for [`LockGuard::release_in`](crate::LockGuard::release_in). After an error roll the transaction
    /// back: the manager frees the keys by itself.
    ///
    /// # Cancel safety
    /// As for [`LockGuard::release_in`](crate::LockGuard::release_in).
    #[cfg(feature = "sql")]
    pub async fn release_in(
        self,
        transaction: &mut dyn crate::fence::FenceConnection,
    ) -> Result<(), LockError> {
        crate::fence::keep(&self.holds, transaction).await
    }
}

impl fmt::Debug for MultiLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let locks = self
            .leases()
            .map(|lease| fmt::from_fn(move |f| guard::debug("Lock", lease, f)));
        f.write_str("MultiLockGuard ")?;
        f.debug_list().entries(locks).finish()
    }
}
