//! Batches: which requests go together, and how long the store may take for them.

use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use crate::store::{Action, Extend, Outcome, Request, Store, StoreError, StoreErrorKind};

/// How long a batch may take, connecting included, before its connection is given up and its outcome is
/// unknown. A renewal that hangs must leave time to be sent again before its lease ends, and a release
/// before its caller goes on without it.
const EXTEND_PATIENCE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(2);
const RELEASE_PATIENCE: Duration = Duration::from_millis(1500);
const ACQUIRE_PATIENCE: Duration = Duration::from_secs(3);

/// A lane carries one batch at a time. A store that takes this many calls at once gets a lane for each action.
const LANES: usize = 3;

/// How many lanes there are to `store`.
pub(super) fn lanes(store: &dyn Store) -> usize {
    if store.capabilities().concurrency >= LANES {
        LANES
    } else {
        1
    }
}

/// The kinds of requests. Each has a lane of its own if there are enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Extend,
    Release,
    Acquire,
}

impl Kind {
    pub(super) fn of(action: &Action) -> Self {
        match action {
            Action::Extend(_) => Self::Extend,
            Action::Release => Self::Release,
            Action::Acquire(_) => Self::Acquire,
        }
    }

    /// Its lane, out of `lanes`.
    pub(super) fn lane(self, lanes: usize) -> usize {
        let lane = match self {
            Self::Extend => 0,
            Self::Release => 1,
            Self::Acquire => 2,
        };
        lane.min(lanes - 1)
    }
}

/// The lane with the requests that callers make next: acquires for releases, and the other way round.
pub(super) fn counterpart(lane: usize, lanes: usize) -> Option<usize> {
    let (release, acquire) = (Kind::Release.lane(lanes), Kind::Acquire.lane(lanes));
    match lane {
        _ if release == acquire => None,
        lane if lane == release => Some(acquire),
        lane if lane == acquire => Some(release),
        _ => None,
    }
}

/// Requests that go together.
#[derive(Debug)]
pub(super) struct Batch {
    lane: usize,
    pub(super) requests: Vec<Request>,
}

/// A batch that came back.
pub(super) struct Answered {
    pub(super) lane: usize,
    pub(super) requests: Vec<Request>,
    /// An error when the store gave no answers that can be told apart.
    pub(super) answers: Result<Vec<Result<Outcome, StoreError>>, StoreError>,
}

impl Batch {
    pub(super) fn new(lane: usize) -> Self {
        Self {
            lane,
            requests: Vec::new(),
        }
    }

    pub(super) fn extend(&mut self, taken: Option<Request>) {
        self.requests.extend(taken);
    }

    /// Has `store` carry it out.
    pub(super) async fn run(self, store: Arc<dyn Store>) -> Answered {
        let answers = apply(&*store, &self.requests).await;
        Answered {
            lane: self.lane,
            requests: self.requests,
            answers,
        }
    }
}

/// Runs a batch, in bounded time and whatever the store does.
async fn apply(
    store: &dyn Store,
    requests: &[Request],
) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
    let patience = patience(requests);
    // The call is inside the future too: a store may panic before it returns one.
    let work = async { timeout(patience, store.apply(requests)).await };
    let message = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(answers)) if answers.len() == requests.len() => return Ok(answers),
        Ok(Ok(answers)) => {
            format!(
                "the store gave {} answers to {} requests",
                answers.len(),
                requests.len()
            )
        }
        Ok(Err(_)) => format!("the database has not answered within {patience:?}"),
        Err(_) => "the store panicked".into(),
    };
    Err(StoreError::new(StoreErrorKind::Interrupted, message))
}

fn patience(requests: &[Request]) -> Duration {
    let each = requests.iter().map(|request| match request.action {
        Action::Extend(Extend { ttl, .. }) => {
            (ttl / 3).clamp(*EXTEND_PATIENCE.start(), *EXTEND_PATIENCE.end())
        }
        Action::Release => RELEASE_PATIENCE,
        Action::Acquire(_) => ACQUIRE_PATIENCE,
    });
    each.min().unwrap_or(ACQUIRE_PATIENCE)
}
