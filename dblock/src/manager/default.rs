//! The default manager of attributes: the one of the innermost scope, else the installed one.

use std::sync::OnceLock;

use super::LockManager;
use crate::LockError;

/// Attributes without `manager = …`.
impl LockManager {
    /// Makes this manager the default of attributes without `manager = …` while `body` runs. Tasks that the
    /// body spawns do not see it.
    ///
    /// # Cancel safety
    /// Dropping the future drops `body`.
    ///
    /// # Panics
    /// Only if `body` does.
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

tokio::task_local! {
    static SCOPE: LockManager;
}

static INSTALLED: OnceLock<LockManager> = OnceLock::new();

/// Makes `manager` the default of every attribute without `manager = …`, for the life of the process.
///
/// # Errors
/// [`AlreadyInstalled`] when a manager was installed before. That one stays the default.
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

/// The error of a second [`install`]: a process has one default manager.
///
/// `?` makes it a [`LockError::Invalid`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lock manager is installed already; use `manager = …` or `LockManager::scope` for a second")]
#[non_exhaustive]
pub struct AlreadyInstalled {}

impl From<AlreadyInstalled> for LockError {
    fn from(error: AlreadyInstalled) -> Self {
        Self::invalid(error.to_string())
    }
}
