//! Changes by version, and bodies that run again after a conflict: on real databases, and with paused time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commits;
mod conflicts;
mod layers;
mod pauses;
mod stock;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dblock::LockError;
use dblock::optimistic::{Conflict, StaleVersion};

/// An application's error.
#[derive(Debug)]
enum StockError {
    Stale(StaleVersion),
    Database(sqlx::Error),
    Lock(LockError),
    SoldOut,
}

impl Conflict for StockError {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Stale(error) => error.is_conflict(),
            Self::Database(error) => error.is_conflict(),
            Self::Lock(error) => error.is_conflict(),
            Self::SoldOut => false,
        }
    }

    fn exhausted(self, tries: u32) -> Self {
        match self {
            Self::Stale(error) => Self::Stale(error.exhausted(tries)),
            other => other,
        }
    }
}

impl std::fmt::Display for StockError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stale(error) => error.fmt(f),
            Self::Database(error) => error.fmt(f),
            Self::Lock(error) => error.fmt(f),
            Self::SoldOut => f.write_str("there is nothing left"),
        }
    }
}

impl From<StaleVersion> for StockError {
    fn from(error: StaleVersion) -> Self {
        Self::Stale(error)
    }
}

impl From<sqlx::Error> for StockError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl From<LockError> for StockError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

/// How often bodies have run.
#[derive(Clone, Default)]
struct Runs(Arc<AtomicU32>);

impl Runs {
    /// The number of the run that begins here, from 1.
    fn begin(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}
