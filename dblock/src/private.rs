//! What the code that the attribute generates may call: the macro's whole contract. Not for people.

use std::future::Future;

use crate::{LockError, LockManager, LockOptions};

/// Takes the lock, runs the body under it, releases.
///
/// # Errors
/// As [`LockManager::with`], and [`LockError::NoManager`] without a manager.
pub async fn run<T>(
    manager: Option<&LockManager>,
    key: String,
    options: LockOptions,
    body: impl Future<Output = T>,
) -> Result<T, LockError> {
    let default;
    let manager = match manager {
        Some(manager) => manager,
        None => {
            default = LockManager::default_manager()?;
            &default
        }
    };
    manager.with(key, options, body).await
}
