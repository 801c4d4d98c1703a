//! Batches: which requests go together, and how long the store may take for them.

use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;

use super::key_state::Taken;
use crate::store::{Action, Leave, Outcome, Request, Store, StoreError, StoreErrorKind};

/// How long a batch may take, connecting included, before its connection is given up and its outcome is
/// unknown. A renewal that hangs must leave time to be sent again before its lease ends, and a release
/// before its caller goes on without it.
const EXTEND_PATIENCE: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(2);
const RELEASE_PATIENCE: Duration = Duration::from_millis(1500);
const ACQUIRE_PATIENCE: Duration = Duration::from_secs(3);

/// How long releases may take to be announced: longer than that, and nothing is gained.
const ANNOUNCE_PATIENCE: Duration = Duration::from_millis(250);

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
            Action::Extend { .. } => Self::Extend,
            Action::Release => Self::Release,
            Action::Acquire { .. } => Self::Acquire,
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
    /// What is told before they are carried out, with the place of the release.
    announce: Vec<(usize, Leave)>,
}

/// A batch that came back.
pub(super) struct Answered {
    pub(super) lane: usize,
    pub(super) requests: Vec<Request>,
    /// Of which of them others may have been told.
    pub(super) announce: Vec<usize>,
    /// An error when the store gave no answers that can be told apart.
    pub(super) answers: Result<Vec<Result<Outcome, StoreError>>, StoreError>,
}

impl Batch {
    pub(super) fn new(lane: usize) -> Self {
        Self {
            lane,
            requests: Vec::new(),
            announce: Vec::new(),
        }
    }

    pub(super) fn extend(&mut self, taken: Option<Taken>) {
        let Some(taken) = taken else { return };
        if let Some(leave) = taken.announce {
            self.announce.push((self.requests.len(), leave));
        }
        self.requests.push(taken.request);
    }

    /// Has `store` carry it out.
    pub(super) async fn run(self, store: Arc<dyn Store>) -> Answered {
        let announce = announce(&*store, self.announce).await;
        let answers = apply(&*store, &self.requests).await;
        Answered {
            lane: self.lane,
            requests: self.requests,
            announce,
            answers,
        }
    }
}

/// Announces releases. Returns the places of those of which somebody may have been told.
async fn announce(store: &dyn Store, leaves: Vec<(usize, Leave)>) -> Vec<usize> {
    let (mut places, leaves): (Vec<usize>, Vec<Leave>) = leaves.into_iter().unzip();
    if places.is_empty() {
        return places;
    }
    let work = async { timeout(ANNOUNCE_PATIENCE, store.announce(&leaves)).await };
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(Ok(told))) => {
            let mut told = told.into_iter();
            places.retain(|_| told.next().unwrap_or(true));
        }
        // It only saves time, and the release itself has an error to tell if there is one.
        Ok(Ok(Err(error))) => tracing::debug!(%error, "releases were not announced, or perhaps they were"),
        Ok(Err(_)) => tracing::debug!("the store took more than {ANNOUNCE_PATIENCE:?} to announce releases"),
        Err(_) => tracing::error!("the store panicked when it was to announce releases"),
    }
    places
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
        // A lease that came with a reservation has little time to be written.
        Action::Extend {
            successor: Some(_), ..
        } => *EXTEND_PATIENCE.start(),
        Action::Extend { ttl, .. } => (ttl / 3).clamp(*EXTEND_PATIENCE.start(), *EXTEND_PATIENCE.end()),
        Action::Release => RELEASE_PATIENCE,
        Action::Acquire { .. } => ACQUIRE_PATIENCE,
    });
    each.min().unwrap_or(ACQUIRE_PATIENCE)
}
