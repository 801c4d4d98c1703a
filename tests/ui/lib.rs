//! The part that the files in `pass` and `fail` share.

use dblock::LockError;
use dblock::optimistic::{Conflict, StaleVersion};

/// An error that can carry a failed lock.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The lock failed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// There is no such order.
    #[error("order {0} is unknown")]
    Unknown(u64),
}

/// An error that can be a conflict, or carry a failed lock.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// Somebody else was faster.
    #[error(transparent)]
    Stale(#[from] StaleVersion),
    /// The lock failed.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// There is nothing left.
    #[error("there is nothing left")]
    SoldOut,
}

impl Conflict for StockError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Stale(error) => error.is_conflict(),
            Self::Lock(error) => error.is_conflict(),
            Self::SoldOut => false,
        }
    }
}

/// Something to lock.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Its number.
    pub id: u64,
    /// Where it is handled.
    pub region: String,
}

impl Order {
    /// The shelf, as a method.
    pub fn shelf(&self) -> u64 {
        self.id % 10
    }
}

/// A future that must be `Send`.
pub fn send<T: Send>(future: T) -> T {
    future
}
