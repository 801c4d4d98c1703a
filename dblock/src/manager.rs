//! The manager: one per process and store, cheap to clone.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::body;
use crate::builder::{LockManagerBuilder, StoreSource};
use crate::chain::Link;
use crate::engine::{AcquireCall, EngineHandle, Hold, STORE_TIMEOUT, Settings};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::health::{Health, HealthBoard};
use crate::key::{Key, MAX_KEY_BYTES};
use crate::options::{LockOptions, Wait};
use crate::store::{Capabilities, InspectFilter, LockRow, Store, StoreError};

/// Time limit of an operator's call, such as `inspect` or `revoke`.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Time limit of a migration. It includes waiting for the migrations of other nodes.
const MIGRATION_TIMEOUT: Duration = Duration::from_mins(1);

/// Takes locks in one store. One per process and store, cheap to clone.
///
/// Two managers of one process over one store exclude each other as two processes do: a nested call through
/// one of them does not re-enter the locks of the other.
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
    /// For SQLite the file and the tables are created when they are missing. On the servers the tables must
    /// exist. To create them, build once with [`builder_for_url`](Self::builder_for_url) and
    /// `auto_migrate(true)`, call [`migrate`](Self::migrate), or run the database's script by hand. The scripts
    /// are in the folder `migrations/` of this crate's source. They use the default table name: for another one,
    /// change the names as [`table`](LockManagerBuilder::table) describes.
    ///
    /// Each manager of `memory:` has its own rows. To share rows between two managers, give a clone of one
    /// [`MemoryStore`](crate::store::MemoryStore) to each [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or whose store is not compiled in,
    /// [`LockError::Store`] when the database cannot be reached, refuses, or has no table that fits this
    /// version.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, except that a migration may still be carried out.
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
    /// [`MemoryStore`](crate::store::MemoryStore), or a store of your own. From a pool, only the connection
    /// options are used: the manager opens at most four connections of its own, so that a full pool cannot
    /// stop renewals.
    pub fn builder(source: impl Into<StoreSource>) -> LockManagerBuilder {
        LockManagerBuilder::new(source.into())
    }

    /// Starts the engine. The builder checks the database.
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
        process.truncate(process.floor_char_boundary(MAX_KEY_BYTES));
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

    /// Takes the lock on `key` by hand. Prefer the macro, or [`with`](Self::with): there the lock cannot
    /// outlive the work, and the work cannot outlive the lease.
    ///
    /// Inside a chain that holds `key` already, this re-enters. The guard itself starts no chain: a nested call
    /// with the same key finds the lock busy, or waits for it, unless it runs in [`LockGuard::enter`].
    ///
    /// # Errors
    /// - [`LockError::Invalid`] for a bad key or option, before anything is sent.
    /// - [`LockError::Busy`] when another owner holds the lock and no `wait` was given,
    ///   [`LockError::Timeout`] when the `wait` has run out.
    /// - [`LockError::Store`] when the store failed: at once if the error is permanent or no `wait` was
    ///   given, else when the `wait` has run out. Without `wait`, a store that does not answer fails after 5
    ///   seconds.
    /// - [`LockError::Lost`] when it would re-enter a lease that has ended.
    /// - [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind: a grant that arrives later is released at once.
    pub async fn acquire(&self, key: impl AsRef<str>, options: LockOptions) -> Result<LockGuard, LockError> {
        self.hold(key.as_ref(), &options).await.map(LockGuard::new)
    }

    /// Takes the lock if it is free. Returns `None` when another owner holds it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but busy is not an error, and options with a `wait` are refused with
    /// [`LockError::Invalid`].
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(
        &self,
        key: impl AsRef<str>,
        options: LockOptions,
    ) -> Result<Option<LockGuard>, LockError> {
        if options.wait != Wait::No {
            return Err(LockError::invalid(
                "try_acquire does not wait: leave `wait` out, or call `acquire`",
            ));
        }
        match self.hold(key.as_ref(), &options).await {
            Ok(hold) => Ok(Some(LockGuard::new(hold))),
            Err(LockError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` under the lock on `key`. This is what the attribute expands to.
    ///
    /// The body starts once the lock is taken. When it returns or panics, the lock is released, and the call
    /// waits for the release for at most 3 seconds or what is left of the lease. Then the call returns the
    /// body's value or resumes its panic. When the lease is lost, the body is dropped at its next await.
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

    /// Re-enters the lease that the call chain has on the key, or acquires the lock.
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

    /// The text of the `holder` column: for people, and cut to fit.
    fn holder(&self, function: Option<&'static str>) -> Arc<str> {
        let Some(function) = function else {
            return Arc::clone(&self.shared.process);
        };
        let mut text = format!("{} {function}", self.shared.process);
        text.truncate(text.floor_char_boundary(MAX_KEY_BYTES));
        text.into()
    }

    fn key(&self, key: &str) -> Result<Key, LockError> {
        Key::new(self.shared.namespace.as_deref(), key)
    }

    /// Creates or upgrades the tables. Idempotent, and safe from many nodes at once. When nothing is to be
    /// done, read rights suffice.
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

    /// The rows of the lock table, ordered by key. Only keys of this manager's namespace are included.
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

    /// Revokes a lock: its lease is no longer renewed, and its holder is told at the next renewal. The key is
    /// free once the holder releases it or the lease ends. Returns whether the key was held.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, [`LockError::Store`] when the store could not be asked,
    /// [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    pub async fn revoke(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.key(key.as_ref())?;
        tracing::warn!(%key, "revoking a lock");
        self.admin(|store| async move { store.revoke(&key).await }).await
    }

    /// Frees a lock at once, whoever holds it. Returns whether the key was held.
    ///
    /// **Two owners can then hold the lock**: the former holder goes on until its next renewal. Its fence
    /// token is smaller than the new owner's, so a resource that checks tokens refuses it.
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

    /// Deletes the rows that have been unused for `idle`, and returns how many. It covers the whole table,
    /// whatever the namespace, in small steps that leave half of the time to others. The manager does the
    /// same in the background: [`purge_after`](LockManagerBuilder::purge_after) says what counts as used and
    /// why a purge is safe.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when `idle` is shorter than a day, [`LockError::Store`] when the store could not be
    /// asked, [`LockError::Shutdown`] after [`shutdown`](Self::shutdown). Rows deleted before the error stay
    /// deleted.
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

    /// The state of the manager, from memory: it asks the store nothing and costs next to nothing.
    pub fn health(&self) -> Health {
        self.shared.health.read()
    }

    /// The capabilities of the store.
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    /// Stops the manager and all its clones.
    ///
    /// New outermost locks are refused at once, also to callers that wait already. Callers that hold a lock may
    /// go on for at most `grace`: they re-enter, nest and release as usual. Then the leases that are left are
    /// ended: their bodies are dropped, and the calls return [`LockError::Lost`]. The manager releases the rows,
    /// for at most 2 seconds more.
    ///
    /// A guard taken by hand, and a body with [`OnLost::Signal`](crate::OnLost::Signal), cannot be stopped.
    /// Their leases are lost, but their rows stay busy until they release them or the ttl ends.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: the manager still stops.
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

    /// The manager of the innermost [`scope`](Self::scope), else the [`install`]ed one.
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
/// [`LockError::Invalid`] when one was installed before.
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
pub fn install(manager: LockManager) -> Result<(), LockError> {
    INSTALLED.set(manager).map_err(|_| {
        LockError::invalid(
            "a lock manager is installed already; use `manager = …` or `LockManager::scope` for a second",
        )
    })
}
