//! The state of a manager, for health checks and dashboards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::store::{Outcome, StoreError};

/// The state of a manager. From [`LockManager::health`](crate::LockManager::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// How long ago the store last answered a lock request; `None` if it never has. An idle manager asks
    /// nothing, so this grows while nothing is locked.
    pub last_success: Option<Duration>,
    /// How long the store has been failing lock requests without one success; `None` when the last one
    /// succeeded. An idle manager asks nothing, so a failing state stays until the next request, also when
    /// the store is well again. A probe that keeps traffic away while it is set must ask by a lock of its own.
    pub failing_for: Option<Duration>,
    /// The store's last error, while it is failing.
    pub last_error: Option<String>,
    /// How late the last renewal was that the store has answered: about one round trip when all is well. A
    /// lease is lost when its renewal is later than about three fifths of its ttl. While the store does not
    /// answer, this value does not grow: look at [`failing_for`](Self::failing_for) too.
    pub renewal_lag: Duration,
    /// Keys whose release is still to be written.
    pub pending_releases: usize,
}

/// The values behind [`Health`], which the engine updates.
#[derive(Debug, Default)]
pub(crate) struct HealthBoard {
    board: Mutex<Board>,
    /// How many keys have a release still to be written.
    pub(crate) pending_releases: AtomicUsize,
}

#[derive(Debug, Default)]
struct Board {
    last_success: Option<Instant>,
    failing: Option<(Instant, String)>,
    renewal_lag: Duration,
}

impl HealthBoard {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, answers: &[Result<Outcome, StoreError>]) {
        let mut board = self.board();
        let now = Instant::now();
        for answer in answers {
            match answer {
                Ok(_) => {
                    board.last_success = Some(now);
                    board.failing = None;
                }
                Err(error) => {
                    let since = board.failing.take().map_or(now, |(since, _)| since);
                    board.failing = Some((since, error.to_string()));
                }
            }
        }
    }

    pub(crate) fn set_renewal_lag(&self, lag: Duration) {
        self.board().renewal_lag = lag;
    }

    pub(crate) fn read(&self) -> Health {
        let board = self.board();
        Health {
            last_success: board.last_success.map(|at| at.elapsed()),
            failing_for: board.failing.as_ref().map(|(since, _)| since.elapsed()),
            last_error: board.failing.as_ref().map(|(_, error)| error.clone()),
            renewal_lag: board.renewal_lag,
            pending_releases: self.pending_releases.load(Ordering::Relaxed),
        }
    }
}
