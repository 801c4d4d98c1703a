//! Runs a batch on the store, in bounded time, whatever the store does.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::dispatch::{MAX_BATCH, time_limit};
use dblock_core::machine::key::Transmit;
use futures_util::FutureExt as _;
use tokio::time::{Instant, timeout};

use crate::engine::cells::Cell;
use crate::store::{Outcome, Request, Store, StoreError, StoreErrorKind};

/// Requests that go together.
pub(super) struct Batch {
    lane: usize,
    cells: Vec<Arc<Cell>>,
    requests: Vec<Request>,
    limit: Duration,
}

/// A batch and its answers.
pub(super) struct Answered {
    pub(super) lane: usize,
    pub(super) cells: Vec<Arc<Cell>>,
    pub(super) answers: Vec<Result<Outcome, StoreError>>,
    /// How long the store took.
    pub(super) took: Duration,
    /// The largest batch for these keys next time.
    pub(super) most_together: usize,
}

impl Batch {
    pub(super) fn new(lane: usize) -> Self {
        Self {
            lane,
            cells: Vec::new(),
            requests: Vec::new(),
            limit: time_limit(None),
        }
    }

    pub(super) fn push(&mut self, cell: Arc<Cell>, transmit: Transmit) {
        self.limit = self.limit.min(time_limit(transmit.time_limit));
        self.cells.push(cell);
        self.requests.push(transmit.request);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Runs the batch on `store`.
    pub(super) async fn run(self, store: Arc<dyn Store>) -> Answered {
        let count = self.requests.len();
        let sent_at = Instant::now();
        let (answers, most_together) = match apply(&*store, &self.requests, self.limit).await {
            Ok(answers) => (answers, MAX_BATCH),
            Err(error) => (vec![Err(error); count], (count / 8).max(1)),
        };
        Answered {
            lane: self.lane,
            cells: self.cells,
            answers,
            took: sent_at.elapsed(),
            most_together,
        }
    }
}

/// # Errors
/// The store did not give one answer to each request.
async fn apply(
    store: &dyn Store,
    requests: &[Request],
    limit: Duration,
) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
    // The call is inside the future too: a store may panic before it returns its future.
    let work = async { timeout(limit, store.apply(requests)).await };
    let message = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(answers)) if answers.len() == requests.len() => return Ok(answers),
        Ok(Ok(answers)) => {
            format!(
                "the store gave {} answers to {} requests",
                answers.len(),
                requests.len()
            )
        }
        Ok(Err(_)) => format!("the database has not answered within {limit:?}"),
        Err(_) => "the store panicked".into(),
    };
    Err(StoreError::new(StoreErrorKind::Interrupted, message))
}
