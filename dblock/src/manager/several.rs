//! Several keys at once: all of them or none.

use std::collections::BTreeSet;
use std::future::Future;

use dblock_core::limits;

use super::{LockManager, busy_is_none};
use crate::body;
use crate::error::LockError;
use crate::key::Key;
use crate::multi_guard::MultiLockGuard;
use crate::options::LockOptions;

impl LockManager {
    /// The most keys that one call takes together.
    pub const MAX_KEYS: usize = limits::MAX_KEYS;

    /// Takes the locks on several keys: all of them or none.
    ///
    /// The keys are sorted, and a key that is given twice counts once. When all of them are free, this takes
    /// one round trip. When one is busy, the call waits for that one and holds only smaller keys meanwhile.
    /// So calls that hold nothing else never wait for each other in a circle, in whatever order they name
    /// their keys. A key that the call chain already holds is re-entered.
    ///
    /// When a key is busy, the call gives back the larger keys that it has taken. So for a moment others may
    /// find those busy. Without `wait`, two calls with the same keys may both fail for that reason.
    ///
    /// The options apply to each key, except that `wait` is for all of them together. `max_hold` counts for
    /// each key from its own grant, and so does the ttl with `renew = false`: make them longer than the
    /// `wait`. A lease that is lost before all keys are taken is acquired anew, within `wait`.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] without keys, with more than [`MAX_KEYS`](Self::MAX_KEYS), for a bad key, and
    ///   for `hold_min`, before anything is sent.
    /// - Those of [`acquire`](Self::acquire), for the key that was the reason. Then no key stays locked.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire): dropping the future leaves nothing behind.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let options = LockOptions::new().wait(Duration::from_secs(5));
    /// let guard = locks.acquire_all(["account:7", "account:3"], options).await?;
    /// assert_eq!(guard.keys().collect::<Vec<_>>(), ["account:3", "account:7"]);
    /// guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn acquire_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: LockOptions,
    ) -> Result<MultiLockGuard, LockError> {
        let keys = self.keys(keys)?;
        self.hold_all(&keys, &options).await.map(MultiLockGuard::new)
    }

    /// Takes the locks if all keys are free, or become free within the `wait` of `options`. Returns `None` if
    /// one of them is busy for that long.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all), but a busy lock is not an error. So a [`LockError::Timeout`]
    /// always says that the database did not answer in time, as in [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// As [`acquire_all`](Self::acquire_all).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.acquire("account:7", LockOptions::new()).await?;
    /// let both = locks.try_acquire_all(["account:3", "account:7"], LockOptions::new()).await?;
    /// assert!(both.is_none());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn try_acquire_all<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: LockOptions,
    ) -> Result<Option<MultiLockGuard>, LockError> {
        busy_is_none(self.acquire_all(keys, options).await)
    }

    /// Runs `body` under the locks on several keys. This is what the attribute's `keys` expands to.
    ///
    /// As [`with`](Self::with), with the locks of [`acquire_all`](Self::acquire_all). The body is stopped
    /// when one of the leases is lost.
    ///
    /// # Errors
    /// As [`acquire_all`](Self::acquire_all), and [`LockError::Lost`] when one of the leases ended before the
    /// body did. With [`OnLost::Signal`](crate::OnLost::Signal) a lost lease is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body first and then releases the locks in the background.
    ///
    /// # Panics
    /// Only if the body does.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, LockOptions, current_locks};
    /// let locks = LockManager::connect("memory:").await?;
    /// let keys = ["account:7", "account:3"];
    /// let held = locks.with_all(keys, LockOptions::new(), async { current_locks().len() }).await?;
    /// assert_eq!(held, 2);
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub fn with_all<K: AsRef<str>, F: Future>(
        &self,
        keys: impl IntoIterator<Item = K>,
        options: LockOptions,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> {
        let keys = self.keys(keys);
        body::run(async move { self.hold_all(&keys?, &options).await }, body)
    }

    /// The keys with their namespace: sorted, and each once.
    pub(crate) fn keys<K: AsRef<str>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Key>, LockError> {
        let mut sorted = BTreeSet::new();
        for key in keys {
            sorted.insert(self.key(key.as_ref())?);
            if sorted.len() > Self::MAX_KEYS {
                return Err(LockError::invalid(format!(
                    "more than {} keys for one call; lock what they have in common instead",
                    Self::MAX_KEYS
                )));
            }
        }
        if sorted.is_empty() {
            return Err(LockError::invalid(
                "no keys to lock; name at least one, such as \"account:7\"",
            ));
        }
        Ok(sorted.into_iter().collect())
    }
}
