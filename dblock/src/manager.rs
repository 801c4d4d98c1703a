//! The manager: one per process and store, cheap to clone.

mod acquire;
mod default;
mod lead;
#[cfg(feature = "run_once")]
mod new_keys;
mod operators;
mod several;
#[cfg(feature = "sql")]
mod transaction;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;

use crate::body;
use crate::engine::{EngineHandle, Settings};
use crate::error::{LockError, TimeoutCause};
use crate::guard::LockGuard;
use crate::health::{Health, HealthBoard};
use crate::key::Key;
use crate::options::LockOptions;
use crate::store::{Capabilities, Store};

#[cfg(feature = "run_once")]
pub(crate) use self::acquire::Began;
pub use self::default::{AlreadyInstalled, install};
#[cfg(feature = "run_once")]
use self::new_keys::NewKeys;

/// Takes locks in one store. A process needs one for each store. It is cheap to clone.
///
/// Two managers of one process over one store exclude each other as two processes do: a nested call through
/// one of them does not re-enter the locks of the other.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

struct Shared {
    engine: EngineHandle,
    /// The engine's, which ends with the engine.
    store: Weak<dyn Store>,
    capabilities: Capabilities,
    table: String,
    namespace: Option<String>,
    /// Host and process.
    process: Arc<str>,
    health: Arc<HealthBoard>,
    #[cfg(feature = "run_once")]
    new_keys: NewKeys,
}

impl LockManager {
    /// Starts the engine. The builder checks the database.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        table: String,
        namespace: Option<String>,
        settings: Settings,
    ) -> Result<Self, LockError> {
        let store = store.for_manager().unwrap_or(store);
        let capabilities = store.capabilities();
        let health = Arc::new(HealthBoard::default());
        let weak = Arc::downgrade(&store);
        let engine = crate::engine::start(store, settings, Arc::clone(&health))?;
        let host = gethostname::gethostname();
        let mut process = format!("{}/{}", host.to_string_lossy(), std::process::id());
        process.truncate(process.floor_char_boundary(Key::MAX_BYTES));
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                store: weak,
                capabilities,
                table,
                namespace,
                process: process.into(),
                health,
                #[cfg(feature = "run_once")]
                new_keys: NewKeys::default(),
            }),
        })
    }

    /// How new the keys of its runs are.
    #[cfg(feature = "run_once")]
    pub(crate) fn new_keys(&self) -> &NewKeys {
        &self.shared.new_keys
    }

    /// Takes the lock on `key` by hand. Prefer the macro, or [`with`](Self::with): there the lock cannot
    /// outlive the work, and the work cannot outlive the lease.
    ///
    /// In a call chain that already holds `key`, this re-enters. The guard itself starts no chain: a nested
    /// call with the same key finds the lock busy, or waits for it, unless it runs in [`LockGuard::enter`].
    ///
    /// # Errors
    /// - [`LockError::Invalid`] for a bad key or option, before anything is sent.
    /// - [`LockError::Busy`] when another owner holds the lock and no `wait` was given,
    ///   [`LockError::Timeout`] when the `wait` has run out.
    /// - [`LockError::Store`] when the store failed: at once if the error is permanent or no `wait` was
    ///   given, else when the `wait` has run out. Without `wait`, a store that does not answer fails after 5
    ///   seconds.
    /// - [`LockError::Lost`] when the chain holds `key` by a lease that has ended.
    /// - [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: a grant that arrives later is released at once.
    pub async fn acquire(&self, key: impl AsRef<str>, options: LockOptions) -> Result<LockGuard, LockError> {
        self.hold(key.as_ref(), &options).await.map(LockGuard::new)
    }

    /// Takes the lock if it is free, or becomes free within the `wait` of `options`. Returns `None` if it is
    /// busy for that long.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a busy lock is not an error. So a [`LockError::Timeout`] always
    /// says that the database did not answer in time ([`TimeoutCause::NoAnswer`]): it is unknown whether the
    /// lock is busy.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.try_acquire("order:42", LockOptions::new()).await?.expect("free");
    /// let soon = LockOptions::new().wait(Duration::from_millis(50));
    /// assert!(locks.try_acquire("order:42", soon).await?.is_none());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn try_acquire(
        &self,
        key: impl AsRef<str>,
        options: LockOptions,
    ) -> Result<Option<LockGuard>, LockError> {
        busy_is_none(self.acquire(key, options).await)
    }

    /// Runs `body` under the lock on `key`. This is what the attribute expands to.
    ///
    /// The body starts when the lock is taken. When it returns or panics, the lock is released. The call
    /// waits for the release for at most 3 seconds, and not beyond the end of the lease. Then it returns the
    /// body's value or resumes the panic. When the lease is lost, the body is dropped at its next await.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] when the lease ended before the body did. With
    /// [`OnLost::Signal`](crate::OnLost::Signal) a lost lease is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body first and then releases the lock in the background.
    ///
    /// # Panics
    /// Only if the body does.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let sum = locks.with("account:7", LockOptions::new(), async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub fn with<F: Future>(
        &self,
        key: impl AsRef<str>,
        options: LockOptions,
        body: F,
    ) -> impl Future<Output = Result<F::Output, LockError>> {
        let acquire = async move { Ok(vec![self.hold(key.as_ref(), &options).await?]) };
        body::run(acquire, body)
    }

    /// As [`with`](Self::with), for a body that returns a `Result`. An error of the lock is converted by
    /// `From` into the body's error type, so that no `Result` is nested in another.
    ///
    /// # Errors
    /// The errors of the body, and those of [`with`](Self::with).
    ///
    /// # Cancel safety
    /// As [`with`](Self::with).
    ///
    /// # Panics
    /// Only if the body does.
    ///
    /// ```
    /// use dblock::{LockError, LockManager, LockOptions};
    ///
    /// #[derive(Debug)]
    /// enum OrderError {
    ///     Lock(LockError),
    ///     Unpaid,
    /// }
    ///
    /// impl From<LockError> for OrderError {
    ///     fn from(error: LockError) -> Self {
    ///         Self::Lock(error)
    ///     }
    /// }
    ///
    /// async fn ship(locks: &LockManager, paid: bool) -> Result<&'static str, OrderError> {
    ///     let body = async { if paid { Ok("shipped") } else { Err(OrderError::Unpaid) } };
    ///     locks.with_result("order:42", LockOptions::new(), body).await
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// assert_eq!(ship(&locks, true).await?, "shipped");
    /// assert!(matches!(ship(&locks, false).await, Err(OrderError::Unpaid)));
    /// let guard = locks.acquire("order:42", LockOptions::new()).await?;
    /// assert!(matches!(ship(&locks, true).await, Err(OrderError::Lock(error)) if error.is_busy()));
    /// # guard.release().await?;
    /// # Ok::<_, OrderError>(()) }).unwrap();
    /// ```
    pub fn with_result<T, E: From<LockError>>(
        &self,
        key: impl AsRef<str>,
        options: LockOptions,
        body: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, E>> {
        self.with(key, options, body)
            .map(|result| result.unwrap_or_else(|error| Err(error.into())))
    }

    pub(crate) fn key(&self, key: &str) -> Result<Key, LockError> {
        Ok(Key::new(self.shared.namespace.as_deref(), key)?)
    }

    #[cfg(feature = "run_once")]
    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.shared.engine
    }

    /// The namespace that the store has before every key; `None` if there is none. The keys that you pass to
    /// a manager do not have it, nor do those that it returns.
    pub fn namespace(&self) -> Option<&str> {
        self.shared.namespace.as_deref()
    }

    /// The name of the lock table, as `LockManagerBuilder::table` was given it. A store without tables leaves
    /// it unused.
    pub fn table(&self) -> &str {
        &self.shared.table
    }

    /// The state of the manager, read from memory. It asks the store nothing, so it is cheap.
    pub fn health(&self) -> Health {
        self.shared.health.read()
    }

    /// The capabilities of the store.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Where the locks are, for people: such as `db1:5432/app`, or a file. Without a user and a password.
    /// `None` for a store that does not say it, and for a pool that no connection was opened from yet.
    pub fn place(&self) -> Option<String> {
        self.shared.store.upgrade()?.place()
    }

    /// Stops the manager and all its clones.
    ///
    /// Calls that hold no lock fail at once with [`LockError::Shutdown`], also those that already wait. Calls
    /// that hold a lock may go on for at most `grace`: they re-enter, nest and release as usual. Then the
    /// manager ends the other leases: their bodies are dropped, and the calls return [`LockError::Lost`]. It
    /// spends at most 2 seconds more on the release of the rows.
    ///
    /// A guard taken by hand, and a body with [`OnLost::Signal`](crate::OnLost::Signal), cannot be stopped.
    /// Their leases are lost, but their rows stay busy until they release them or the ttl ends. A second call
    /// can shorten the grace.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: the manager still stops.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.engine.shutdown(grace).await;
    }
}

/// `None` for a lock that is busy. A store that did not answer is none.
fn busy_is_none<T>(result: Result<T, LockError>) -> Result<Option<T>, LockError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(LockError::Busy { .. }) => Ok(None),
        Err(LockError::Timeout { cause, .. }) if cause != TimeoutCause::NoAnswer => Ok(None),
        Err(error) => Err(error),
    }
}

impl fmt::Debug for LockManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockManager")
            .field("store", &self.shared.capabilities.name)
            .field("namespace", &self.shared.namespace)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_returns_a_result_fails_with_the_locks_error_too() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let options = LockOptions::new;
        let fails = locks.with_result("a", options(), async { Err::<(), _>(LockError::NoManager) });
        assert!(matches!(fails.await, Err(LockError::NoManager)));
        let done = locks.with_result("a", options(), async { Ok::<_, LockError>(1) });
        assert_eq!(done.await.unwrap(), 1, "the failed body has released");
        let body = async {
            locks.force_release("a").await?;
            std::future::pending::<Result<(), LockError>>().await
        };
        let lost = locks.with_result("a", options(), body).await;
        assert!(lost.unwrap_err().is_lost());
    }
}
