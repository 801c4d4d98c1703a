//! The manager: one per process and store, cheap to clone.

mod acquire;
mod admin;
mod default;
mod lead;
mod lock;
#[cfg(feature = "run_once")]
mod new_keys;
#[cfg(feature = "sql")]
mod take;
#[cfg(feature = "sql")]
mod their_transaction;
#[cfg(feature = "sql")]
mod transaction;

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::Key;
use crate::LockError;
use crate::blocking::Runtime;
use crate::engine::{EngineHandle, Settings};
use crate::health::{Health, HealthBoard};
use crate::store::{Capabilities, Store};

#[cfg(feature = "run_once")]
pub(crate) use self::acquire::Began;
pub use self::admin::Admin;
pub use self::default::{AlreadyInstalled, install};
pub use self::lock::{LockBuilder, LockKeys};
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
    /// The engine owns the store, and drops it when it ends.
    store: Weak<dyn Store>,
    capabilities: Capabilities,
    table: String,
    namespace: Option<String>,
    /// Host and process.
    process: Arc<str>,
    health: Arc<HealthBoard>,
    /// For calls that block, from the first of them on.
    runtime: OnceLock<Runtime>,
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
                runtime: OnceLock::new(),
                #[cfg(feature = "run_once")]
                new_keys: NewKeys::default(),
            }),
        })
    }

    /// The runtime of calls that block.
    pub(crate) fn runtime(&self) -> &Runtime {
        self.shared.runtime.get_or_init(Runtime::start)
    }

    /// Whether the keys of its runs are new, mostly.
    #[cfg(feature = "run_once")]
    pub(crate) fn new_keys(&self) -> &NewKeys {
        &self.shared.new_keys
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

    /// The name of the lock table, as `LockManagerBuilder::table` was given it. A store without tables does
    /// not use it.
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
    pub fn location(&self) -> Option<String> {
        self.shared.store.upgrade()?.location()
    }

    /// Stops the manager and all its clones.
    ///
    /// Calls that hold no lock fail at once with [`LockError::Shutdown`], also those that already wait. Calls
    /// that hold a lock may go on for at most `grace`: they re-enter, nest and release as usual. Then the
    /// manager ends the other leases: their bodies are dropped, and the calls return [`LockError::Lost`]. It
    /// spends at most 2 seconds more on the release of the rows, and then 2 on closing the store.
    ///
    /// A guard taken by hand, a body with [`OnLost::Signal`](crate::OnLost::Signal), and one that is not async cannot be stopped.
    /// Their leases are lost, but their rows stay busy until they release them, before the store is closed, or until the
    /// ttl ends. A second call can shorten the grace.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: the manager still stops.
    pub async fn shutdown(&self, grace: Duration) {
        self.shared.engine.shutdown(grace).await;
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
        let run = async |body: Result<u8, LockError>| locks.lock("a").run(async { body }).await?;
        assert!(matches!(
            run(Err(LockError::NoManager)).await,
            Err(LockError::NoManager)
        ));
        assert_eq!(run(Ok(1)).await.unwrap(), 1, "the failed body has released");
        let body = async {
            locks.admin().force_release("a").await?;
            std::future::pending::<Result<(), LockError>>().await
        };
        let lost = locks.lock("a").run(body).await;
        assert!(lost.unwrap_err().is_lost());
    }
}
