//! The manager: one per process and store, cheap to clone.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;
use uuid::Uuid;

use crate::body;
use crate::builder::{LockManagerBuilder, StoreSource};
use crate::chain::Link;
use crate::engine::{AcquireCall, EngineHandle, Hold, STORE_TIMEOUT, Settings};
use crate::error::{LockError, TimeoutCause};
use crate::guard::LockGuard;
use crate::health::{Health, HealthBoard};
use crate::key::Key;
use crate::options::{LockOptions, Wait};
use crate::store::{Capabilities, InspectFilter, LockRow, Store, StoreError};

/// How long an operator's question or order may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a migration may take, waiting for other nodes' included.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(1);

/// Takes locks in one store. One per process and store, cheap to clone.
///
/// Two managers of one process over one store exclude each other as two processes do: a nested call does
/// not re-enter the other's locks.
#[derive(Clone)]
pub struct LockManager {
    shared: Arc<Shared>,
}

struct Shared {
    engine: EngineHandle,
    capabilities: Capabilities,
    namespace: Option<String>,
    /// Host and process.
    process: Arc<str>,
    health: Arc<HealthBoard>,
}

impl LockManager {
    /// A manager for a database URL: `postgres://`, `mysql://`, `mariadb://`, `sqlite://`, or `memory:`
    /// for locks that live in this process only. [`builder`](Self::builder) has the settings.
    ///
    /// For SQLite the file and the tables are created when they are missing. For the servers the tables must be
    /// there: build once with [`builder_for_url`](Self::builder_for_url) and `auto_migrate(true)`, call
    /// [`migrate`](Self::migrate), or run the script for the database by hand. It is in the folder `migrations/`
    /// of this crate's source, and it names the default table: for another, write the names that
    /// [`table`](LockManagerBuilder::table) has.
    ///
    /// Each manager of `memory:` has rows of its own. For two managers over the same rows, give a clone of one
    /// [`MemoryStore`](crate::store::MemoryStore) to each [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or whose store is not compiled in,
    /// [`LockError::Store`] when the database cannot be reached, refuses, or has no fitting table.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, except that a migration may be carried out.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = dblock::LockManager::connect("memory:").await?;
    /// let guard = locks.acquire("order:42", dblock::LockOptions::new()).await?;
    /// guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::builder_for_url(url)?.build().await
    }

    /// Settings for a manager of a database URL, as for [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or whose store is not compiled in.
    pub fn builder_for_url(url: &str) -> Result<LockManagerBuilder, LockError> {
        StoreSource::from_url(url).map(LockManagerBuilder::new)
    }

    /// Settings for a manager over the application's `PgPool`, `MySqlPool` or `SqlitePool`, a
    /// [`MemoryStore`](crate::store::MemoryStore), or a store of your own. Of a pool only the
    /// connection options are used: the manager opens at most four connections of its own, so that a full
    /// pool cannot stop renewals.
    pub fn builder(source: impl Into<StoreSource>) -> LockManagerBuilder {
        LockManagerBuilder::new(source.into())
    }

    /// Starts the engine. What is checked of the database is checked by the builder.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        namespace: Option<String>,
        settings: Settings,
    ) -> Result<Self, LockError> {
        let capabilities = store.capabilities();
        let health = Arc::new(HealthBoard::default());
        let engine = crate::engine::start(store, settings, Arc::clone(&health))?;
        let host = gethostname::gethostname();
        let mut process = format!("{}/{}", host.to_string_lossy(), std::process::id());
        process.truncate(process.floor_char_boundary(Key::MAX_BYTES));
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                capabilities,
                namespace,
                process: process.into(),
                health,
            }),
        })
    }

    /// Takes the lock on `key` by hand. With the macro, or [`with`](Self::with), the lock cannot outlive
    /// the work and the work cannot outlive the lease: prefer those.
    ///
    /// Inside a chain that holds `key` already, this re-enters. The guard itself starts no chain: a nested call
    /// with the same key finds it busy, or waits for it, unless it runs inside of [`LockGuard::enter`].
    ///
    /// # Errors
    /// - [`LockError::Invalid`] for a bad key or option, before anything is sent.
    /// - [`LockError::Busy`] when somebody else holds it and no `wait` was given,
    ///   [`LockError::Timeout`] when the wait is over.
    /// - [`LockError::Store`] when the store could not be asked: at once if that is final or no `wait` was
    ///   given, else when the wait is over. A store that does not answer is given 5 seconds without `wait`.
    /// - [`LockError::Lost`] when it would re-enter a lease that has ended.
    /// - [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: a grant that is on its way is released at once.
    pub async fn acquire(&self, key: impl AsRef<str>, options: LockOptions) -> Result<LockGuard, LockError> {
        self.hold(key.as_ref(), &options).await.map(LockGuard::new)
    }

    /// Takes the lock if it is free, or gets free within the `wait` of `options`: `None` when somebody else holds it for
    /// that long.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a busy lock is no error. [`LockError::Timeout`] is left where the database has
    /// not answered in time ([`TimeoutCause::NoAnswer`]): nobody knows then whether the lock is busy.
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
        match self.hold(key.as_ref(), &options).await {
            Ok(hold) => Ok(Some(LockGuard::new(hold))),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(LockError::Timeout { cause, .. }) if cause != TimeoutCause::NoAnswer => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` under the lock on `key`. This is what the attribute expands to.
    ///
    /// The body runs when the lock is taken. When it returns or panics, the lock is released and the
    /// release awaited, for at most 3 seconds or what is left of the lease; then its value is returned or
    /// its panic goes on. When the lease is lost, the body is dropped at its next await.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] when the lease ended before the body did.
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
        body::run(async move { self.hold(key.as_ref(), &options).await }, body)
    }

    /// The same for a body that gives a `Result`, without one `Result` in another: the error of the lock becomes the
    /// body's, by `From`.
    ///
    /// # Errors
    /// Whatever the body fails with, and what [`with`](Self::with) does.
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

    /// Re-enters the lease that the call chain has on the key, or takes the lock.
    pub(crate) async fn hold(&self, key: &str, options: &LockOptions) -> Result<Hold, LockError> {
        options.check()?;
        let key = self.key(key)?;
        let engine = &self.shared.engine;
        let chain = Link::current();
        let since = Instant::now();
        if let Some(lease) = chain.as_ref().and_then(|chain| chain.find(engine, &key)) {
            let timeout = match options.wait {
                Wait::No => STORE_TIMEOUT,
                Wait::For(wait) => wait,
                Wait::Forever => lease.remaining(),
            };
            let hold = Hold::enter(lease, engine, timeout).await?;
            tracing::debug!(%key, owner = %lease.owner(), fence_token = lease.fence_token(),
                waited = ?since.elapsed(), "lock re-entered");
            return Ok(hold);
        }
        if options.wait == Wait::Forever && chain.is_some() {
            return Err(LockError::invalid(format!(
                "waiting forever for {key:?} is refused under another lock: two call chains could wait for \
                 each other for good; give a wait"
            )));
        }
        let owner = chain
            .as_ref()
            .map_or_else(Uuid::now_v7, |chain| chain.lease().owner());
        let holder = self.holder(options.function);
        engine
            .acquire(AcquireCall {
                key,
                owner,
                holder,
                options: options.clone(),
                nested: chain.is_some(),
            })
            .await
    }

    /// The `holder` column: for people, and cut to what fits.
    fn holder(&self, function: Option<&'static str>) -> Arc<str> {
        let Some(function) = function else {
            return Arc::clone(&self.shared.process);
        };
        let mut text = format!("{} {function}", self.shared.process);
        text.truncate(text.floor_char_boundary(Key::MAX_BYTES));
        text.into()
    }

    fn key(&self, key: &str) -> Result<Key, LockError> {
        Ok(Key::new(self.shared.namespace.as_deref(), key)?)
    }

    /// Creates or upgrades the tables. Idempotent, safe from many nodes at once, and without need for more
    /// than read rights when there is nothing to do.
    ///
    /// # Errors
    /// [`LockError::Store`] when the database cannot be reached or refuses, [`LockError::Shutdown`] after
    /// [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the migration.
    pub async fn migrate(&self) -> Result<(), LockError> {
        let migrate = |store: Arc<dyn Store>| async move { store.migrate().await };
        self.shared.engine.run(MIGRATION_TIMEOUT, migrate).await
    }

    pub(crate) async fn check_schema(&self) -> Result<(), LockError> {
        self.admin(|store| async move { store.check_schema().await })
            .await
    }

    /// The rows of the lock table, ordered by key. Only keys of this manager's namespace.
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{InspectFilter, LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.acquire("order:42", LockOptions::new()).await?;
    /// for row in locks.inspect(InspectFilter::new().prefix("order:")).await? {
    ///     println!("{} is held by {}", row.key, row.holder);
    ///     # assert_eq!(row.key.as_str(), "order:42");
    /// }
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn inspect(&self, mut filter: InspectFilter) -> Result<Vec<LockRow>, LockError> {
        if let Some(namespace) = &self.shared.namespace {
            filter.prefix = format!("{namespace}:{}", filter.prefix);
        }
        self.admin(|store| async move { store.inspect(&filter).await })
            .await
    }

    /// The row of `key`; `None` where the key has none, because nobody has taken it yet or its row was purged. A row stays
    /// after a release: [`LockRow::is_held`] says whether somebody holds the lock.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, [`LockError::Store`] when the store could not be asked,
    /// [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// assert_eq!(locks.get("order:42").await?, None);
    /// let guard = locks.acquire("order:42", LockOptions::new()).await?;
    /// let row = locks.get("order:42").await?.expect("it was taken");
    /// println!("held by {} for {} µs more", row.holder, row.expire_at - row.now);
    /// # assert_eq!(row.fence_token, guard.fence_token());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn get(&self, key: impl AsRef<str>) -> Result<Option<LockRow>, LockError> {
        let key = self.key(key.as_ref())?;
        // Keys that begin with it come after it.
        let filter = InspectFilter::new().prefix(key.as_str()).include_free().limit(1);
        let found = self
            .admin(|store| async move { store.inspect(&filter).await })
            .await?;
        Ok(found.into_iter().find(|row| row.key == key))
    }

    /// Whether somebody holds `key`: a look at the row, which locks nothing. By the time of the answer it may be otherwise;
    /// code that must be alone takes the lock, such as by [`try_acquire`](Self::try_acquire).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.acquire("order:42", LockOptions::new()).await?;
    /// assert!(locks.is_locked("order:42").await?);
    /// guard.release().await?;
    /// assert!(!locks.is_locked("order:42").await?);
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn is_locked(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        Ok(self.get(key).await?.is_some_and(|row| row.is_held()))
    }

    /// Asks for a lock back: its lease is no longer renewed, and its holder is told at the next renewal.
    /// The key is free when the holder leaves or the lease ends. Returns whether it was held.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, [`LockError::Store`] when the store could not be asked,
    /// [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not take the order back.
    pub async fn revoke(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.key(key.as_ref())?;
        tracing::warn!(%key, "revoking a lock");
        self.admin(|store| async move { store.revoke(&key).await }).await
    }

    /// Frees a lock, whoever holds it. Anyone may take it then, at once. Returns whether it was held.
    ///
    /// Two owners can hold the lock then: the former holder goes on until its
    /// next renewal. Its fence token is smaller than its successor's, so a resource that checks tokens
    /// refuses it.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke).
    ///
    /// # Cancel safety
    /// As [`revoke`](Self::revoke).
    pub async fn force_release(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.key(key.as_ref())?;
        tracing::warn!(%key, "freeing a lock by force");
        self.admin(|store| async move { store.force_release(&key).await })
            .await
    }

    /// Deletes the rows that nobody has used for `idle`, of the whole table, whatever the namespace, and
    /// returns how many they were. The manager does the same by itself, in the background:
    /// [`purge_after`](LockManagerBuilder::purge_after) says what counts as used and why a purge is safe. It
    /// goes in small steps that leave half of the time to others.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when `idle` is shorter than a day, [`LockError::Store`] when the store could not be
    /// asked, [`LockError::Shutdown`] after [`shutdown`](Self::shutdown). What was deleted until then is gone.
    ///
    /// # Cancel safety
    /// Dropping the future ends the purge after its current step.
    pub async fn purge(&self, idle: Duration) -> Result<u64, LockError> {
        self.shared.engine.purge(idle).await
    }

    async fn admin<T, W, F>(&self, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.shared.engine.run(ADMIN_TIMEOUT, work).await
    }

    /// How the manager is doing. Asks nobody; costs next to nothing.
    pub fn health(&self) -> Health {
        self.shared.health.read()
    }

    /// What the store can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Stops the manager and all its clones: refuses new outermost locks at once, lets what is inside go on,
    /// re-enter, nest and release for `grace`, then ends the leases that are left (their bodies are dropped
    /// and return [`LockError::Lost`]) and releases them, for at most 2 seconds more. A guard taken by hand
    /// and a body that only wants a signal cannot be stopped: their leases are lost, but their rows stay busy
    /// until they leave or the ttl is over.
    ///
    /// # Cancel safety
    /// Dropping the future does not take the order back.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.engine.shutdown(grace).await;
    }

    /// Makes this manager the default of attributes without `manager = …` while `body` runs. Spawned tasks
    /// do not see it.
    ///
    /// ```
    /// # #[cfg(feature = "macros")] {
    /// use dblock::{LockError, LockManager, distributed_lock};
    ///
    /// #[distributed_lock(key = "nightly-report")]
    /// async fn report() -> Result<&'static str, LockError> {
    ///     Ok("done")
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// assert_eq!(locks.scope(report()).await?, "done");
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// # }
    /// ```
    pub async fn scope<F: Future>(&self, body: F) -> F::Output {
        SCOPE.scope(self.clone(), body).await
    }

    /// The innermost [`scope`](Self::scope)'s manager, else the [`install`]ed one.
    pub(crate) fn default_manager() -> Result<Self, LockError> {
        SCOPE
            .try_with(Clone::clone)
            .ok()
            .or_else(|| INSTALLED.get().cloned())
            .ok_or(LockError::NoManager)
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

tokio::task_local! {
    static SCOPE: LockManager;
}

static INSTALLED: OnceLock<LockManager> = OnceLock::new();

/// Makes `manager` the default of every attribute without `manager = …`, for the life of the process.
///
/// # Errors
/// [`AlreadyInstalled`] when one was installed before, which stays the default.
///
/// ```
/// # #[cfg(feature = "macros")] {
/// use dblock::{LockError, LockManager, distributed_lock};
///
/// #[distributed_lock(key = "nightly-report")]
/// async fn report() -> Result<&'static str, LockError> {
///     Ok("done")
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// // When the program starts:
/// dblock::install(LockManager::connect("memory:").await?)?;
/// assert_eq!(report().await?, "done");
/// # Ok::<_, LockError>(()) }).unwrap();
/// # }
/// ```
pub fn install(manager: LockManager) -> Result<(), AlreadyInstalled> {
    INSTALLED.set(manager).map_err(|_| AlreadyInstalled {})
}

/// A second [`install`]: a process has one default manager.
///
/// It becomes [`LockError::Invalid`] by `?`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lock manager is installed already; use `manager = …` or `LockManager::scope` for a second")]
#[non_exhaustive]
pub struct AlreadyInstalled {}

impl From<AlreadyInstalled> for LockError {
    fn from(error: AlreadyInstalled) -> Self {
        Self::invalid(error.to_string())
    }
}
